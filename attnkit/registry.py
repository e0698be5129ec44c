"""A registry is a dictionary from names to final classes, filled by a decorator."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from attnkit.errors import UsageError, nearest

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(dict[str, type[T]]):
    """The parts of one family by name, e.g. `scorers`; each is a final class on the abstract class of its family.

    `@scorers.register("dot")` adds a class and `scorers["dot"]` returns it. `UsageError` is raised for an unknown name,
    with the nearest known ones, for a name that is taken, and for a class that could not be used.
    """

    def __init__(self, family: str, base: Any) -> None:
        super().__init__()
        self.family = family
        self.base = base

    def register(self, name: str) -> Callable[[C], C]:
        if not isinstance(name, str):
            raise UsageError(f'a {self.family} is registered under a name: write register("name") above its class')

        def add(cls: C) -> C:
            if name in self:
                raise UsageError(f"{self.family} {name!r} is already registered as {self[name].__qualname__}")
            if problem := self.unfit(cls):
                raise UsageError(f"{self.family} {name!r}: {problem}")
            self[name] = cls
            return cls

        return add

    def unfit(self, cls: type) -> str | None:
        """Why a class is no part of the family that can be built, None if it is one."""
        base, named = self.base, self.base.__qualname__
        if not (isinstance(cls, type) and issubclass(cls, base)):
            return f"{cls!r} is no {named}: write it as a class with {named} as its base"
        if inspect.isabstract(cls):
            methods = ", ".join(sorted(vars(cls)["__abstractmethods__"]))
            return f"{cls.__qualname__} does not define what every {named} does: {methods}"
        parameters = inspect.signature(base).parameters.values()
        words = [None for it in parameters if it.kind is it.POSITIONAL_OR_KEYWORD]
        keys = {it.name: None for it in parameters if it.kind is it.KEYWORD_ONLY}
        try:
            inspect.signature(cls).bind_partial(*words, **keys)
        except TypeError as error:
            return f"{cls.__qualname__}.__init__ {error}: let it take what that of {named} takes, and hand it on"
        return None

    def __repr__(self) -> str:
        """Each name with the first sentence of what its class says of itself."""
        docs = {name: " ".join((cls.__doc__ or "").partition("\n\n")[0].split()) for name, cls in self.items()}
        said = {name: doc.partition(". ")[0].rstrip(".:") for name, doc in docs.items()}
        return "\n".join(
            [f"{self.family}:", *(f"  {name:<{max(map(len, said))}}  {line}" for name, line in said.items())]
        )

    def __missing__(self, name: str) -> type[T]:
        raise UsageError(
            f"unknown {self.family} {name!r}: {nearest(name, self)}; "
            "a part of your own needs its file in imports, or in Python an import"
        )
