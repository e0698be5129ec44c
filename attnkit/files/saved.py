"""The folder of a run, found again from it, from its model or from one of its checkpoints, and what its config says."""

from dataclasses import dataclass
from pathlib import Path

from attnkit.errors import UsageError
from attnkit.files import strict_yaml
from attnkit.files.imports import absolute, import_part

CONFIG, MODEL, CHECKPOINTS = "config.yaml", "model", "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """The imports that a run was saved with, and the place where they stand."""

    entries: list[str]
    place: str


def run_folder(path: str | Path) -> Path | None:
    """The folder of the run that a path belongs to, or None: a model elsewhere, or the name of one on the hub."""
    given = Path(path).expanduser()
    try:
        place = given.resolve()
        around = [given]
        if place.name == MODEL:
            around.append(place.parent)
        if place.parent.name == CHECKPOINTS:
            around.append(place.parents[1])
        runs = [it for it in around if (it / CONFIG).is_file() and not (it / "config.json").is_file()]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except RuntimeError as error:
        raise UsageError(f"{path}: a link that leads back to itself: give the folder that is meant") from error
    return runs[0] if runs else None


def remembered_imports(path: str | Path) -> Remembered:
    """The imports of the run that a path belongs to: none where there is no such run.

    Raises `UsageError` if the run's config cannot be read.
    """
    folder = run_folder(path)
    return Remembered(entries=[], place="") if folder is None else imports_of(folder / CONFIG)


def imports_of(config: Path) -> Remembered:
    """The imports that a config names, files by their absolute paths. Raises `UsageError` if it cannot be read."""
    mapping, lines = strict_yaml.read(config)
    entries = mapping.get("imports") or []
    place = f"{config}:{lines.get('imports', 1)}"
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise UsageError(f"{place}: imports: expected list of (text), got {entries!r}")
    return Remembered(entries=[absolute(entry, config.parent) for entry in entries], place=place)


def import_parts(remembered: Remembered) -> None:
    """Import the user's parts that a config names. Raises `UsageError` that begins with the place in the config."""
    for entry in remembered.entries:
        try:
            import_part(entry)
        except UsageError as error:
            raise UsageError(f"{remembered.place}: {error}") from error
