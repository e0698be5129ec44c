"""Prepared rows: tokenized and packed once, written to a folder, and read from there by any number of runs.

folder/
  manifest.json        what the rows were made of; written last, so that a folder without it is no prepared one
  tokenizer/           the tokenizer that made them
  train-0-00000.arrow  rows of the first source, as an Arrow stream that is mapped into memory, in shards
  held_out-0-00000.arrow
"""

import json
import tempfile
import zlib
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from attnkit.data.documents import Documents
from attnkit.data.objectives import Objective
from attnkit.data.rows import Account, Group, RowMaker, end_of_document
from attnkit.data.source_files import SourceFile, changed_files, names_of, source_files
from attnkit.errors import UsageError
from attnkit.files.disk import file_checksum, filling, is_of_disk, said_by_disk

if TYPE_CHECKING:
    import datasets

MANIFEST, TOKENIZER = "manifest.json", "tokenizer"
FORMAT = 2
PREPARE_AGAIN = "delete it and run attnkit prepare"
SHARD_BYTES = 2**28
# What decides on the rows, beside the tokenizer and the files themselves.
SETTINGS = ("source", "subset", "text_column", "documents", "held_out_source", "held_out_fraction", "packing", "seed")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of rows."""

    name: str
    source: int
    held_out: bool
    rows: int
    bytes: int
    checksum: int
    """CRC-32 of the file."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What prepared rows were made of, and what became of it."""

    format: int
    settings: dict[str, Any]
    tokenizer: str
    """Hash of the tokenizer."""
    tokenizer_files: dict[str, int]
    """The CRC-32 of each of its files."""
    trained: dict[str, Any]
    """The settings that the tokenizer was trained with, if it was trained for these rows."""
    files: list[SourceFile]
    shards: list[Shard]
    accounts: list[dict[str, Any]]
    """An account, with the source and part that it is of."""
    duplicates: int

    def accounts_by_group(self) -> dict[Group, Account]:
        """The accounts by source and part."""
        return {
            Group(source=entry["source"], held_out=entry["held_out"]): Account(**entry["account"])
            for entry in self.accounts
        }


def settings_of(documents: Documents, objective: Objective) -> dict[str, Any]:
    """The settings that rows depend on, by key. Objectives that read the same rows can share them."""
    packing = objective.packing()
    settings = {f"data.{key}": vars(documents.data)[key] for key in SETTINGS}
    return settings | {
        "objective.target_column": documents.target_column,
        "kind of rows": type(packing).__name__,
        "tokens of a row": packing.row_length,
    }


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that decides on the token ids of text: the saved files, but those that only describe them."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        digest = blake2b(str(end_of_document(tokenizer)).encode(), digest_size=16)
        for path in files:
            if path.name not in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def write_prepared(
    folder: Path,
    documents: Documents,
    tokenizer: PreTrainedTokenizerBase,
    *,
    objective: Objective,
    trained: dict[str, Any],
) -> Manifest:
    """Tokenize, pack and write all documents, in bounded memory; the rows appear whole or not at all.

    `trained`: the settings of a tokenizer that was trained for these rows. Raises `UsageError` if the disk refuses.
    """
    try:
        with filling(folder, setting="data.prepared", last=MANIFEST) as staging:
            files = list(source_files(names_of(documents)))
            tokenizer.save_pretrained(staging / TOKENIZER)
            maker = RowMaker(tokenizer, packing=objective.packing)
            shards = write_shards(staging, maker, documents)
            manifest = Manifest(
                format=FORMAT,
                settings=settings_of(documents, objective),
                tokenizer=tokenizer_hash(tokenizer),
                tokenizer_files={path.name: file_checksum(path) for path in (staging / TOKENIZER).iterdir()},
                trained=trained,
                files=files,
                shards=shards,
                accounts=[{**group._asdict(), "account": asdict(account)} for group, account in maker.accounts.items()],
                duplicates=documents.duplicates,
            )
            values = asdict(manifest)
            text = json.dumps({**values, "checksum": checksum_of(values)}, indent=2, allow_nan=False)
            (staging / MANIFEST).write_text(text + "\n", encoding="utf-8")
    except Exception as error:
        if not is_of_disk(error):
            raise
        raise UsageError(
            f"data.prepared: cannot write {folder}: {said_by_disk(error)}; free space or choose another folder"
        ) from error
    return manifest


def write_shards(folder: Path, maker: RowMaker, documents: Documents) -> list[Shard]:
    """The rows of all documents in files, each group in files of its own."""
    open_shards: dict[Group, OpenShard] = {}
    numbers: dict[Group, int] = {}
    shards: list[Shard] = []
    for group, rows in maker.rows(documents):
        if rows.num_rows == 0:
            continue
        if group not in open_shards:
            part, number = "held_out" if group.held_out else "train", numbers.get(group, 0)
            path = folder / f"{part}-{group.source}-{number:05}.arrow"
            open_shards[group] = OpenShard(path, group, schema=rows.schema)
            numbers[group] = number + 1
        if open_shards[group].add(rows) >= SHARD_BYTES:
            shards.append(open_shards.pop(group).close())
    shards += [shard.close() for shard in open_shards.values()]
    return sorted(shards, key=lambda shard: shard.name)


