"""What is written has reached the disk."""

import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Return when a file's content, or a folder's list of names, has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
