"""A model folder that loads where attnkit is not installed: `from_pretrained(folder, trust_remote_code=True)`.

transformers copies the files of such a folder and follows `from .x import y` among them, and nothing else: the package
is laid flat, one file per module, with its imports rewritten.
"""

import ast
import inspect
import json
import sysconfig
from collections.abc import Container, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from attnkit import attention
from attnkit.errors import UsageError
from attnkit.models import labels, language, modeling_attnkit
from attnkit.models.card import write_card
from attnkit.models.checks import all_parts
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.pretrained import AttnKitPreTrainedModel

PACKAGE = "attnkit"
PUBLIC = f"{PACKAGE}_public"  # what a user's own file finds under the name attnkit
TESTING = f"{PACKAGE}.testing"  # no model needs it, and it is left out
ENTRIES = {
    "AutoModel": modeling_attnkit.AttnKitModel,
    "AutoModelForCausalLM": language.AttnKitForCausalLM,
    "AutoModelForMaskedLM": language.AttnKitForMaskedLM,
    "AutoModelForMultipleChoice": labels.AttnKitForMultipleChoice,
    "AutoModelForPreTraining": language.AttnKitForPreTraining,
    "AutoModelForQuestionAnswering": labels.AttnKitForQuestionAnswering,
    "AutoModelForSeq2SeqLM": language.AttnKitForSeq2SeqLM,
    "AutoModelForSequenceClassification": labels.AttnKitForSequenceClassification,
    "AutoModelForTokenClassification": labels.AttnKitForTokenClassification,
}


def save_with_code(model: AttnKitPreTrainedModel, folder: str | Path, *, training: str | None = None) -> None:
    """Save a model with the code that it needs, for every head, and the user's own parts that its configuration names.

    `training` is the section of its card that says how it came about.
    Raises `UsageError` for a part of the user's that was not written in a file, and for a file that would not load
    without attnkit and the files around it; nothing is written then.
    """
    own = own_sources(model.config)
    # A class that no Auto class is for is met where transformers has its XLNet.
    entries = ENTRIES if type(model) in ENTRIES.values() else ENTRIES | {"AutoModelForPreTraining": type(model)}
    modules = modules_of(entries.values())
    files = {flat_name(module): rewrite(source_of(module)) for module in modules}
    files |= {stem: rewrite_own(path, modules=modules) for stem, path in own.items()}
    files[PUBLIC] = public_module()
    entry = flat_name(AttnKitConfig.__module__)
    files[entry] += "".join(
        f"\nfrom .{stem} import __doc__ as _{stem}  # noqa: E402, F401\n" for stem in [PUBLIC, *own]
    )
    for module in {cls.__module__ for cls in entries.values()}:
        files[flat_name(module)] += together(entries.values(), module)
    folder = Path(folder)
    model.save_pretrained(folder)
    for stem, text in files.items():
        (folder / f"{stem}.py").write_text(text, encoding="utf-8")
    classes = {"AutoConfig": AttnKitConfig} | entries
    auto_map = {auto: f"{flat_name(cls.__module__)}.{cls.__name__}" for auto, cls in classes.items()}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(config | {"auto_map": auto_map}, indent=2, allow_nan=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    write_card(model, folder, training=training, auto_map=auto_map, overwrite=True)


def together(classes: Iterable[type], module: str) -> str:
    """What has transformers save the files of all heads along with those of one, as it follows imports."""
    others = sorted({cls.__module__ for cls in classes} - {module})
    lines = [f"    from .{flat_name(other)} import __doc__ as _doc  # noqa: F401" for other in others]
    return "\n".join(["\n\nif False:  # never imported, as one needs the other, but saved with this file", *lines, ""])


def own_sources(config: AttnKitConfig) -> dict[str, Path]:
    """The files in which the user's own parts of a configuration are written, by the name they get."""
    files: dict[str, Path] = {}
    for part in all_parts(config):
        if part.__module__.split(".")[0] == PACKAGE:
            continue
        try:
            path = Path(inspect.getfile(part))
        except (OSError, TypeError) as error:
            raise UsageError(f"{part.__qualname__} is written in no file: put it in one, and import it") from error
        if not path.stem.isidentifier():
            raise UsageError(f"{path}: its name is no Python identifier: rename the file to be exported with its code")
        if files.setdefault(f"user_{path.stem}", path) != path:
            other = files[f"user_{path.stem}"]
            raise UsageError(f"{path}: has the name of {other}, and one folder is to hold both: rename one of them")
    return files


def modules_of(classes: Iterable[type]) -> list[str]:
    """The modules of attnkit that some classes need, themselves included."""
    waiting, found = [cls.__module__ for cls in classes], []
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.append(module)
            waiting += [target for node in imports(source_of(module)) for target, _, _ in targets(node)]
    return found


def imports(source: str) -> list[ast.ImportFrom | ast.Import]:
    """The statements of a source that import from attnkit, in order."""
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom | ast.Import)]
    return [node for node in statements if PACKAGE in {name.split(".")[0] for name in sources_of(node)}]