class OpenShard:
    """A shard that is being written."""

    def __init__(self, path: Path, group: Group, *, schema: pa.Schema) -> None:
        self.path, self.group = path, group
        self.rows = 0
        self.file = path.open("wb")
        self.writer = pa.ipc.new_stream(self.file, schema)

    def add(self, rows: pa.Table) -> int:
        """Write rows and return the bytes so far."""
        self.writer.write_table(rows.combine_chunks())
        self.rows += rows.num_rows
        return self.file.tell()

    def close(self) -> Shard:
        self.writer.close()
        self.file.close()
        size = self.path.stat().st_size
        checksum = file_checksum(self.path)
        return Shard(name=self.path.name, **self.group._asdict(), rows=self.rows, bytes=size, checksum=checksum)


def checksum_of(values: dict[str, Any]) -> int:
    """The CRC-32 of the values of a manifest."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder.

    Raises `UsageError` for a folder that is missing, unfinished, of another format or damaged.
    """
    if not (folder / MANIFEST).is_file():
        what = "has no manifest.json, so it is no prepared folder" if folder.exists() else "is not there"
        todo = "give the folder of attnkit prepare" if folder.exists() else "run attnkit prepare with these settings"
        raise UsageError(f"data.prepared: {folder} {what}; {todo}")
    try:
        values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise UsageError(f"data.prepared: {folder} has format {values['format']}, not {FORMAT}; {PREPARE_AGAIN}")
        if values.pop("checksum", None) != checksum_of(values):
            raise ValueError("its checksum is another one")
        values["files"] = [SourceFile(**entry) for entry in values["files"]]
        values["shards"] = [Shard(**entry) for entry in values["shards"]]
        manifest = Manifest(**values)
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"data.prepared: {folder / MANIFEST} is damaged ({error}); {PREPARE_AGAIN}") from error
    check_files(folder, manifest)
    return manifest


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise `UsageError` for a shard that is missing or cut off, and for a tokenizer that is not as it was written."""
    for shard in manifest.shards:
        path = folder / shard.name
        size = path.stat().st_size if path.is_file() else None
        if size != shard.bytes:
            said = "is missing" if size is None else f"has {size} bytes instead of {shard.bytes}"
            raise UsageError(f"data.prepared: {path} {said}; {PREPARE_AGAIN}")
    for name, checksum in manifest.tokenizer_files.items():
        path = folder / TOKENIZER / name
        if not path.is_file() or file_checksum(path) != checksum:
            raise UsageError(f"data.prepared: {path} is {'damaged' if path.exists() else 'missing'}; {PREPARE_AGAIN}")


def differences(
    manifest: Manifest, documents: Documents, tokenizer: PreTrainedTokenizerBase, *, objective: Objective
) -> list[str]:
    """In what a run differs from the preparation, a line for each."""
    found = changed_settings(manifest.settings, settings_of(documents, objective))
    if manifest.tokenizer != tokenizer_hash(tokenizer):
        found.append("the tokenizer is another one")
    return found + changed_files(manifest.files)


def changed_settings(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The settings of a manifest that are others now."""
    now = json.loads(json.dumps(now))  # as the manifest has them
    return [f"{key} was {value!r} and is {now[key]!r}" for key, value in before.items() if now[key] != value]


def other_rows(folder: Path, found: list[str]) -> UsageError:
    """The error for prepared rows that are not those of a run."""
    return UsageError(
        f"data.prepared: {folder} holds rows of other settings ({'; '.join(found)}); run attnkit prepare with these "
        f"into another folder"
    )


def check_shards(folder: Path, manifest: Manifest) -> None:
    """Raise `UsageError` for shards that are not as they were written.

    All of their bytes are read once for that, at some GB/s: much less than the first epoch takes.
    """
    for shard in manifest.shards:
        path = folder / shard.name
        if file_checksum(path) != shard.checksum:
            raise UsageError(f"data.prepared: {path} is damaged: other bytes were written; {PREPARE_AGAIN}")


def read_shards(folder: Path, manifest: Manifest) -> "dict[Group, datasets.Dataset]":
    """The rows of each group, mapped into memory. Raises `UsageError` for shards that are not as they were written."""
    import datasets  # here, as text is prepared without it

    check_shards(folder, manifest)
    found: dict[Group, list[datasets.Dataset]] = {}
    for shard in manifest.shards:
        path = folder / shard.name
        group = Group(source=shard.source, held_out=shard.held_out)
        found.setdefault(group, []).append(datasets.Dataset.from_file(str(path)))
    return {group: datasets.concatenate_datasets(parts) for group, parts in found.items()}
