"""Imports go one way, scripts are scripts, and the repository says nothing of the machine it was written on."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "attnkit"
SCRIPTS = sorted(path for folder in ("train", "finetune") for path in (ROOT / folder).glob("*.py"))

# A module may import from layers to its left and from its own part, but not from a neighbour in its own layer.
LAYERS = (
    {"errors", "asked"},
    {"registry", "files"},
    {"attention"},
    {"models"},
    {"data", "scaling"},
    {"training", "tasks"},
    {"config"},
    {"recipes"},
    {"cli"},
    {"__main__"},
)
LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}

# The public surface (attnkit/__init__.py) gathers what the parts offer, and testing tests it: both stand outside
# the order, and no part may import them.
OUTSIDE = {"__init__", "testing"}

MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:work|root|home|Users|farm|tmp)/[\w.]")


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Every module of attnkit that a file imports, at its top or inside a function, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in ("attnkit", "train", "finetune"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_part(name: str) -> str:
    """The part that `name` belongs to; the public surface where it is no module of the package."""
    parts = name.split(".")
    if parts[0] != "attnkit":
        return parts[0]
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL.keys() | OUTSIDE else "__init__"


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert not parts - LEVEL.keys() - OUTSIDE, "name the layer of these parts in LAYERS"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    importer = part_of(path)
    if importer in OUTSIDE:
        return
    wrong = [
        f"line {line}: {name}"
        for line, name in imported_modules(path)
        if (part := imported_part(name)) != importer and LEVEL.get(part, len(LAYERS)) >= LEVEL[importer]
    ]
    assert not wrong, f"attnkit.{importer} stands before what it imports"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_script_is_a_docstring_and_a_call(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(body[0], ast.Expr)
    assert {imported_part(name) for _, name in imported_modules(path)} == {"cli"}
    assert not [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_no_script_hides_an_installed_module() -> None:
    # A script's folder comes first on the path: a `tokenizers.py` there would be imported in place of the library.
    installed = sys.stdlib_module_names | packages_distributions().keys()
    assert SCRIPTS
    assert not {path.stem for path in SCRIPTS} & installed


def test_no_file_mentions_a_path_of_a_machine() -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found