def sources_of(node: ast.ImportFrom | ast.Import) -> list[str]:
    """The modules that a statement names."""
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def targets(node: ast.ImportFrom | ast.Import) -> list[tuple[str, str, str]]:
    """Module, name in it and name given, for each thing that a statement imports. A module itself has no name in it."""
    if isinstance(node, ast.Import):
        return [(alias.name, "", alias.asname or alias.name) for alias in node.names]
    found = []
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        is_module = node.module != PACKAGE and is_module_of(str(node.module), alias.name)
        name = "" if is_module else alias.name
        found.append((inner if is_module else str(node.module), name, alias.asname or alias.name))
    return found


def is_module_of(package: str, name: str) -> bool:
    """Whether a package's name is one of its modules, and not something of the same name that it gives out."""
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None or find_spec(f"{package}.{name}") is None:
        return False
    given = [
        alias.asname or alias.name
        for node in ast.parse(source_of(package)).body
        if isinstance(node, ast.ImportFrom) and node.module != package
        for alias in node.names
    ]
    return name not in given


def rewrite(source: str) -> str:
    """The same source with its imports from attnkit taken from the flat files beside it."""
    return replace(source, [(node, flattened(node)) for node in imports(source)])


def replace(source: str, edits: Sequence[tuple[ast.stmt, list[str]]]) -> str:
    """A source with other statements in the place of some of its own."""
    lines = source.encode().split(b"\n")  # columns of ast are bytes
    for node, statements in sorted(edits, key=lambda edit: (-edit[0].lineno, -edit[0].col_offset)):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        between = b"; " if before.strip() else b"\n" + before
        lines[first : last + 1] = [before + between.join(text.encode() for text in statements) + after]
    return b"\n".join(lines).decode()


def flattened(node: ast.ImportFrom | ast.Import) -> list[str]:
    """The statements that import the same from the flat files."""
    return [statement(*target) for target in targets(node)]


def statement(module: str, name: str, given: str) -> str:
    """One import of a flat file, or of a module that is not attnkit's."""
    if module.split(".")[0] != PACKAGE:
        return f"import {module}" + ("" if module == given else f" as {given}")
    if module == PACKAGE:
        name = name or PACKAGE
    if name:
        return f"from .{flat_name(module)} import {name}" + ("" if name == given else f" as {given}")
    # A module is imported for what it registers: any name in it does.
    return f"from .{flat_name(module)} import __doc__ as _{given}  # noqa: F401"


def rewrite_own(path: Path, *, modules: Container[str]) -> str:
    """A user's own file, rewritten, without what it does when run as a script.

    `modules` are those of attnkit that are exported.
    Raises `UsageError` for a line of it that would not work among the exported files.
    """
    try:
        source = path.read_text(encoding="utf-8-sig")
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise UsageError(f"{path}: cannot be read ({error}): export needs it as Python in UTF-8") from error
    scripts = [node for node in tree.body if is_script(node)]
    nodes = [inner for node in tree.body if node not in scripts for inner in ast.walk(node)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)} | {"*"}
    edits: list[tuple[ast.stmt, list[str]]] = [(node, []) for node in scripts]
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            is_idle = is_of_testing(node) and not used & {given for _, _, given in targets(node)}
            if not is_idle:
                check_import(node, path, modules=modules)
            if PACKAGE in {name.split(".")[0] for name in sources_of(node)}:
                edits.append((node, ["pass"] if is_idle else flattened(node)))
    check_names(nodes, path)
    text = replace(source, edits)
    try:
        ast.parse(text)
    except SyntaxError as error:
        said = "an import of attnkit could not be rewritten: put each on a line of its own"
        raise UsageError(f"{path}:{error.lineno}: {said}") from error
    return text


