"""What is found where a user says that a model is: a run, the folder of a model or of a checkpoint, or a hub name."""

from pathlib import Path
from typing import Literal

from transformers import PreTrainedTokenizerBase

from attnkit.data.tokenizer import load_tokenizer
from attnkit.errors import UsageError
from attnkit.files import strict_yaml
from attnkit.files.saved import CHECKPOINTS, CONFIG, MODEL, run_folder
from attnkit.training.checkpoint import newest_complete

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SHOWN = 12  # runs that an error names


def model_path(path: str) -> str:
    """The folder of a model, given that of its run; a hub name stays what it is.

    Raises `UsageError` for a folder without a model, and for a run that has not finished.
    """
    if not path.strip():
        raise UsageError("model: the path is empty: give the folder of a run or of a saved model, or a name on the hub")
    folder = Path(path).expanduser()
    if (folder / MODEL / "config.json").is_file():
        return str(folder / MODEL)
    if (folder / "config.json").is_file():
        return str(folder)
    run = run_folder(folder)
    if run is not None:
        raise UsageError(f"model {path}: {unfinished(run)}")
    refuse_several(path)
    if folder.is_dir():
        raise UsageError(f"model {path}: the folder has no config.json: give that of a run or of a saved model")
    if folder.is_file():
        raise UsageError(f"model {path}: is a file: give the folder of a run or of a saved model")
    return path


def refuse_several(path: str) -> None:
    """Raise `UsageError` for a folder that is no run and holds some, as that of a grid does."""
    names = [run.parent.name for run in sorted(Path(path).expanduser().glob(f"*/{CONFIG}"))]
    if names and run_folder(path) is None:
        more = ", …" if len(names) > SHOWN else ""
        raise UsageError(f"{path}: is a folder of runs: give one of those inside ({', '.join(names[:SHOWN])}{more})")


def unfinished(run: Path) -> str:
    """How a run that has no model yet can be finished, or used as far as it got."""
    newest = newest_complete(run / CHECKPOINTS)
    go_on = f"go on with `attnkit {verb_of(run)} --config {run / CONFIG} --resume`"
    return f"the run is not finished: {go_on}" + (f", or give its newest checkpoint, {newest}" if newest else "")


def verb_of(run: Path) -> Literal["pretrain", "finetune"]:
    """The verb that made a run. Raises `UsageError` if its config cannot be read."""
    mapping, _ = strict_yaml.read(run / CONFIG)
    return "finetune" if "task" in mapping else "pretrain"


def tokenizer_folder(path: str) -> str:
    """Where the tokenizer of a model is. Raises `UsageError` for a folder of a model that has none."""
    found = find_tokenizer(path)
    if found is None:
        raise UsageError(f"model {path}: no tokenizer is with it: save one into that folder with save_pretrained")
    return found


def find_tokenizer(path: str) -> str | None:
    """The folder of a model that has a tokenizer with it; the name of a model on the hub is that of its tokenizer."""
    model = Path(model_path(path))
    return str(model) if not model.is_dir() or holds_tokenizer(model) else None


def holds_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer is saved in a folder."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def tokenizer_of(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model. Raises `UsageError` if there is none, or if it is damaged."""
    found = tokenizer_folder(path)
    remedy = (
        "save its tokenizer there again" if Path(found).is_dir() else "give the folder of a run or of a saved model"
    )
    return load_tokenizer(found, named=f"model {path}", remedy=remedy)
