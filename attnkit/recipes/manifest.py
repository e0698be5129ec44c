"""The data of a run, as `data_manifest.json` says it: its files and their hashes, and what became of what they hold."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnkit.data.documents import Documents
from attnkit.data.prepared import read_manifest
from attnkit.data.source_files import SourceFile, changed_files, names_of, source_files
from attnkit.errors import UsageError
from attnkit.files.disk import replacing
from attnkit.files.text import read_json
from attnkit.recipes.text import Rows, figures_of_text
from attnkit.tasks import Example, ExamplesConfig
from attnkit.tasks.rows import Row
from attnkit.training.run_folder import DATA_MANIFEST, writing

Manifest = dict[str, Any]


def of_text(documents: Documents, rows: Rows, *, rows_seen: int = 0) -> Manifest:
    """The data of a pretraining run that was trained on so many rows.

    Files that are streamed have no hash: they are not read for that alone.
    """
    data = documents.data
    if data.prepared is None:
        files = list(source_files(names_of(documents), hashed=not data.streaming))
    else:
        files = read_manifest(Path(data.prepared)).files  # the text itself may be gone
    return {
        "files": [asdict(file) for file in files],
        "train": figures_of_text(rows.sources(rows_seen=rows_seen), duplicates=rows.duplicates),
        "held_out": vars(rows.held_out.account),
    }


def of_examples(
    data: ExamplesConfig, examples: dict[str, list[Example]], *, rows: dict[str, list[Row]], dropped: int
) -> Manifest:
    """The data of a fine-tuning run."""
    names = [name for name in (data.source, data.held_out_source, data.test_source) if name is not None]
    plain = [name for entry in names for name in ([entry] if isinstance(entry, str) else entry)]
    counts = {split: {"examples": len(examples[split]), "rows": len(rows[split])} for split in rows}
    counts["train"]["dropped"] = dropped
    return {"files": [asdict(file) for file in source_files(plain)], **counts}


def save(manifest: Manifest, folder: Path) -> None:
    """Write the manifest into the folder of a run."""
    text = json.dumps(manifest, indent=2, allow_nan=False)  # in ASCII, as the name of a file need not be UTF-8
    with writing(folder / DATA_MANIFEST), replacing(folder / DATA_MANIFEST) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


def check_same_files(folder: Path, *, setting: str, otherwise: str) -> None:
    """Raise `UsageError` where files that the run in a folder was begun with have changed since.

    `setting` is what asks for the old ones, and `otherwise` what else can be done.
    """
    path = folder / DATA_MANIFEST
    try:
        files = [SourceFile(**file) for file in read_json(path)["files"]] if path.is_file() else []
    except (UsageError, KeyError, TypeError) as error:
        said = error if isinstance(error, UsageError) else f"{path}: names no files: the file is damaged"
        raise UsageError(f"{setting}: {said}: delete it to go on without a look at the files") from error
    if changed := changed_files(files):
        raise UsageError(
            f"{setting}: {'; '.join(changed)} since {folder} was begun: put the old text back, or {otherwise}"
        )
