"""From the scores of a query to its weights.

Shapes: B batch, H heads, Q queries, K keys.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from attnkit.errors import UsageError, at_least, more_than
from attnkit.registry import Registry


class Normalizer(nn.Module, ABC):
    """Turns scores [B, H, Q, K] into weights [B, H, Q, K]. A query that may meet no key has weights 0."""

    cancels_query_term: bool
    """Adding a number to all scores of a query leaves its weights as they are."""

    fused: bool = False
    """The weights are those of softmax over the keys and at most one extra key without a value: fused kernels have
    them."""

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    @abstractmethod
    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        """`allowed` is True where query and key may meet and broadcasts to the scores; None lets all pairs meet."""

    def begin(self) -> None:
        """A pass of the layer begins."""

    def leave_out(self, padding: Tensor) -> None:
        """Of the pass that has ended, the last queries [B, N] that are padding are to teach nothing."""

    def sink(self) -> Tensor | None:
        """The scores [H] of an extra key without a value that every query meets; None where there is no such key."""
        return None

    def reset_parameters(self) -> None:
        """Set every parameter and buffer of the class to its initial value."""


normalizers: Registry[Normalizer] = Registry("normalizer", Normalizer)


@normalizers.register("softmax")
class Softmax(Normalizer):
    """weight_ij = exp(s_ij) / Σ_k exp(s_ik), over the keys that query i may meet."""

    cancels_query_term = True
    fused = True

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return masked_softmax(scores, allowed)


@normalizers.register("softmax1")
class Softmax1(Normalizer):
    """weight_ij = exp(s_ij) / (1 + Σ_k exp(s_ik)): a head may abstain (Miller 2023)."""

    cancels_query_term = False
    fused = True

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return softmax_with_sink(scores, allowed, self.sink().to(scores.device))

    def sink(self) -> Tensor:
        return torch.zeros(self.num_heads)


@normalizers.register("sink")
class Sink(Normalizer):
    """weight_ij = exp(s_ij) / (exp(z_h) + Σ_k exp(s_ik)), z per head learned from 0 on (OpenAI 2025, gpt-oss)."""

    cancels_query_term = False
    fused = True

    def __init__(self, *, num_heads: int) -> None:
        super().__init__(num_heads=num_heads)
        self.logit = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return softmax_with_sink(scores, allowed, self.logit)

    def sink(self) -> Tensor:
        return self.logit

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.zeros_(self.logit)


@normalizers.register("sparsemax")
class Sparsemax(Normalizer):
    """weight_i = max(s_i - τ, 0), the point of the simplex nearest to the scores (Martins 2016, section 2.2).

    τ = (Σ_S s - 1) / |S| over the support S, which is found by sorting.
    """

    cancels_query_term = True

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        dtype = scores.dtype
        scores = shift_to_zero(widen(scores), allowed, masked=-2.0)  # nothing below max - 1 is in the support
        with torch.no_grad():
            ordered = scores.sort(dim=-1, descending=True).values
            rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
            inside = 1 + rank * ordered > ordered.cumsum(-1)
            support = scores >= ordered.gather(-1, inside.sum(-1, keepdim=True) - 1)
        threshold = ((scores * support).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
        return keep_allowed((scores - threshold).clamp(min=0), allowed).to(dtype)


@normalizers.register("entmax15")
class Entmax15(Normalizer):
    """weight_i = max(s_i/2 - τ, 0)², between softmax and sparsemax (Peters 2019, α = 1.5).

    With m and v the mean and the sum of squared deviations of s/2 over the support S: τ = m - √((1 - v) / |S|).
    """

    cancels_query_term = True

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        dtype = scores.dtype
        # Nothing below max - 2 is in the support, and what is far below has a square that no number holds.
        scores = shift_to_zero(widen(scores), allowed, masked=-4.0).clamp(min=-4.0) / 2
        with torch.no_grad():
            ordered = scores.sort(dim=-1, descending=True).values
            rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
            mean, square = ordered.cumsum(-1) / rank, ordered.square().cumsum(-1) / rank
            variation = rank * (square - mean.square())
            inside = mean - ((1 - variation) / rank).clamp(min=0).sqrt() <= ordered
            support = scores >= ordered.gather(-1, inside.sum(-1, keepdim=True) - 1)
        size = support.sum(-1, keepdim=True)
        mean = (scores * support).sum(-1, keepdim=True) / size
        variation = ((scores - mean).square() * support).sum(-1, keepdim=True)
        threshold = mean - ((1 - variation) / size).clamp(min=torch.finfo(scores.dtype).tiny).sqrt()
        return keep_allowed((scores - threshold).clamp(min=0).square(), allowed).to(dtype)


@normalizers.register("sigmoid")
class Sigmoid(Normalizer):
    """weight_ij = σ(s_ij - log n_i), n_i the number of keys that query i may meet: keys do not compete (Ramapuram
    2024)."""

    cancels_query_term = False

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        wide = widen(scores)
        if allowed is None:
            return torch.sigmoid(wide - math.log(scores.shape[-1])).to(scores.dtype)
        count = allowed.sum(-1, keepdim=True).clamp(min=1).to(wide.dtype)
        return keep_allowed(torch.sigmoid(wide - count.log()), allowed).to(scores.dtype)


@normalizers.register("hard")
class Hard(Normalizer):
    """All weight on the key with the highest score; the gradient is that of softmax (straight-through, Bengio 2013)."""

    cancels_query_term = True

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return highest(scores, allowed).to(scores.dtype)


@normalizers.register("gumbel")
class Gumbel(Normalizer):
    """In training all weight on one key drawn from softmax, with the gradient of a softmax at temperature τ of the same
    draw (straight-through Gumbel-softmax, Jang 2017); afterwards all weight on the highest score.

    τ = max(final, initial · exp(-decay · t)) after t training passes, not counting those that activation checkpointing
    repeats; t is saved with the model.
    """

    cancels_query_term = True

    def __init__(
        self,
        *,
        initial_temperature: float = 1.0,
        final_temperature: float = 0.5,
        decay: float = 1e-4,
        num_heads: int,
    ) -> None:
        super().__init__(num_heads=num_heads)
        more_than(0, "normalizer", initial_temperature=initial_temperature, final_temperature=final_temperature)
        at_least(0, "normalizer", decay=decay)
        self.initial_temperature = initial_temperature
        self.final_temperature = final_temperature
        self.decay = decay
        self.register_buffer("num_passes", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.zeros_(self.num_passes)

    def temperature(self, num_passes: Tensor) -> Tensor:
        return (self.initial_temperature * torch.exp(-self.decay * num_passes)).clamp(min=self.final_temperature)

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if not self.training:
            return highest(scores, allowed).to(scores.dtype)
        wide = widen(scores)
        noise = -torch.log(torch.empty_like(wide).exponential_().clamp(min=torch.finfo(wide.dtype).tiny))
        repeated = is_repeated_pass()
        temperature = self.temperature(self.num_passes - int(repeated)).to(wide.dtype)
        drawn = highest((wide + noise) / temperature, allowed)
        if not repeated:
            self.num_passes += 1
        return drawn.to(scores.dtype)


@normalizers.register("stochastic")
class Stochastic(Normalizer):
    """In training all weight on one key drawn from softmax, without a gradient of its own: the draw is an action
    (Xu 2015, section 4.1). Afterwards all weight on the highest score.

    The model adds to its loss, over rows with loss L and share w of the labels, and over all draws a of a row's tokens
        Σ w · ((L - b) · mean log p(a) - entropy_bonus · mean H(p)),    b ← 0.9 b + 0.1 mean L
    which is REINFORCE (Williams 1992) with a moving baseline.
    """

    cancels_query_term = True

    def __init__(self, *, entropy_bonus: float = 0.01, num_heads: int) -> None:
        super().__init__(num_heads=num_heads)
        at_least(0, "normalizer", entropy_bonus=entropy_bonus)
        self.entropy_bonus = entropy_bonus
        self.draws: tuple[Draws, ...] = ()  # of the last pass, one of each stream
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("has_baseline", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.zeros_(self.baseline)
        init.zeros_(self.has_baseline)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"draws": ()}  # a copy learns from draws of its own

    def begin(self) -> None:
        if not is_repeated_pass():
            self.draws = ()

    def forward(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if not self.training:
            return highest(scores.detach(), allowed).to(scores.dtype)
        soft = masked_softmax(widen(scores), allowed)
        chances = soft.detach().nan_to_num()  # the loss is NaN where scores are
        nothing = (chances.sum(-1, keepdim=True) == 0).to(chances.dtype)
        choice = torch.multinomial((chances + nothing).flatten(0, 2), 1).view(*soft.shape[:-1], 1)
        logs = soft.clamp(min=torch.finfo(soft.dtype).tiny).log()
        meets = soft.detach().sum(-1) != 0
        drawn = Draws(
            log_probability=logs.gather(-1, choice)[..., 0].masked_fill(~meets, 0).sum(1),
            entropy=-(soft * logs).sum(-1).sum(1),
            number=meets.sum(1),
        )
        if not is_repeated_pass():
            self.draws = (*self.draws, drawn)
        return keep_allowed(torch.zeros_like(scores).scatter(-1, choice, 1.0), allowed)

    def leave_out(self, padding: Tensor) -> None:
        if self.draws:
            real = ~padding[:, -self.draws[0].number.shape[1] :]
            self.draws = (Draws(*(each * real for each in self.draws[0])), *self.draws[1:])

    def policy_loss(self, row_loss: Tensor, share: Tensor | None = None) -> Tensor:
        """The loss that teaches the draws of the last pass, from the losses [B] that followed them, and the shares [B]
        of the rows in it, which are equal where none are given. A row without a finite loss teaches nothing."""
        if not self.draws:
            raise UsageError("normalizer 'stochastic' learns from the draws of the pass before its loss")
        log_probability, entropy, number = (torch.cat(parts, dim=1).sum(1) for parts in zip(*self.draws, strict=True))
        number = number.clamp(min=1)
        counts = row_loss.isfinite()
        reward = row_loss.detach().masked_fill(~counts, 0)
        mean = reward.sum() / counts.sum().clamp(min=1)
        baseline = torch.where(self.has_baseline, self.baseline, mean)
        per_row = len(number) // len(row_loss)  # texts, of which several are read where one is to be chosen
        advantage = (reward - baseline).masked_fill(~counts, 0).repeat_interleave(per_row)
        share = torch.full_like(reward, 1 / len(reward)) if share is None else share
        loss = (advantage * log_probability - self.entropy_bonus * entropy) / number
        with torch.no_grad():
            self.baseline.copy_(torch.where(counts.any(), 0.9 * baseline + 0.1 * mean, self.baseline))
            self.has_baseline.logical_or_(counts.any())
        self.draws = ()
        return (loss * share.repeat_interleave(per_row)).sum() / per_row


class Draws(NamedTuple):
    """What a pass has drawn for each query of a row, summed over heads."""

    log_probability: Tensor  # [B, Q]
    entropy: Tensor  # [B, Q]
    number: Tensor  # [B, Q], of heads in which the query meets a key


def is_repeated_pass() -> bool:
    """Whether this forward pass is one that activation checkpointing computes again, inside of backward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def widen(scores: Tensor) -> Tensor:
    """Scores in fp32 at least: half precision has no digits for sums over many keys."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def mask_scores(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Scores, the lowest finite one where query and key may not meet: -inf would make the gradient of a query without
    keys infinite."""
    return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)


def masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the allowed keys, at least in fp32 inside."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(mask_scores(scores, allowed), dim=-1, dtype=wide)
    return keep_allowed(weights.to(scores.dtype), allowed)


def softmax_with_sink(scores: Tensor, allowed: Tensor | None, sink: Tensor) -> Tensor:
    """Softmax over the allowed keys and one extra key of score `sink` [H], whose weight is dropped."""
    wide = widen(mask_scores(scores, allowed))
    sink = sink.to(wide.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.softmax(torch.cat([wide, sink], dim=-1), dim=-1)[..., :-1]
    return keep_allowed(weights.to(scores.dtype), allowed)


def keep_allowed(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """Weights, 0 where query and key may not meet."""
    return weights if allowed is None else weights * allowed


def shift_to_zero(scores: Tensor, allowed: Tensor | None, *, masked: float) -> Tensor:
    """Scores whose highest allowed one is 0, and `masked` where query and key may not meet."""
    if allowed is None:
        return scores - scores.detach().amax(-1, keepdim=True)
    highest = scores.detach().masked_fill(~allowed, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    return (scores - highest).masked_fill(~allowed, masked)


def highest(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """One-hot at the highest allowed score, with the gradient of softmax, at least in fp32."""
    scores = mask_scores(widen(scores), allowed)
    soft = keep_allowed(torch.softmax(scores, dim=-1), allowed)
    one_hot = F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)
    return keep_allowed(one_hot, allowed) + (soft - soft.detach())
