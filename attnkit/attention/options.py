"""The options of a part: the named arguments of its constructor, with the types that it declares."""

import inspect
from collections.abc import Collection, Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from attnkit.errors import UsageError, nearest
from attnkit.registry import Registry

T = TypeVar("T")

SHAPE = {"num_heads", "num_key_value_heads", "head_dim", "max_positions", "hidden_size", "causal"}
LARGEST = 1e12  # of an option, and the least is its reciprocal: their squares are still numbers in fp32


def build_part(registry: Registry[T], name: str, options: dict[str, Any] | None, **shape: Any) -> T:
    """The part of that name with these options, in a layer of that shape. Raises `UsageError` for an unknown name, and
    in one error for all options that it does not take or whose values it cannot use."""
    if not isinstance(name, str):
        raise UsageError(f"{registry.family} must be a name, not {name!r}")
    if not isinstance(options, dict | None):
        raise UsageError(f"{registry.family}_options must be a dict, not {options!r}")
    part, options = registry[name], options or {}
    problems = [problem for key, value in options.items() for problem in option_problems(part, key, value)]
    if problems:
        raise UsageError(*(f"{registry.family}_options: {problem}" for problem in problems))
    return part(**shape, **options)


def option_problems(part: type, key: str, value: Any, *, besides: Collection[str] = SHAPE) -> Iterator[str]:
    """What is wrong with one option of one part, whose constructor is given the arguments `besides` anyway."""
    hints = option_types(part, besides=besides)
    if key not in hints:
        yield f"{part.__qualname__} takes no option {key!r}: {nearest(key, hints) if hints else 'it takes none'}"
    elif not fits(value, hints[key]):
        allowed = " or ".join(repr(choice) if isinstance(choice, str) else choice for choice in choices(hints[key]))
        yield f"{key} of {part.__qualname__} is {value!r}, not {allowed}"
    elif isinstance(value, int) and abs(value) >= 2**31:
        yield f"{key} of {part.__qualname__} is {value:.3g}: too large to be computed with"
    elif isinstance(value, float) and value != 0 and not 1 / LARGEST <= abs(value) <= LARGEST:
        yield f"{key} of {part.__qualname__} is {value!r}: too near to 0 or infinity to be computed with"


def option_types(part: type, *, besides: Collection[str] = SHAPE) -> dict[str, Any]:
    """The options of a part with their types: the named arguments of its constructor that are not given anyway."""
    parameters = inspect.signature(part).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    try:
        hints = get_type_hints(next(vars(cls)["__init__"] for cls in part.__mro__ if "__init__" in vars(cls)))
    except NameError:
        hints = {}  # names that a file imports for type checkers alone
    return {name: hints.get(name, Any) for name in named if name not in besides}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a YAML file is of the type that a constructor asks for."""
    if hint is Any:
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts
    if origin is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if origin is tuple:  # which YAML writes as a list
        return isinstance(value, list) and len(value) == len(parts) and all(map(fits, value, parts))
    if origin is dict:
        return isinstance(value, dict) and all(all(map(fits, item, parts)) for item in value.items())
    if parts:
        return any(fits(value, part) for part in parts)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def choices(hint: Any) -> list[str]:
    """The values that a type allows, or its name where they are too many."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (list, tuple, dict):
        return [str(hint)]
    return [choice for part in get_args(hint) for choice in choices(part)] or [getattr(hint, "__name__", str(hint))]
