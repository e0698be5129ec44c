"""What is written has reached the disk, and is still what was written."""

import json
import os
import zlib
from pathlib import Path

SEAL = "COMPLETE"


def sync_to_disk(path: Path) -> None:
    """Return when a file's content, or a folder's list of names, has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_checksum(path: Path) -> int:
    """The CRC-32 of a file, which notices accidents several times as fast as a hash that withstands intent."""
    checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(2**20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def seal(folder: Path) -> None:
    """Mark a folder as complete: the mark holds a checksum of each file, and appears whole or not at all."""
    checksums = {path.name: file_checksum(path) for path in sorted(folder.iterdir()) if path.name != SEAL}
    unfinished = folder / f".{SEAL}.unfinished"
    unfinished.write_text(json.dumps(checksums, indent=2) + "\n", encoding="utf-8")
    sync_to_disk(unfinished)
    unfinished.replace(folder / SEAL)
    sync_to_disk(folder)


def damage(folder: Path) -> str | None:
    """What of a sealed folder is not as it was written, in words; None where all is."""
    try:
        checksums = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        for name, checksum in checksums.items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if file_checksum(folder / name) != checksum:
                return f"{name} is not as it was written"
    except (OSError, ValueError, AttributeError) as error:
        return f"{SEAL} cannot be read: {error}"
    return None
