"""What is written has reached the disk, is still what was written, and is written by one process at a time."""

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from attnkit.errors import UsageError

SEAL = "COMPLETE"
STAGING = ".unfinished"
MOVING = ".moving"
"""What the place of new files is called from the moment on at which all of them are written."""


def is_of_disk(error: Exception) -> bool:
    """Whether a full or read-only disk raised this: the library of tokenizers raises bare exceptions for it."""
    return isinstance(error, OSError | SafetensorError) or "(os error " in str(error)


def said_by_disk(error: Exception) -> str:
    """Why a disk refused, without the name of the file: it may be one that only we know."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def sync_to_disk(path: Path) -> None:
    """Return when a file's content, or a folder's list of names, has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def claim(folder: Path, *, setting: str) -> Iterator[None]:
    """Make a folder and keep other processes from claiming it; the claim ends with the process at the latest.

    A folder that was made for it and is empty when it fails goes again. Raises `UsageError`, naming the setting of the
    folder, where another process has it.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{setting}: {folder} is being written by {holder_of(descriptor)}, perhaps one that a killed "
                f"launcher has left behind: wait for its end or end it, or choose another folder"
            ) from error
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
    finally:
        os.close(descriptor)


def holder_of(descriptor: int) -> str:
    """The process that has claimed an open folder, where the system says which."""
    locks, inode = Path("/proc/locks"), os.fstat(descriptor).st_ino
    entries = [line.split() for line in locks.read_text().splitlines()] if locks.is_file() else []
    holders = [entry[4] for entry in entries if entry[1] == "FLOCK" and entry[5].endswith(f":{inode}")]
    return f"process {holders[0]}" if holders else "another process"


def check_free(folder: Path, *, setting: str) -> None:
    """Raise the `UsageError` of `claim` now, before there is a need for the folder."""
    if folder.is_dir():
        with claim(folder, setting=setting):
            pass


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place for the new content of a file. It gets there when it is written: a disk that refuses, and an end before
    its time, leave the file as it was."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        yield unfinished
        sync_to_disk(unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def is_free(folder: Path) -> bool:
    """Whether nothing is in the way of a folder: it is not there, or empty, or was being filled when that was ended."""
    if not folder.exists():
        return True
    return folder.is_dir() and ((folder / MOVING).is_dir() or all(path.name == STAGING for path in folder.iterdir()))


@contextmanager
def filling(folder: Path, *, setting: str, last: str = SEAL) -> Iterator[Path]:
    """A place for new files of a folder. They get there when all are written, over files of the same names: a disk that
    refuses, and an end before its time, leave the folder as it was. The file named `last` says that all are there.

    Raises `UsageError`, naming the setting of the folder, where another process fills it.
    """
    is_new, staging, moving = not folder.exists(), folder / STAGING, folder / MOVING
    try:
        with claim(folder, setting=setting):
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            yield staging
            for path in [*staging.rglob("*"), staging]:
                sync_to_disk(path)
            shutil.rmtree(moving, ignore_errors=True)
            staging.rename(moving)
            for path in sorted(moving.iterdir(), key=lambda path: path.name == last):
                path.replace(folder / path.name)
            moving.rmdir()
            sync_to_disk(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


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
    with replacing(folder / SEAL) as unfinished:
        unfinished.write_text(json.dumps(checksums, indent=2, allow_nan=False) + "\n", encoding="utf-8")
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


def is_ours(folder: Path, name: str) -> bool:
    """Whether a folder is sealed with a file of this name in it: what is not may be anybody's, and is not replaced."""
    try:
        return name in json.loads((folder / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False
