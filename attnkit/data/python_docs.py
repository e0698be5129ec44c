"""English text that every Python has: the topics of `help()` and the docstrings of the standard library.

Both are part of Python (PSF licence). The docstrings are read from the sources of the running Python and no module is
imported, so the text depends on the Python version and on nothing else.
"""

import ast
import inspect
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attnkit.errors import UsageError

# Not the library: what is installed beside it, its tests, and files that only tests read.
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

LABEL_MIN_EXAMPLES = 80
LABEL_MIN_CHARACTERS = 40
LABEL_MIN_LETTERS = 3
OWN_NAME = "module"
"""What stands in a labelled text where the name of its own module stood."""


def documents() -> list[str]:
    """Every topic of `help()`, then every docstring of the standard library: distinct, in a fixed order, cleaned.

    Topics come in the order of their names, docstrings in that of paths, then in that of `ast.walk`; of equal texts the
    first stays. Raises `UsageError` if this Python was installed without its sources.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UsageError("python-docs: this Python lacks pydoc_data.topics; give files as data.source") from error
    texts = (inspect.cleandoc(topics[name]) for name in sorted(topics))
    return list(dict.fromkeys([*texts, *(text for _, text in _docstrings())]))


def labelled() -> list[dict[str, str]]:
    """Docstrings as rows {text, label}: the label is the top-level module or package whose source holds the docstring.

    The name of the label is kept out of the text: every word that holds it, in capitals or not, alone, within an
    identifier or a dotted name (`tkinter`, `_TkinterError`, `tkinter.ttk.Button`), became `module` as a whole, so that
    not even the rest of an identifier stays behind. Names of other modules stay. A label is that name without
    its mark of a private or pure Python part, so `_pydecimal` is `decimal`.

    Left out are modules of one or two letters (`os` is in half of all words), texts shorter than LABEL_MIN_CHARACTERS,
    texts found under two labels, repetitions, and labels with fewer than LABEL_MIN_EXAMPLES texts. These docstrings
    are among `documents` as well: a model pretrained on those has read the texts, but not what they are labelled.

    Raises `UsageError` if this Python was installed without its sources.
    """
    labels: dict[str, set[str]] = {}
    for module, docstring in _docstrings():
        label = module.removeprefix("_py").lstrip("_")
        if len(label) >= LABEL_MIN_LETTERS:
            labels.setdefault(_without_name(docstring, label), set()).add(label)
    rows = [
        {"text": text, "label": label}
        for text, (label, *others) in labels.items()
        if not others and len(text) >= LABEL_MIN_CHARACTERS
    ]
    counts = Counter(row["label"] for row in rows)
    return [row for row in rows if counts[row["label"]] >= LABEL_MIN_EXAMPLES]


def _without_name(text: str, name: str) -> str:
    """The text with OWN_NAME in place of every word, identifier or dotted name that holds `name`."""
    return re.sub(rf"(?:\w+\.)*\w*{re.escape(name)}\w*(?:\.\w+)*", OWN_NAME, text, flags=re.IGNORECASE)


@cache
def _docstrings() -> tuple[tuple[str, str], ...]:
    """(top-level module, docstring) for every docstring of the standard library's sources, repetitions included."""
    root = Path(sysconfig.get_path("stdlib"))
    found = tuple(docstring for path in _sources(root) for docstring in _docstrings_of(path, root))
    if not found:
        raise UsageError(f"python-docs: {root} has no sources of the standard library; give files as data.source")
    return found


def _sources(folder: Path) -> Iterator[Path]:
    """Python files of the standard library, sorted; without folders that are no packages, such as `config-3.11`."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in NOT_LIBRARY and path.name.isidentifier():
            yield from _sources(path)
        elif path.suffix == ".py":
            yield path


def _docstrings_of(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    module = path.relative_to(root).parts[0].removesuffix(".py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # about the library's own escapes
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except SyntaxError:  # a template, or a file for another Python: it has no docstrings for this one
            return
    for node in ast.walk(tree):
        if isinstance(node, HAS_DOCSTRING) and (text := ast.get_docstring(node)):
            yield module, text
