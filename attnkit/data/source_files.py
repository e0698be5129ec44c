"""The files that text is read from: which they are, and whether they are still what they were."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from attnkit.data.documents import Documents
from attnkit.data.sources import PYTHON_DOCS, paths_of


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file that text was read from. A file of the same size and time is taken for the same."""

    path: str
    bytes: int
    modified: int  # nanoseconds since 1970
    hash: str | None
    """None where it was not to be read only for that."""


def names_of(documents: Documents) -> list[str]:
    """The sources of documents to train on and to evaluate on, by name."""
    held_out = documents.data.held_out_source
    names: list[str] = []
    for source in [*(source.source for source in documents.sources), held_out or []]:
        names += [source] if isinstance(source, str) else source
    return names


def source_files(names: Iterable[str], *, hashed: bool = True) -> Iterator[SourceFile]:
    """The files behind sources, each once, and the Python whose documents `python-docs` are.

    Those of a name on the hub are not known.
    """
    met: set[Path] = set()
    for name in names:
        if name == PYTHON_DOCS:
            yield SourceFile(path=PYTHON_DOCS, bytes=0, modified=0, hash=sys.version)
            continue
        for path in paths_of(name) or []:
            if path.resolve() not in met:
                met.add(path.resolve())
                stat = path.stat()
                yield SourceFile(
                    path=str(path.resolve()),
                    bytes=stat.st_size,
                    modified=stat.st_mtime_ns,
                    hash=file_hash(path) if hashed else None,
                )


def file_hash(path: Path) -> str:
    """A hash of the bytes of a file."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as stream:
        while chunk := stream.read(2**22):
            digest.update(chunk)
    return digest.hexdigest()


def changed_files(files: Sequence[SourceFile]) -> list[str]:
    """The files that are not what they were. Of those that are gone nothing is said."""
    changed = []
    for file in files:
        path = Path(file.path)
        if file.path == PYTHON_DOCS:
            if file.hash != sys.version:
                changed.append(f"{PYTHON_DOCS} is of another Python")
        elif path.is_file():
            stat = path.stat()
            same = (stat.st_size, stat.st_mtime_ns) == (file.bytes, file.modified)
            if not same and (file.hash is None or file_hash(path) != file.hash):
                changed.append(f"{path} has changed")
    return changed
