"""A registry is a dictionary from names to final classes, filled by a decorator."""

from collections.abc import Callable
from typing import TypeVar

from attnkit.errors import UsageError, nearest

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(dict[str, type[T]]):
    """The parts of one family by name, e.g. `scorers`.

    `@scorers.register("dot")` adds a class and `scorers["dot"]` returns it. An unknown name raises `UsageError` with
    the nearest known names; a name that is taken raises `ValueError`.
    """

    def __init__(self, family: str) -> None:
        super().__init__()
        self.family = family

    def register(self, name: str) -> Callable[[C], C]:
        def add(cls: C) -> C:
            if name in self:
                raise ValueError(f"{self.family} {name!r} is already registered as {self[name].__qualname__}")
            self[name] = cls
            return cls

        return add

    def __missing__(self, name: str) -> type[T]:
        raise UsageError(f"unknown {self.family} {name!r}: {nearest(name, self)}")
