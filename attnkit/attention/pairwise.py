"""Attention in tiles, for scores that are no dot product: memory grows with the number of tokens, not with its square.

Forward keeps a running maximum and sum per query (Milakov 2018, online softmax); backward computes each tile's scores
again (Dao 2022, section 3.1). Tiles have one fixed shape, so that a compiled tile serves all of them; tiles that the
mask leaves empty, as the later half under causality, are skipped.

Shapes: B batch, H heads, Q queries, K keys, M mapped width, V value width, T tile side; n tiles of T cover a side.
"""

import copy
from abc import ABC
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attnkit.attention.scorers.base import Scorer, scaled_pair

TILE_SIDE = 128
TILE_ELEMENTS = 2**24  # numbers [B, H, T, T, M] of the largest tile
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
COMPILED_ELEMENTS = 2**26  # numbers [B, H, Q, K, M] from which compiling the tile pays within a few steps

inside_compiled_tile = ContextVar("inside_compiled_tile", default=False)
"""Whether a tile is being traced that would be compiled, so that nothing [B, H, T, T, M] exists."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the tiles share, besides the tensors that have gradients."""

    forward_tile: Callable[..., tuple[Tensor, Tensor, Tensor]]
    weights_tile: Callable[..., tuple[Tensor, Tensor]]
    pair_tile: Callable[..., tuple[Tensor, Tensor, dict[str, Tensor]]]
    state: dict[str, Tensor]  # parameters and buffers of the scorer
    side: int  # T
    causal: bool
    allowed: Tensor | None  # [B or 1, H or 1, Q, K], padded to whole tiles
    occupied: list[list[bool]]  # [tiles of queries][tiles of keys]
    parameters: list[str]  # of the state, those of which gradients are wanted
    prepare: Callable[[Tensor], Tensor]  # once per token
    num_keys: int  # the keys after these are padding
    dropout: float
    seed: int

    def tiles(self) -> Iterator[tuple[int, int]]:
        """The numbers of the tiles in which some query and some key may meet."""
        for row, columns in enumerate(self.occupied):
            yield from ((row, column) for column, occupied in enumerate(columns) if occupied)

    def part(self, number: int) -> slice:
        """The tokens of a tile."""
        return slice(number * self.side, (number + 1) * self.side)

    def bias(self, bias: Tensor | None, row: int, column: int) -> Tensor | None:
        """The bias of one tile, [B or 1, H or 1, T, T]."""
        return None if bias is None else bias[..., self.part(row), self.part(column)].contiguous()

    def mask(self, row: int, column: int, device: torch.device) -> Tensor | None:
        """Which pairs of a tile may meet, [B or 1, H or 1, T, T]; None where all may."""
        rows, columns = self.part(row), self.part(column)
        masks = [] if self.allowed is None else [self.allowed[..., rows, columns]]
        if self.causal and columns.stop > rows.start:
            masks.append(torch.ones(1, 1, self.side, self.side, dtype=torch.bool, device=device).tril())
        if columns.stop > self.num_keys:
            real = torch.arange(columns.start, columns.stop, device=device) < self.num_keys
            masks.append(real.expand(1, 1, self.side, -1))
        return reduce(torch.logical_and, masks).contiguous() if masks else None

    def kept(self, like: Tensor, row: int, column: int) -> Tensor | None:
        """Dropout's factor for the weights of one tile, the same each time it is asked for."""
        if self.dropout == 0.0:
            return None
        generator = torch.Generator(like.device).manual_seed(self.seed + row * len(self.occupied[0]) + column)
        shape = (*like.shape[1:3], self.side, self.side)
        kept = torch.rand(shape, generator=generator, device=like.device) >= self.dropout
        return kept.to(like.dtype) / (1 - self.dropout)


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
    (batch_size, num_heads, num_queries, width), num_keys, dtype = query.shape, key.shape[2], value.dtype
    side = tile_side(batch_size * num_heads * width, max(num_queries, num_keys))
    wide = torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    pad_queries, pad_keys = -num_queries % side, -num_keys % side
    if allowed is not None:
        allowed = pad(allowed.expand(*allowed.shape[:2], num_queries, num_keys), (0, pad_keys, 0, pad_queries))
    tiles = (num_queries + pad_queries) // side, (num_keys + pad_keys) // side
    compiled = batch_size * num_heads * num_queries * num_keys * width >= COMPILED_ELEMENTS
    of_its_own = is_fake(query) or identity(scorer) is None
    function = traced_function if of_its_own else tile_function
    if not is_fake(query):
        own_columns = slice(width - distance_width)
        scorer = scorer.for_tiles(query.detach()[..., own_columns], key.detach()[..., own_columns])
    forward_tile, weights_tile, pair_tile = (
        function(kind(scorer, scaling=scaling, distance_width=distance_width), compiled)
        for kind in (ForwardTile, WeightsTile, PairTile)
    )
    plan = Plan(
        forward_tile=forward_tile,
        weights_tile=weights_tile,
        pair_tile=pair_tile,
        state=dict(scorer.named_parameters()) | dict(scorer.named_buffers()),
        side=side,
        causal=causal,
        allowed=allowed,
        occupied=occupied_tiles(tiles, allowed, causal=causal, side=side),
        parameters=[name for name, _ in scorer.named_parameters()],
        prepare=partial(prepare, scorer, distance_width=distance_width),
        num_keys=num_keys,
        dropout=dropout,
        seed=0 if dropout == 0.0 or is_fake(query) else int(torch.randint(2**40, ())),
    )
    output = TiledAttention.apply(
        plan,
        pad(query, (0, 0, 0, pad_queries)),
        pad(key, (0, 0, 0, pad_keys)),
        pad(value, (0, 0, 0, pad_keys)),
        None if bias is None else pad(bias.to(wide), (0, pad_keys, 0, pad_queries)),
        None if sink is None else pad(sink.to(wide).expand(batch_size, -1, num_queries, 1), (0, 0, 0, pad_queries)),
        *scorer.parameters(),
    )
    return output[:, :, :num_queries].to(dtype)


