"""FLOPs divided into parameters and tokens: what follows from one or two of the quantities that a plan is given."""

import math
from dataclasses import dataclass

from attnkit.errors import UsageError
from attnkit.scaling.laws import FLOPS_PER_PRODUCT, AnyLaw
from attnkit.scaling.shapes import Rounding

MOST = 1e20  # parameters and tokens: no one ever had so many
TOLERANCE = 1.001  # what is given more than once may differ by rounding


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a model and its training shall be or reach; null is what the plan decides."""

    parameters: float | None
    tokens: float | None
    flops: float | None
    target_loss: float | None

    @property
    def spends(self) -> bool:
        """Whether the FLOPs are all to be spent: nothing else says when there is enough."""
        return self.flops is not None and self.tokens is None and self.target_loss is None

    @property
    def rounding(self) -> Rounding:
        """Where tokens are given, a larger model would spend more FLOPs than there are, a smaller one miss the loss."""
        if self.tokens is None:
            return "nearest"
        if self.flops is not None:
            return "at_most"
        return "nearest" if self.target_loss is None else "at_least"


def size_and_tokens(law: AnyLaw, asked: Asked, *, reasons: list[str]) -> tuple[float, float]:
    """Parameters and tokens. Raises `UsageError` for too little and for what contradicts itself."""
    try:
        size, tokens = divide(law, asked, reasons=reasons)
    except ArithmeticError as error:  # constants that lie in their limits and not in those of numbers
        raise UsageError(f"law {law.name!r}: its constants are too extreme to plan with: fit more runs") from error
    if not (0 < size <= MOST and 0 < tokens <= MOST):
        raise UsageError(
            f"law {law.name!r} asks for {size:.3g} parameters and {tokens:.3g} tokens, which means nothing: give other "
            "means, or a law whose runs determine its constants"
        )
    check_agreement(law, asked, size=size, tokens=tokens)
    return size, tokens


def tokens_of_model(law: AnyLaw, asked: Asked, *, size: int, tokens: float) -> float:
    """The tokens for a model of exactly this size, where `tokens` were those for the size that was asked for."""
    if asked.spends and asked.flops is not None:
        return asked.flops / FLOPS_PER_PRODUCT / size
    if asked.target_loss is None or asked.tokens is not None:
        return tokens
    needed = reachable(law.tokens_for(asked.target_loss, parameters=size), asked.target_loss, law)
    check_agreement(law, asked, size=size, tokens=needed)
    return needed


def divide(law: AnyLaw, asked: Asked, *, reasons: list[str]) -> tuple[float, float]:
    """Parameters and tokens from one or two of parameters, tokens, FLOPs and loss."""
    parameters, tokens, flops, loss = asked.parameters, asked.tokens, asked.flops, asked.target_loss
    if parameters is not None and tokens is not None:
        return parameters, tokens
    if parameters is not None:
        return parameters, tokens_of(law, parameters, asked, reasons=reasons)
    if tokens is not None:
        return parameters_of(law, tokens, asked, reasons=reasons), tokens
    if loss is not None:
        needed = law.flops_for(loss)
        if flops is not None and needed > flops * TOLERANCE:
            raise UsageError(
                f"target_loss {loss:g} needs {needed:.3g} FLOPs by law {law.name!r}, more than {flops:.3g}"
            )
        reasons.append(f"a loss of {loss:g} needs {needed:.3g} FLOPs at least, by law {law.name!r}")
        flops = needed
    if flops is None:
        raise UsageError("give one or two of parameters, tokens, flops (or a budget with a time) and target_loss")
    reasons.append(f"parameters and tokens: the best division of {flops:.3g} FLOPs by law {law.name!r} ({law.source})")
    return law.best_parameters(flops), law.best_tokens(flops)


def tokens_of(law: AnyLaw, parameters: float, asked: Asked, *, reasons: list[str]) -> float:
    """Those that reach a loss, all that FLOPs pay for, or those for which the model has the best size."""
    if asked.target_loss is not None:
        return reachable(law.tokens_for(asked.target_loss, parameters=parameters), asked.target_loss, law)
    if asked.flops is not None:
        return asked.flops / FLOPS_PER_PRODUCT / parameters
    reasons.append(f"tokens: those for which {parameters:.3g} parameters are the best number, by law {law.name!r}")
    return law.tokens_of_best(parameters)


def parameters_of(law: AnyLaw, tokens: float, asked: Asked, *, reasons: list[str]) -> float:
    """Likewise, the other way round."""
    if asked.flops is not None:
        return asked.flops / FLOPS_PER_PRODUCT / tokens
    if asked.target_loss is not None:
        return reachable(law.parameters_for(asked.target_loss, tokens=tokens), asked.target_loss, law)
    reasons.append(f"parameters: the best number for {tokens:.3g} tokens, by law {law.name!r}")
    return law.best_of_tokens(tokens)


def check_agreement(law: AnyLaw, asked: Asked, *, size: float, tokens: float) -> None:
    """Refuse what is given beyond two quantities, and does not go with them."""
    flops, loss = asked.flops, asked.target_loss
    needed = FLOPS_PER_PRODUCT * size * tokens
    if flops is not None and needed > flops * TOLERANCE:
        raise UsageError(
            f"{size:.3g} parameters on {tokens:.3g} tokens are {needed:.3g} FLOPs, more than the {flops:.3g} that are "
            "given: lower one of them"
        )
    reached = law.loss(size, tokens)
    if loss is not None and reached > loss * TOLERANCE:
        raise UsageError(
            f"{size:.3g} parameters on {tokens:.3g} tokens reach a loss of {reached:.4g} by law {law.name!r}, not "
            f"target_loss {loss:g}: give more of them"
        )


def reachable(amount: float, loss: float, law: AnyLaw) -> float:
    """Refuse what no amount reaches."""
    if math.isinf(amount):
        raise UsageError(f"target_loss {loss:g} is out of reach of what is given, by law {law.name!r}")
    return amount
