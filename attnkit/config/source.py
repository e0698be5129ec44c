"""Settings as their source states them: names, types, defaults, and the string beneath each field.

Nothing is imported to read them, so that `attnkit pretrain --help` does not wait for torch.
"""

import ast
import inspect
import json
import re
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parents[1]
WORDS = {"None": "null", "bool": "true or false", "float": "number", "str": "text", "dict": "mapping", "list": "list"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a settings class, in the words of its source."""

    hint: str
    default: str
    doc: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A settings class: what it is for, its fields, and the settings classes that it gathers as sections."""

    doc: str
    fields: dict[str, Setting] = field(default_factory=dict)
    sections: dict[str, "Settings"] = field(default_factory=dict)


def read_settings(module: str, name: str) -> Settings:
    """The settings class `name` of a module of attnkit, with what it inherits from classes of attnkit."""
    cls, home = resolve(module, ast.Name(name))
    assert isinstance(cls, ast.ClassDef)
    settings = Settings(doc=ast.get_docstring(cls) or "")
    for declared, below in zip(cls.body, [*cls.body[1:], None], strict=True):
        if not isinstance(declared, ast.AnnAssign) or not isinstance(declared.target, ast.Name):
            continue
        hint, _ = resolve(home, declared.annotation)
        if isinstance(hint, ast.ClassDef):
            settings.sections[declared.target.id] = read_settings(home, ast.unparse(declared.annotation))
        else:
            settings.fields[declared.target.id] = Setting(
                hint=words_of(hint, home),
                default=default_of(resolve(home, declared.value)[0]) if declared.value else "",
                doc=string_of(below),
            )
    for base in cls.bases:
        if isinstance(resolve(home, base)[0], ast.ClassDef):
            inherited = read_settings(home, ast.unparse(base))
            settings = replace(
                settings,
                doc=f"{settings.doc}\n\n{inherited.doc}",
                fields={**inherited.fields, **settings.fields},  # what a class says anew is its own
            )
    return settings


@cache
def tree_of(module: str) -> ast.Module:
    """The syntax of a module of attnkit."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def find(module: str, name: str) -> tuple[ast.AST, str] | None:
    """What a name of attnkit means in a module: a class or an assigned value, and the module where that stands."""
    for node in ast.walk(tree_of(module)):
        match node:
            case ast.ClassDef() if node.name == name:
                return node, module
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                return node.value, module
            case ast.ImportFrom(module=str(origin)) if origin.startswith("attnkit."):
                if any(alias.name == name for alias in node.names):
                    return find(origin, name)
    return None


def resolve(module: str, expression: ast.expr) -> tuple[ast.AST, str]:
    """What an expression stands for if it is a name of attnkit; else itself."""
    found = find(module, expression.id) if isinstance(expression, ast.Name) else None
    return found or (expression, module)


def words_of(hint: ast.AST, module: str) -> str:
    """A type of a module in the words in which errors speak of it: `text or list of text`, `cosine or linear`."""
    match hint:
        case ast.Name():
            meant, home = resolve(module, hint)
            if meant is not hint:
                return words_of(meant, home)
        case ast.BinOp(left=left, right=right):
            return " or ".join(dict.fromkeys([words_of(left, module), words_of(right, module)]))
        case ast.Subscript(value=ast.Name(id="Literal"), slice=names):
            return " or ".join(default_of(name) for name in (names.elts if isinstance(names, ast.Tuple) else [names]))
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return f"list of {words_of(inner, module)}"
        case ast.Subscript(value=ast.Name(id="dict")):
            return "mapping"
    name = ast.unparse(hint)
    return WORDS.get(name, name)


def registered(family: str) -> list[str]:
    """The names of the parts of attnkit in a registry, e.g. `scorers`, in alphabetical order."""
    decorator = re.compile(rf'^@{family}\.register\("(\w+)"\)', flags=re.MULTILINE)
    return sorted(
        name for path in PACKAGE.rglob("*.py") for name in decorator.findall(path.read_text(encoding="utf-8"))
    )


def string_of(statement: ast.stmt | None) -> str:
    """The text of a statement that is a string, on one line; nothing of any other."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(inspect.cleandoc(str(statement.value.value)).split())
    return ""


def default_of(value: ast.AST) -> str:
    """A default as a config would write it."""
    match value:
        case ast.Call(func=ast.Name(id="field"), keywords=[ast.keyword(arg="default_factory", value=factory)]):
            return {"list": "[]", "dict": "{}"}[ast.unparse(factory)]
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=None | bool() as constant):
            return json.dumps(constant)
    return ast.unparse(value)