def prepare(scorer: Scorer, mapped: Tensor, *, distance_width: int) -> Tensor:
    """What the tiles read of mapped queries or keys, whose last columns are not the scorer's."""
    if distance_width == 0:
        return scorer.prepare(mapped)
    own, distance = mapped.split([mapped.shape[-1] - distance_width, distance_width], dim=-1)
    return torch.cat([scorer.prepare(own), distance], dim=-1)


def pad(states: Tensor, margins: tuple[int, ...]) -> Tensor:
    """Zeros around a tensor; no copy of it where there are none."""
    return F.pad(states, margins) if any(margins) else states


def tile_side(elements_per_pair: int, num_tokens: int) -> int:
    """T: at most TILE_SIDE, smaller where a tile would be too large or there are fewer tokens."""
    side = TILE_SIDE
    while side > 16 and elements_per_pair * side * side > TILE_ELEMENTS:
        side //= 2
    return max(1, min(side, num_tokens))


def occupied_tiles(tiles: tuple[int, int], allowed: Tensor | None, *, causal: bool, side: int) -> list[list[bool]]:
    """Which tiles hold a pair that may meet; where a mask has no values, which tiles may."""
    rows, columns = tiles
    if allowed is None or is_fake(allowed):
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
        *parameters: Tensor,  # those of the plan, named here for autograd
    ) -> Tensor:
        widths = query.shape[-1], key.shape[-1]
        query, key = plan.prepare(query), plan.prepare(key)
        query, key, value = (cut(states, plan.side) for states in (query, key, value))
        lowest = torch.finfo(query.dtype).min
        highest = query.new_full((*query.shape[:-1], 1), lowest) if sink is None else cut(sink, plan.side).clone()
        total = torch.zeros_like(highest) if sink is None else torch.ones_like(highest)
        output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        for row, column in plan.tiles():
            highest[row], total[row], output[row] = plan.forward_tile(
                plan.state,
                query[row],
                key[column],
                value[column],
                plan.bias(bias, row, column),
                plan.mask(row, column, query.device),
                plan.kept(query, row, column),
                highest[row],
                total[row],
                output[row],
            )
        empty = total == 0
        output = output / total.masked_fill(empty, 1.0)
        # The log-sum-exp of a query without keys is +inf here: all its weights are then 0 in backward.
        log_total = (highest + total.masked_fill(empty, 1.0).log()).masked_fill_(empty, float("inf"))
        ctx.plan, ctx.widths = plan, widths
        ctx.save_for_backward(query, key, value, bias, sink, output, log_total)
        return joined(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        plan: Plan = ctx.plan
        query, key, value, bias, sink, output, log_total = ctx.saved_tensors
        grad_query, grad_key = (
            states.new_zeros(*states.shape[:-1], width) for states, width in zip((query, key), ctx.widths, strict=True)
        )
        grad_value = torch.zeros_like(value)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        grad_parameters = {name: torch.zeros_like(plan.state[name]) for name in plan.parameters}
        gain = cut(grad_output, plan.side)
        mean_gain = (gain * output).sum(-1, keepdim=True)
        for row, column in plan.tiles():
            of_scores, of_value = plan.weights_tile(
                plan.state,
                query[row],
                key[column],
                value[column],
                plan.bias(bias, row, column),
                plan.mask(row, column, query.device),
                plan.kept(query, row, column),
                log_total[row],
                gain[row],
                mean_gain[row],
            )
            of_query, of_key, of_parameters = plan.pair_tile(plan.state, query[row], key[column], of_scores)
            grad_query[row] += of_query
            grad_key[column] += of_key
            grad_value[column] += of_value
            if grad_bias is not None:
                part = grad_bias[..., plan.part(row), plan.part(column)]
                part += of_scores.sum_to_size(part.shape)
            for name, gradient in of_parameters.items():
                grad_parameters[name] += gradient
        grad_sink = None if sink is None else joined(-torch.exp(cut(sink, plan.side) - log_total) * mean_gain)
        grads = (joined(grad_query), joined(grad_key), joined(grad_value), grad_bias, grad_sink)
        return None, *grads, *grad_parameters.values()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        raise RuntimeError("backend 'pairwise' has no forward-mode derivative: use attn_implementation='eager'")


def cut(states: Tensor, side: int) -> Tensor:
    """[B, H, n T, ·] -> [n, B, H, T, ·], so that each tile is whole in memory, whatever n is."""
    return states.unflatten(2, (-1, side)).movedim(2, 0).contiguous()


def joined(tiles: Tensor) -> Tensor:
    """[n, B, H, T, ·] -> [B, H, n T, ·]."""
    return tiles.movedim(0, 2).flatten(2, 3)


class Tile(nn.Module, ABC):
    """One tile's arithmetic with one scorer. Equal tiles differ in the values of their parameters only."""

    def __init__(self, scorer: Scorer, *, scaling: float, distance_width: int) -> None:
        super().__init__()
        self.scorer = scorer
        self.scaling = scaling
        self.distance_width = distance_width
        own = identity(scorer)
        self.identity = None if own is None else (type(self), scaling, distance_width, *own)

    def __hash__(self) -> int:
        return id(self) if self.identity is None else hash(self.identity)

    def __eq__(self, other: object) -> bool:
        if self.identity is None:
            return self is other
        return isinstance(other, Tile) and self.identity == other.identity

    def scores(self, query: Tensor, key: Tensor, bias: Tensor | None, mask: Tensor | None) -> Tensor:
        """[B, H, T, T], the lowest finite number where a pair may not meet."""
        scores = scaled_pair(self.scorer.tile, query, key, scaling=self.scaling, distance_width=self.distance_width)
        scores = scores if bias is None else scores + bias
        return scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def identity(scorer: Scorer) -> tuple[Any, ...] | None:
    """What tells scorers apart whose formulas may differ; None where their attributes are no plain values, which may
    change without being another object."""
    parts: list[Any] = []
    for name, module in scorer.named_modules():
        attributes = {key: value for key, value in vars(module).items() if key not in MODULE_ATTRIBUTES}
        if not all(isinstance(value, int | float | str | None) for value in attributes.values()):
            return None
        parts.append((name, type(module), module.training, tuple(sorted(attributes.items()))))
    state = tuple((name, tensor.shape, tensor.dtype) for name, tensor in scorer.state_dict(keep_vars=True).items())
    return (*parts, state)


class ForwardTile(Tile):
    """Running maximum, running sum and running output of some queries, after some more keys."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        kept: Tensor | None,
        highest: Tensor,
        total: Tensor,
        output: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.scores(query, key, bias, mask)
        higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - higher)
        weights = weights if mask is None else weights * mask
        shrink = torch.exp(highest - higher)
        total = total * shrink + weights.sum(-1, keepdim=True)
        return higher, total, output * shrink + (weights if kept is None else weights * kept) @ value


class WeightsTile(Tile):
    """The gradients of one tile's scores and values."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        kept: Tensor | None,
        log_total: Tensor,
        gain: Tensor,
        mean_gain: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weights = torch.exp(self.scores(query, key, bias, mask) - log_total)
        of_weights = gain @ value.transpose(-1, -2)
        dropped, of_weights = (weights, of_weights) if kept is None else (weights * kept, of_weights * kept)
        return weights * (of_weights - mean_gain), dropped.transpose(-1, -2) @ gain


class PairTile(Tile):
    """The gradients of one tile's query, key and parameters, from those of its scores.

    A function of its own: compiled into one with the weights, each of them would be computed again per dimension.
    """

    def forward(self, query: Tensor, key: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        width = self.distance_width
        if width == 0:
            return self.scorer.tile_gradient(query, key, gradient * self.scaling)
        of_query, of_key, of_parameters = self.scorer.tile_gradient(
            query[..., :-width], key[..., :-width], gradient * self.scaling
        )
        of_query = torch.cat([of_query, gradient @ key[..., -width:]], dim=-1)
        return of_query, torch.cat([of_key, gradient.transpose(-1, -2) @ query[..., -width:]], dim=-1), of_parameters


def run_tile(tile: Tile, state: dict[str, Tensor], *tensors: Tensor | None) -> Any:
    """A tile's arithmetic with this state of its scorer."""
    named = {f"scorer.{name}": tensor for name, tensor in state.items()}
    return torch.func.functional_call(tile, named, tensors)


def traced_function(tile: Tile, compiled: bool) -> Callable[..., Any]:
    """The function of tensors without values, on which memory is traced, and of scorers that are not known to stay as
    they are: nothing is compiled, but what a compiled tile would not hold is marked."""

    def run(*arguments: Any) -> Any:
        inside = inside_compiled_tile.set(compiled)
        try:
            return run_tile(tile, *arguments)
        finally:
            inside_compiled_tile.reset(inside)

    return run


@lru_cache(maxsize=64)
def tile_function(tile: Tile, compiled: bool) -> Callable[..., Any]:
    """A function of the scorer's parameters and the tile's tensors; the same one for all layers with equal tiles."""
    scorer = copy.deepcopy(tile.scorer).to("meta").requires_grad_(False)
    template = type(tile)(scorer, scaling=tile.scaling, distance_width=tile.distance_width)

    def run(state: dict[str, Tensor], *tensors: Tensor | None) -> Any:
        return run_tile(template, state, *tensors)

    if not compiled:
        return run
    # The compiler counts its versions of a function by its code, so each tile needs a code of its own.
    run.__code__ = run.__code__.replace(co_name=f"{type(tile).__name__}_{type(scorer).__name__}")
    return torch.compile(run, dynamic=False, options=COMPILER_OPTIONS)


def guards_of_arguments(guards: Any) -> list[bool]:
    """Of what a compiled tile would check each time it is called, what can change: its tensors, and which of them are
    None. The rest is its code and its own copy of a scorer, and takes longer to look at than some tiles to compute."""
    types = ("TENSOR_MATCH", "GLOBAL_STATE", "SHAPE_ENV")
    return [guard.guard_type in types or "tensors" in guard.name for guard in guards]  # `tensors` of `run`


COMPILER_OPTIONS: dict[str, Any] = {
    "guard_filter_fn": guards_of_arguments,
    "realize_reads_threshold": 1000,  # numbers of every pair and dimension must not go through memory
}
