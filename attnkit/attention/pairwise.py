"""Attention in tiles, for scores that are no dot product: memory grows with the number of tokens, not with its square.

Forward keeps a running maximum and sum per query (Milakov 2018, online softmax); backward computes each tile's scores
again (Dao 2022, section 3.1). Tiles have one fixed shape, so that a compiled tile serves all of them; tiles that the
mask leaves empty, as the later half under causality, are skipped.

Shapes: B batch, H heads, Q queries, K keys, M mapped width, V value width, T tile side; n tiles of T cover a side.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attnkit.attention.scorers.base import Scorer, scaled_pair

TILE_SIDE = 128
TILE_ELEMENTS = 2**24  # numbers [B, H, T, T, M] of the largest tile
COMPILED_ELEMENTS = 2**28  # numbers [B, H, Q, K, M] from which compiling the tile pays within a few steps


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the tiles share, besides the tensors that have gradients."""

    scorer: Scorer
    pair: "Pair"
    side: int  # T
    compiled: bool
    causal: bool
    allowed: Tensor | None  # [B or 1, H or 1, Q, K], padded to whole tiles
    occupied: list[list[bool]]  # [tiles of queries][tiles of keys]
    num_keys: int  # the keys after these are padding
    dropout: float
    seed: int

    def tiles(self) -> Iterator[tuple[int, int, slice, slice]]:
        """Numbers and ranges of the tiles that some query and some key may meet in."""
        for row, columns in enumerate(self.occupied):
            for column, occupied in enumerate(columns):
                if occupied:
                    yield row, column, self.part(row), self.part(column)

    def part(self, number: int) -> slice:
        return slice(number * self.side, (number + 1) * self.side)

    def tile_scores(self, query: Tensor, key: Tensor, bias: Tensor | None, rows: slice, columns: slice) -> Tensor:
        """Masked scores [B, H, T, T] of one tile."""
        scores = pair_function(self.pair, self.compiled)(dict(self.scorer.named_parameters()), query, key)
        if bias is not None:
            scores = scores + bias[..., rows, columns]
        lowest = torch.finfo(scores.dtype).min
        if self.allowed is not None:
            scores = scores.masked_fill(~self.allowed[..., rows, columns], lowest)
        key_index = torch.arange(columns.start, columns.stop, device=scores.device)
        if self.causal and columns.stop > rows.start:
            query_index = torch.arange(rows.start, rows.stop, device=scores.device)
            scores = scores.masked_fill(key_index > query_index[:, None], lowest)
        return scores if columns.stop <= self.num_keys else scores.masked_fill(key_index >= self.num_keys, lowest)

    def kept(self, scores: Tensor, row: int, column: int) -> Tensor | float:
        """Dropout's factor for the weights of one tile, the same each time it is asked for."""
        if self.dropout == 0.0:
            return 1.0
        generator = torch.Generator(scores.device).manual_seed(self.seed + row * len(self.occupied[0]) + column)
        kept = torch.rand(scores.shape, generator=generator, device=scores.device) >= self.dropout
        return kept.to(scores.dtype) / (1 - self.dropout)


def tiled_attention(
    scorer: Scorer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    distance_width: int,
    allowed: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    sink: Tensor | None,
    dropout: float,
) -> Tensor:
    """Softmax attention with any pair function: mapped query [B, H, Q, M], mapped key [B, H, K, M], value [B, H, K, V],
    `bias` [B or 1, H or 1, Q, K] of the scores, `sink` [B or 1, H, Q or 1, 1] the score of an extra key without a
    value -> [B, H, Q, V]. `allowed` is True where query and key may meet; `causal` lets none meet a later key."""
    (batch_size, num_heads, num_queries, width), num_keys = query.shape, key.shape[2]
    side = tile_side(batch_size * num_heads * width, max(num_queries, num_keys))
    wide = torch.promote_types(query.dtype, torch.float32)
    pad_queries, pad_keys = -num_queries % side, -num_keys % side
    if allowed is not None:
        allowed = F.pad(allowed.expand(*allowed.shape[:2], num_queries, num_keys), (0, pad_keys, 0, pad_queries))
    tiles = (num_queries + pad_queries) // side, (num_keys + pad_keys) // side
    plan = Plan(
        scorer=scorer,
        pair=Pair(scorer, scaling=scaling, distance_width=distance_width),
        side=side,
        compiled=num_queries * num_keys * batch_size * num_heads * width >= COMPILED_ELEMENTS,
        causal=causal,
        allowed=allowed,
        occupied=occupied_tiles(tiles, allowed, causal=causal, side=side),
        num_keys=num_keys,
        dropout=dropout,
        seed=int(torch.randint(2**40, ())) if dropout else 0,
    )
    output = TiledAttention.apply(
        plan,
        F.pad(query.to(wide), (0, 0, 0, pad_queries)),
        F.pad(key.to(wide), (0, 0, 0, pad_keys)),
        F.pad(value.to(wide), (0, 0, 0, pad_keys)),
        None if bias is None else F.pad(bias.to(wide), (0, pad_keys, 0, pad_queries)),
        None if sink is None else F.pad(sink.to(wide).expand(batch_size, -1, num_queries, 1), (0, 0, 0, pad_queries)),
        *scorer.parameters(),
    )
    return output[:, :, :num_queries].to(value.dtype)


def tile_side(elements_per_pair: int, num_tokens: int) -> int:
    side = TILE_SIDE
    while side > 16 and elements_per_pair * side * side > TILE_ELEMENTS:
        side //= 2
    return min(side, num_tokens)


