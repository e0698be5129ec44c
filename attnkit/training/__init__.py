"""The one loop, its checkpoints, optimizer, schedule and tracking."""
