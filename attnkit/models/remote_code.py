"""A model folder that loads where attnkit is not installed: `from_pretrained(folder, trust_remote_code=True)`.

transformers copies the files of such a folder and follows `from .x import y` among them, and nothing else: the package
is laid flat, one file per module, with its imports rewritten.
"""

import ast
import inspect
import json
from collections.abc import Iterable
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
    Raises `UsageError` for a part of the user's that was not written in a file.
    """
    own = own_sources(model.config)
    # A class that no Auto class is for is met where transformers has its XLNet.
    entries = ENTRIES if type(model) in ENTRIES.values() else ENTRIES | {"AutoModelForPreTraining": type(model)}
    files = {flat_name(module): rewrite(source_of(module)) for module in modules_of(entries.values())}
    files |= {stem: rewrite(path.read_text(encoding="utf-8")) for stem, path in own.items()}
    files[PUBLIC] = public_module()
    entry = flat_name(AttnKitConfig.__module__)
    files[entry] += "".join(f"\nfrom .{stem} import __doc__ as _{stem}  # noqa: E402, F401\n" for stem in own)
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
        files[f"user_{path.stem}"] = path
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
    lines = source.splitlines(keepends=True)
    for node in sorted(imports(source), key=lambda node: -node.lineno):
        indent = " " * node.col_offset
        statements = [indent + statement(*target) + "\n" for target in targets(node)]
        lines[node.lineno - 1 : node.end_lineno] = statements
    return "".join(lines)


def statement(module: str, name: str, given: str) -> str:
    """One import of a flat file."""
    if module == PACKAGE:
        name = name or PACKAGE
    if name:
        return f"from .{flat_name(module)} import {name}" + ("" if name == given else f" as {given}")
    # A module is imported for what it registers: any name in it does.
    return f"from .{flat_name(module)} import __doc__ as _{given}  # noqa: F401"


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