def occupied_tiles(tiles: tuple[int, int], allowed: Tensor | None, *, causal: bool, side: int) -> list[list[bool]]:
    """Which tiles hold a pair that may meet."""
    rows, columns = tiles
    if allowed is None:
        return [[not causal or column <= row for column in range(columns)] for row in range(rows)]
    grid = allowed.unflatten(-1, (columns, side)).unflatten(-3, (rows, side)).any(-1).any(-2).flatten(0, 1).any(0)
    return (grid.tril() if causal else grid).tolist()


class TiledAttention(torch.autograd.Function):
    """The tiles, forward and backward. All sides are whole numbers of tiles."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sink: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        lowest = torch.finfo(query.dtype).min
        highest = query.new_full((*query.shape[:-1], 1), lowest) if sink is None else sink.clone()
        total = torch.zeros_like(highest) if sink is None else torch.ones_like(highest)
        output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        for row, column, rows, columns in plan.tiles():
            scores = plan.tile_scores(query[:, :, rows], key[:, :, columns], bias, rows, columns)
            before = highest[:, :, rows]
            after = torch.maximum(before, scores.amax(-1, keepdim=True))
            weights = torch.exp(scores - after).masked_fill_(scores == lowest, 0.0)
            shrink = torch.exp(before - after)
            highest[:, :, rows] = after
            total[:, :, rows] = total[:, :, rows] * shrink + weights.sum(-1, keepdim=True)
            gained = (weights * plan.kept(weights, row, column)) @ value[:, :, columns]
            output[:, :, rows] = output[:, :, rows] * shrink + gained
        empty = total == 0
        output = output / total.masked_fill(empty, 1.0)
        # The log-sum-exp of a query without keys is +inf here: all its weights are then 0 in backward.
        log_total = (highest + total.masked_fill(empty, 1.0).log()).masked_fill_(empty, float("inf"))
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, bias, sink, output, log_total)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        query, key, value, bias, sink, output, log_total = ctx.saved_tensors
        parameters = dict(plan.scorer.named_parameters())
        grad_query, grad_key, grad_value = (torch.zeros_like(states) for states in (query, key, value))
        grad_bias = None if bias is None else torch.zeros_like(bias)
        grad_parameters = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        mean_gain = (grad_output * output).sum(-1, keepdim=True)
        pair_gradient = gradient_function(plan.pair, plan.compiled)
        for row, column, rows, columns in plan.tiles():
            part, keys, values = query[:, :, rows], key[:, :, columns], value[:, :, columns]
            scores = plan.tile_scores(part, keys, bias, rows, columns)
            weights = torch.exp(scores - log_total[:, :, rows])
            kept, gain = plan.kept(weights, row, column), grad_output[:, :, rows]
            grad_value[:, :, columns] += (weights * kept).transpose(-1, -2) @ gain
            grad_scores = weights * ((gain @ values.transpose(-1, -2)) * kept - mean_gain[:, :, rows])
            if grad_bias is not None:
                grad_bias[..., rows, columns] += grad_scores.sum_to_size(bias[..., rows, columns].shape)
            gradients, of_query, of_key = pair_gradient(parameters, part, keys, grad_scores)
            grad_query[:, :, rows] += of_query
            grad_key[:, :, columns] += of_key
            for name, gradient in gradients.items():
                grad_parameters[name] += gradient
        grad_sink = None if sink is None else -torch.exp(sink - log_total) * mean_gain
        return None, grad_query, grad_key, grad_value, grad_bias, grad_sink, *grad_parameters.values()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        raise RuntimeError("backend 'pairwise' has no forward-mode derivative: use attn_implementation='eager'")


class Pair(nn.Module):
    """`scaled_pair` of one scorer as a module's forward. Equal pairs differ in the values of their parameters only."""

    def __init__(self, scorer: Scorer, *, scaling: float, distance_width: int) -> None:
        super().__init__()
        self.scorer = scorer
        self.scaling = scaling
        self.distance_width = distance_width
        plain = {key: value for key, value in vars(scorer).items() if isinstance(value, int | float | str | None)}
        plain.pop("training", None)
        shapes = tuple((name, parameter.shape, parameter.dtype) for name, parameter in scorer.named_parameters())
        self.identity = (type(scorer), scaling, distance_width, tuple(sorted(plain.items())), shapes)

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self.identity == other.identity

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return scaled_pair(self.scorer, query, key, scaling=self.scaling, distance_width=self.distance_width)

    def without_values(self) -> "Pair":
        scorer = copy.deepcopy(self.scorer).to("meta").requires_grad_(False)
        return Pair(scorer, scaling=self.scaling, distance_width=self.distance_width)


PairFunction = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]
GradientFunction = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], tuple[dict[str, Tensor], Tensor, Tensor]]


@cache
def pair_function(pair: Pair, compiled: bool) -> PairFunction:
    """The scorer's parameters, mapped query, mapped key -> scores; one function for all layers with equal pairs."""
    template = pair.without_values()

    def scores(parameters: dict[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
        named = {f"scorer.{name}": parameter for name, parameter in parameters.items()}
        return torch.func.functional_call(template, named, (query, key))

    return torch.compile(scores, dynamic=False) if compiled else scores


@cache
def gradient_function(pair: Pair, compiled: bool) -> GradientFunction:
    """The same and the gradient of the scores -> the gradients of parameters, query and key."""
    scores = pair_function(pair, False)

    def gradients(
        parameters: dict[str, Tensor], query: Tensor, key: Tensor, grad_scores: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        _, backward = torch.func.vjp(scores, parameters, query, key)
        return backward(grad_scores)

    return torch.compile(gradients, dynamic=False) if compiled else gradients
