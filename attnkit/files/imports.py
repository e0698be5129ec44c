"""The user's own parts: files and modules that register scorers and the like, imported before names are looked up."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from attnkit.errors import UsageError


def absolute(entry: str, folder: Path) -> str:
    """An entry of `imports` that no longer depends on the folder of the file that named it."""
    return str((folder / Path(entry).expanduser()).resolve()) if entry.endswith(".py") else entry


def not_replaced(remembered: Sequence[str], *, given: Sequence[str]) -> list[str]:
    """The imports that a saved run remembers, without those in whose place a file of the same name is given."""
    names = {Path(entry).name for entry in given}
    return [entry for entry in remembered if Path(entry).name not in names]


def import_part(entry: str) -> None:
    """Import a file (`*.py`, absolute) or a module (dotted), once.

    Raises `UsageError` if there is none, if it fails or exits (with the line of it that did), or if another module has
    its name.
    """
    try:
        if entry.endswith(".py"):
            _import_file(Path(entry))
        elif not all(word.isidentifier() for word in entry.split(".")):
            raise UsageError(f"{entry!r} is the name of no module: name an installed module or a file ending in .py")
        else:
            importlib.import_module(entry)
    except UsageError as error:
        raise UsageError(f"imports: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(f"imports: {entry}: {error}: name an installed module or a file ending in .py") from error
    except SyntaxError as error:
        raise UsageError(f"imports: {error.filename}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"imports: {_place(error, entry)}: {type(error).__name__}{said and f': {said}'}") from error


def _import_file(path: Path) -> None:
    name = path.stem
    if not path.is_file():
        raise UsageError(f"{path}: no such file: put it back, or give its new place as --imports FILE")
    if name in sys.modules:
        if vars(sys.modules[name]).get("__file__") == str(path):
            return
        raise UsageError(f"{path}: a module named {name!r} is loaded already: rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    # Registered under its own name, so that what it defines can be pickled for the workers of a data loader.
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _place(error: BaseException, entry: str) -> str:
    """The last line of the user's file on the way to an error; for a module, the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((it for it in reversed(frames) if it.filename == entry), frames[-1])
    return f"{frame.filename}:{frame.lineno}"
