"""Scaling laws: the loss that N parameters reach on D tokens, and how a number of FLOPs is best divided.

L(N, D) = E + A / N^α + B / D^β, in nats per token. With C = 6·N·D the best N is (αA / βB)^(1/(α+β)) · (C/6)^(β/(α+β)).
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnkit.errors import UsageError, check_number, nearest

CONSTANTS = ("E", "A", "B", "alpha", "beta")
FLOPS_PER_PRODUCT = 6  # C = 6·N·D (Kaplan 2020, section 2.1)
MOST_FLOPS = 1e60
LIMITS = {
    "E": (0.0, 150.0),
    "A": (1e-9, 1e18),
    "B": (1e-9, 1e18),
    "alpha": (1e-3, 3.0),
    "beta": (1e-3, 3.0),
    "smallest": (1.0, 1e18),
    "most_flops": (1.0, MOST_FLOPS),
}
"""Between what the numbers in a law's file may lie; a fit looks within them."""
SMALLEST = 4.4e7  # parameters of the smallest model of the published laws (Hoffmann 2022, table A9)


class AnyLaw(ABC):
    """The loss of N parameters on D tokens, and what follows from it."""

    name: str
    source: str
    smallest: float
    most_flops: float
    undetermined: tuple[str, ...]

    @abstractmethod
    def loss(self, parameters: float, tokens: float) -> float:
        """Nats per token."""

    @abstractmethod
    def best_parameters(self, flops: float) -> float:
        """The N of the lowest loss at 6·N·D = `flops`."""

    @abstractmethod
    def best_of_tokens(self, tokens: float) -> float:
        """The N for which D tokens are the best number."""

    @abstractmethod
    def tokens_for(self, loss: float, *, parameters: float) -> float:
        """The D at which N parameters reach a loss; infinite where no number of tokens is enough."""

    @abstractmethod
    def parameters_for(self, loss: float, *, tokens: float) -> float:
        """The N that reaches a loss on D tokens; infinite where none does."""

    def best_tokens(self, flops: float) -> float:
        """The D of the lowest loss at 6·N·D = `flops`."""
        return flops / FLOPS_PER_PRODUCT / self.best_parameters(flops)

    def tokens_of_best(self, parameters: float) -> float:
        """The D for which N parameters are the best number."""
        return self.best_tokens(least(lambda flops: self.best_parameters(flops) >= parameters, 1.0, MOST_FLOPS))

    def flops_for(self, loss: float) -> float:
        """The fewest FLOPs that reach a loss. Raises `UsageError` where none do."""

        def reached(flops: float) -> bool:
            return self.loss(self.best_parameters(flops), self.best_tokens(flops)) <= loss

        if not reached(MOST_FLOPS):
            lowest = self.loss(self.best_parameters(MOST_FLOPS), self.best_tokens(MOST_FLOPS))
            raise UsageError(
                f"target_loss {loss:g} is not above {lowest:g}, the loss that law {self.name!r} never reaches"
            )
        return least(reached, 1.0, MOST_FLOPS)