def is_script(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":` without an `else`."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def is_of_testing(node: ast.ImportFrom | ast.Import) -> bool:
    """Whether a statement takes names from `attnkit.testing`."""
    return isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith(f"{TESTING}.")


def check_import(node: ast.ImportFrom | ast.Import, path: Path, *, modules: Container[str]) -> None:
    """Raise `UsageError` for an import in a user's file that the exported files could not serve."""
    place = f"{path}:{node.lineno}: {ast.unparse(node)}"
    local = "is not installed, and only this file is exported: put what it needs into this file"
    if isinstance(node, ast.ImportFrom) and node.level:
        raise UsageError(f"{place}: {local}")
    for name in sources_of(node):
        if name.split(".")[0] != PACKAGE and not is_installed(name.split(".")[0]):
            raise UsageError(f"{place}: {local}")
    for module, name, given in targets(node):
        if module.split(".")[0] != PACKAGE or (module == PACKAGE and name in {"", *attention.__all__}):
            continue
        if module == PACKAGE:
            raise UsageError(
                f"{place}: {given} is not exported: take only {', '.join(attention.__all__)} from {PACKAGE}"
            )
        if not name:
            raise UsageError(f"{place}: is not exported as a module: import the names needed, with from … import …")
        if module not in modules:
            raise UsageError(
                f'{place}: {module} is not exported: use it under if __name__ == "__main__":, or not at all'
            )


def is_installed(name: str) -> bool:
    """Whether a module is of the standard library or of a package, and not a file of the user's; one that is optional
    and absent counts."""
    if name == "__main__":
        return False
    spec = find_spec(name)
    if spec is None or spec.origin in {"built-in", "frozen"}:
        return True
    places = [Path(place) for place in [spec.origin, *(spec.submodule_search_locations or [])] if place]
    standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    return any(
        {"site-packages", "dist-packages"} & set(place.parts) or any(map(place.is_relative_to, standard))
        for place in places
    )


def check_names(nodes: Sequence[ast.AST], path: Path) -> None:
    """Raise `UsageError` for a name in a user's file that means nothing, or something else, once it is exported."""
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    given = {alias.asname or alias.name for alias in aliases if alias.name == PACKAGE}
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        text = ast.unparse(node)
        owner, _, name = text.rpartition(".")
        if owner in given and name not in attention.__all__:
            said = f"is not exported: use only {', '.join(attention.__all__)} of {PACKAGE}"
        elif text == "__file__":
            said = "is another place once exported, without the files around it: put what it needs into this file"
        elif name in {"__import__", "import_module"}:
            said = "imports what export cannot follow: write an import statement"
        else:
            continue
        raise UsageError(f"{path}:{node.lineno}: {text} {said}")


def flat_name(module: str) -> str:
    """The file of a module: its own name for those that transformers' users look for, else the whole path."""
    if module == PACKAGE:
        return PUBLIC
    last = module.rpartition(".")[2]
    return last if last.endswith(f"_{PACKAGE}") else module.replace(".", "_")


def source_of(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    return Path(spec.origin).read_text(encoding="utf-8")


def public_module() -> str:
    """What `import attnkit` offers to a user's own parts."""
    names = ", ".join(attention.__all__)
    return (
        '"""The public names of attnkit for parts of one\'s own."""\n\n'
        "from types import SimpleNamespace\n\n"
        f"from .{flat_name(attention.__name__)} import {names}\n\n"
        f"{PACKAGE} = SimpleNamespace({', '.join(f'{name}={name}' for name in attention.__all__)})\n"
    )
