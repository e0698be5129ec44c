"""The user's own parts: files and modules that register scorers and the like, imported before names are looked up."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path

from attnkit.errors import UsageError


def absolute(entry: str, folder: Path) -> str:
    """An entry of `imports` that no longer depends on the folder of the file that named it."""
    return str((folder / entry).resolve()) if entry.endswith(".py") else entry


def import_part(entry: str) -> None:
    """Import a file (`*.py`, absolute) or a module (dotted), once.

    Raises `UsageError` if there is none, if it fails (with the line that failed), or if another module has its name.
    """
    try:
        if entry.endswith(".py"):
            _import_file(Path(entry))
        else:
            importlib.import_module(entry)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        raise UsageError(f"imports: {entry}: {error}: name an installed module or a file ending in .py") from error
    except SyntaxError as error:
        raise UsageError(f"imports: {error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(f"imports: {frame.filename}:{frame.lineno}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> None:
    name = path.stem
    if not path.is_file():
        raise UsageError(f"imports: {path}: no such file")
    if name in sys.modules:
        if vars(sys.modules[name]).get("__file__") == str(path):
            return
        raise UsageError(f"imports: {path}: a module named {name!r} is loaded already: rename the file")
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
