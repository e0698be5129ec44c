"""What a run starts from, found from any folder: its text and its tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnkit.config.runs import PretrainRun
from attnkit.data.sources import PYTHON_DOCS, DataConfig, may_be_on_hub
from attnkit.errors import UsageError
from attnkit.files.disk import damage
from attnkit.files.hub import require_repository
from attnkit.files.saved import CHECKPOINTS
from attnkit.recipes.saved import tokenizer_folder
from attnkit.training.checkpoint import newest_complete
from attnkit.training.run_folder import TOKENIZER

if TYPE_CHECKING:
    from attnkit.config.finetune_run import FinetuneRun

Data = TypeVar("Data", bound=DataConfig)

SPLIT = ("subset", "text_column", "documents", "held_out_fraction", "seed")  # what decides on the split, given a source


def tokenizer_path(run: "PretrainRun | FinetuneRun") -> str | None:
    """Where the tokenizer of a run is, if it has one: a run that goes on and a model that is loaded keep theirs."""
    own = Path(run.training.output_dir) / TOKENIZER
    newest = newest_complete(own.with_name(CHECKPOINTS)) if run.training.resume else None
    if newest is not None:
        if not own.exists():
            return str(newest)
        if what := damage(own):
            raise UsageError(f"training.resume: {own} is damaged ({what}): delete it, and that of {newest} is taken")
        return str(own)
    if run.tokenizer.path is not None or run.model.path is None:
        return run.tokenizer.path
    if not Path(run.model.path).expanduser().exists():
        require_repository(run.model.path, kind="model", remedy="give the folder of a run or of a saved model")
    return tokenizer_folder(run.model.path)


def absolute_data(data: Data) -> Data:
    """The settings of data, with the files and patterns among its sources by their absolute paths."""

    def absolute(source: Any) -> Any:
        if source is None or isinstance(source, list):
            return source and [absolute(entry) for entry in source]
        if isinstance(source, dict):
            return {key: absolute(value) if key == "source" else value for key, value in source.items()}
        if not isinstance(source, str):
            return source  # the reader of the data says what is wrong with it
        path = Path(source).expanduser()
        # Prepared rows are those of a file even where it is gone.
        is_local = source.strip() and source != PYTHON_DOCS and (path.exists() or not may_be_on_hub(source))
        return str(path.absolute()) if is_local else source

    return replace(data, **{key: absolute(value) for key, value in vars(data).items() if is_path(key)})


def check_same_split(own: DataConfig, data: DataConfig) -> None:
    """Raise `UsageError` where another split would let through, as held out, text that the model was trained on."""
    given = vars(data)
    for key, value in vars(own).items():
        if key in SPLIT and given[key] != value:
            raise UsageError(
                f"data.{key}: {given[key]!r} would split the run's own text in another way than {value!r}, with which "
                "it was trained: leave it out, or give another data.source"
            )


def is_path(key: str) -> bool:
    """Whether a setting of data says where something is."""
    return key.endswith("source") or key == "prepared"
