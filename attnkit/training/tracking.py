"""What a run says while it runs: progress bar, JSONL log, trackers, loss curve."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class TrackingConfig:
    """Where the figures of a run go, besides the JSONL log that is always written."""

    trackers: list[str] = field(default_factory=list)
    """Accelerate trackers: `tensorboard`, `wandb`, `trackio` (extra `tracking`)."""
    project: str = "attnkit"
    """Name under which trackers file the run."""
    progress: bool = True
    """Show a progress bar on the main process."""
