"""The user's own parts: files and modules that register scorers and the like, imported before names are looked up."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from attnkit.errors import UsageError, in_one_line, place_of_error

IMPORTED: set[str] = set()
"""Files, and folders of packages, that hold the user's own code."""


def absolute(entry: str, folder: Path) -> str:
    """An entry of `imports` that no longer depends on the folder of the file that named it."""
    return str((folder / Path(entry).expanduser()).resolve()) if entry.endswith(".py") else entry


def not_replaced(remembered: Sequence[str], *, given: Sequence[str]) -> list[str]:
    """The imports that a saved run remembers, without those in whose place something is given: a file of the same name,
    or, for a file that is gone, anything."""
    names = {Path(entry).name for entry in given}
    gone = [entry for entry in remembered if given and entry.endswith(".py") and not Path(entry).exists()]
    return [entry for entry in remembered if Path(entry).name not in names and entry not in gone]


def import_part(entry: str) -> None:
    """Import a file (`*.py`, absolute) or a module (dotted), once.

    Raises `UsageError` if there is none, if it fails or exits (with the line of it that did), or if another module has
    its name.
    """
    is_file = entry.endswith(".py")
    if is_file:
        _check_file(Path(entry))
    elif not all(word.isidentifier() for word in entry.split(".")):
        said = "is the name of no module: name an installed module or a file ending in .py"
        raise UsageError(f"imports: {entry!r} {said}")
    try:
        if is_file:
            _import_file(Path(entry))
            IMPORTED.add(entry)
        else:
            module = vars(importlib.import_module(entry))
            IMPORTED.update([*module.get("__path__", []), *filter(None, [module.get("__file__")])])
    except ModuleNotFoundError as error:
        raise UsageError(f"imports: {entry}: {error}: name an installed module or a file ending in .py") from error
    except SyntaxError as error:
        raise UsageError(f"imports: {error.filename}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        said = "; ".join(str(error).splitlines()) if isinstance(error, UsageError) else in_one_line(error)
        raise UsageError(f"imports: {place_of_error(error, entry)}: {said}") from error


def fault_of_own_code(error: Exception) -> UsageError | None:
    """An error that came out of what was imported here, in one line that names its place; None for any other."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if any(file.is_relative_to(own) for own in IMPORTED):
            return UsageError(f"imports: {file}:{frame.lineno}: {in_one_line(error)}")
        if file.is_relative_to(Path(__file__).parents[1]):
            return None
    return None


def _check_file(path: Path) -> None:
    """Raise `UsageError` if there is no such file, or if another module has its name."""
    if not path.is_file():
        raise UsageError(f"imports: {path}: no such file: put it back, or give its new place as --imports FILE")
    if path.stem in sys.modules and vars(sys.modules[path.stem]).get("__file__") != str(path):
        raise UsageError(f"imports: {path}: a module named {path.stem!r} is loaded already: rename the file")


def _import_file(path: Path) -> None:
    name = path.stem
    if name in sys.modules:
        return
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