def least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least number for which something holds that holds for all greater ones, by halving."""
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclass(frozen=True, kw_only=True)
class Law(AnyLaw):
    """A sum of three terms: of the text itself, of too few parameters and of too few tokens."""

    name: str
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    source: str
    smallest: float = SMALLEST
    """Parameters of the smallest model that it was fitted to."""
    most_flops: float = math.inf
    """6·N·D of the largest run, where the law is a fit."""
    undetermined: tuple[str, ...] = ()
    """Constants that its runs leave open."""

    def loss(self, parameters: float, tokens: float) -> float:
        """Nats per token."""
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    def best_parameters(self, flops: float) -> float:
        """The N of the lowest loss at 6·N·D = `flops`."""
        factor = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return factor * (flops / FLOPS_PER_PRODUCT) ** (self.beta / (self.alpha + self.beta))

    def best_of_tokens(self, tokens: float) -> float:
        """The N for which D tokens are the best number: αA / N^α = βB / D^β."""
        return float((self.alpha * self.A / (self.beta * self.B) * tokens**self.beta) ** (1 / self.alpha))

    def tokens_for(self, loss: float, *, parameters: float) -> float:
        """The D at which N parameters reach a loss; infinite where no number of tokens is enough."""
        rest = loss - self.E - self.A * parameters**-self.alpha
        return (self.B / rest) ** (1 / self.beta) if rest > 0 else math.inf

    def parameters_for(self, loss: float, *, tokens: float) -> float:
        """The N that reaches a loss on D tokens; infinite where none does."""
        rest = loss - self.E - self.B * tokens**-self.beta
        return (self.A / rest) ** (1 / self.alpha) if rest > 0 else math.inf


HOFFMANN_SOURCE = "Hoffmann 2022 (arXiv 2203.15556), section 3.3 and appendix D.3"
LAWS = {
    law.name: law
    for law in (
        Law(
            name="epoch", E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658,
            source="Besiroglu 2024 (arXiv 2404.10102), the replication of Hoffmann 2022 by Epoch AI",
        ),
        Law(
            name="hoffmann", E=1.6934, A=406.4, B=410.7, alpha=0.33917, beta=0.28491,
            source=f"{HOFFMANN_SOURCE}, exponents as in the sources of the paper",
        ),
        Law(
            name="hoffmann_rounded", E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28,
            source=f"{HOFFMANN_SOURCE}, exponents as printed: two digits are too few to extrapolate with",
        ),
    )
}  # fmt: skip


def find_law(name: str) -> Law:
    """A law by name, or the one in a file of `attnkit scale fit --output`."""
    if name in LAWS:
        return LAWS[name]
    if not name.endswith(".json"):
        raise UsageError(f"unknown law {name!r}: {nearest(name, LAWS)}, or the .json file of a fit")
    try:
        values = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
        numbers = {key: float(values[key]) for key in LIMITS}
        if not isinstance(values["name"], str):
            raise TypeError("a name is a text")
        undetermined = tuple(map(str, values["undetermined"]))
        law = Law(name=str(values["name"]), source=str(values["source"]), undetermined=undetermined, **numbers)
    except OSError as error:
        raise UsageError(f"law {name}: {error.strerror}: give the file of a fit, or a name of {list(LAWS)}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"law {name}: is no file of `attnkit scale fit --output`") from error
    for key, (least, most) in LIMITS.items():
        check_number(f"law {name}: {key}", vars(law)[key], least=least, most=most)
    return law


def kaplan_loss(parameters: float, tokens: float) -> float:
    """L = ((N_c/N)^(α_N/α_D) + D_c/D)^α_D, N without embeddings (Kaplan 2020, arXiv 2001.08361, eq. 1.5)."""
    exponents = {"parameters": 0.076, "tokens": 0.095}
    model = (8.8e13 / parameters) ** (exponents["parameters"] / exponents["tokens"])
    return (model + 5.4e13 / tokens) ** exponents["tokens"]


def kaplan_loss_of_compute(flops: float) -> float:
    """L = (C_c/C)^α_C of the best use of C, C_c 3.1e8 PF-days (Kaplan 2020, eq. 1.3)."""
    return (3.1e8 * 8.64e19 / flops) ** 0.050 if flops > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Repeated(AnyLaw):
    """A law where no more than `unique_tokens` are different: others are read again, and are worth less."""

    law: Law
    unique_tokens: float

    def __post_init__(self) -> None:
        for name in ("name", "smallest", "most_flops", "undetermined"):
            object.__setattr__(self, name, vars(self.law)[name])
        object.__setattr__(self, "source", f"{self.law.source}; repeated text by Muennighoff 2023")

    def loss(self, parameters: float, tokens: float) -> float:
        """`repeated_loss`."""
        return repeated_loss(self.law, parameters=parameters, tokens=tokens, unique_tokens=self.unique_tokens)

    def best_parameters(self, flops: float) -> float:
        """Found by comparing thirds, since the loss has one minimum where text is repeated."""
        if self.law.best_tokens(flops) <= self.unique_tokens:
            return self.law.best_parameters(flops)
        low, high = 1e-9, flops / FLOPS_PER_PRODUCT / self.unique_tokens
        while high / low > 1 + 1e-9:
            third = (high / low) ** (1 / 3)
            smaller, larger = (
                self.loss(size, flops / FLOPS_PER_PRODUCT / size) for size in (low * third, high / third)
            )
            low, high = (low, high / third) if smaller < larger else (low * third, high)
        return high

    def best_of_tokens(self, tokens: float) -> float:
        """By halving: more FLOPs are more tokens."""
        return self.best_parameters(least(lambda flops: self.best_tokens(flops) >= tokens, 1.0, MOST_FLOPS))

    def tokens_for(self, loss: float, *, parameters: float) -> float:
        """By halving: more tokens never hurt."""
        if self.loss(parameters, MOST_FLOPS) > loss:
            return math.inf
        return least(lambda tokens: self.loss(parameters, tokens) <= loss, 1.0, MOST_FLOPS)

    def parameters_for(self, loss: float, *, tokens: float) -> float:
        """Likewise."""
        if self.loss(MOST_FLOPS, tokens) > loss:
            return math.inf
        return least(lambda parameters: self.loss(parameters, tokens) <= loss, 1.0, MOST_FLOPS)


def repeated_loss(law: Law, *, parameters: float, tokens: float, unique_tokens: float) -> float:
    """The loss where `unique_tokens` U are seen tokens/U times (Muennighoff 2023, arXiv 2305.16264, eq. 5 and 6).

    Tokens count as D' = U + U·R*·(1 - e^(-R/R*)) with R = D/U - 1 and R* = 15.39, and parameters likewise with 5.31
    beyond those that are best for U tokens.
    """
    if not all(0 < given < math.inf for given in (parameters, tokens, unique_tokens)):
        raise UsageError("parameters, tokens and unique_tokens must be more than 0 and finite")
    if tokens <= unique_tokens:
        return law.loss(parameters, tokens)
    base = law.best_of_tokens(unique_tokens)
    seen = saturate(tokens, unique_tokens, limit=15.39)
    used = parameters if parameters <= base else saturate(parameters, base, limit=5.31)
    return law.loss(used, seen)


def saturate(amount: float, base: float, *, limit: float) -> float:
    """What an amount is worth where everything beyond `base` is a repetition."""
    return base + base * limit * (1 - math.exp(-(amount / base - 1) / limit))
