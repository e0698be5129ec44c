"""The matrix products of one attention layer, forward and backward.

Shapes: B batch, Q queries, K keys, H query heads, G key-value heads, D head width, M mapped width. A product of [Q, M]
and [M, K] is 2·Q·M·K FLOPs. Backward multiplies once more for each factor that wants a gradient: a scorer that ignores
the query leaves its projection without one.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attnkit.attention import Normalizer, PairwiseScorer, Pattern, Position, Scorer
from attnkit.attention.backends import TILE_ELEMENTS
from attnkit.attention.patterns import WeighingPattern
from attnkit.scaling.parts import Cost, cost_of, num_parameters, places
from attnkit.scaling.subject import FilledConfig


@dataclass(frozen=True, kw_only=True)
class Work:
    """FLOPs of one component."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(forward=self.forward + other.forward, backward=self.backward + other.backward)

    def __mul__(self, factor: int) -> "Work":
        return Work(forward=self.forward * factor, backward=self.backward * factor)

    @property
    def total(self) -> int:
        return self.forward + self.backward


def product(rows: int, inner: int, columns: int, *, gradients: int = 2) -> Work:
    """One matrix product, and backward one for each factor that wants a gradient."""
    return Work(forward=2 * rows * inner * columns, backward=gradients * 2 * rows * inner * columns)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One attention layer and what it is given. `pairs` of one head are computed, of `queries` · `keys`."""

    config: FilledConfig
    scorer: Scorer
    normalizer: Normalizer
    pattern: Pattern
    position: Position
    sharing: str
    batch: int
    queries: int
    keys: int
    new_keys: int  # those that are projected and mapped here
    held_keys: int  # those that come from a cache
    past: int
    pairs: int
    shared_bias: bool  # a term of the score that the layers share and learn
    targets: int = 0  # queries of a second stream, which meet all keys
    is_last: bool = False  # no block follows

    def work(self) -> dict[str, Work]:
        """The FLOPs per component; "pairs" are the element-wise operations of a pairwise scorer, no matrix products."""
        own = self.work_of_stream()
        if not self.targets:
            return own
        if self.is_last:
            own = self.keys_only(own)
        second = replace(self, queries=self.targets, pairs=self.targets * self.keys, new_keys=0)
        return {name: own[name] + work for name, work in second.work_of_stream().items()}

    def keys_only(self, own: dict[str, Work]) -> dict[str, Work]:
        """After the last block no one reads the first stream: only its keys and values get a gradient."""
        _, key, _, of_distance, *_ = self.map_costs()
        backward = {"scorer": key.backward, "position": of_distance.backward}
        size = (
            self.batch * self.new_keys,
            self.config.hidden_size,
            self.config.num_key_value_heads * self.config.head_dim,
        )
        num_maps = 1 if self.sharing in ("key_value", "all") else 2
        backward["projections"] = (product(*size) * num_maps).backward
        return {name: Work(forward=work.forward, backward=backward.get(name, 0)) for name, work in own.items()}

    def work_of_stream(self) -> dict[str, Work]:
        """The same of one stream of queries."""
        config, rows = self.config, self.batch * self.queries
        flows = self.score_gets_gradient
        costs = self.map_costs()
        query, key, distance, of_distance, term, window = costs
        query_reached = flows and (query.reaches_input or distance.reaches_input or term.reaches_input)
        query_reached = query_reached or window.reaches_input
        key_reached = flows and key.reaches_input
        scores, pairs, score_wants = self.score_work(costs)
        weights_want = (flows and score_wants) or num_parameters(self.normalizer) > 0 or window.wants_gradient
        heads = config.num_attention_heads
        values = product(self.batch * heads * self.pairs, 1, config.head_dim, gradients=1 + weights_want)
        maps = [query, key, term]
        return {
            "projections": self.projection_work(rows, query_reached=query_reached, key_reached=key_reached),
            "scorer": sum((as_work(cost, gradient=flows) for cost in maps), start=Work()),
            "position": as_work(distance, gradient=flows) + as_work(of_distance, gradient=flows),
            "pattern": as_work(window, gradient=True),
            "scores": scores,
            "values": values,
            "pairs": pairs,
        }

    @property
    def score_gets_gradient(self) -> bool:
        """The normalizer passes the gradient of the weights on to the scores."""
        heads = self.config.num_attention_heads
        return cost_of(lambda scores: self.normalizer.forward(scores, None), 1, heads, 2, 2).reaches_input

    def map_costs(self) -> tuple[Cost, ...]:
        """Maps of query and key, the distance's part of both, the query term and the window."""
        heads, groups, width = (
            self.config.num_attention_heads,
            self.config.num_key_value_heads,
            self.config.head_dim,
        )
        at, of_query = places(self.past, self.queries), (self.batch, heads, self.queries, width)
        num_keys = self.new_keys or 1  # one of them shows what all are like
        key_places, of_key = places(self.keys - num_keys, num_keys), (self.batch, groups, num_keys, width)
        scorer, position = self.scorer, self.position
        mapped_key = cost_of(lambda it: scorer.widen_key(scorer.map_key(it, key_places), key_places), *of_key)
        distance_key = cost_of(lambda it: position.map_key(key_places, it.dtype), *of_key)
        if not self.new_keys:
            mapped_key, distance_key = (replace(cost, forward=0, backward=0) for cost in (mapped_key, distance_key))
        if self.held_keys:
            mapped_key = replace(mapped_key, forward=mapped_key.forward + self.reading_work(groups, width))
        term = window = Cost()
        if not self.normalizer.cancels_query_term:
            term = cost_of(lambda it: scorer.query_term(position.content_query(it)), *of_query)
        pattern = self.pattern
        if isinstance(pattern, WeighingPattern):
            counts, at_keys = torch.ones(1, 1, self.queries, 1, device="meta"), places(0, self.keys)
            window = cost_of(lambda it: pattern.window_weight(it, counts, at_keys), *of_query)
        return (
            cost_of(lambda it: scorer.map_query(position.content_query(it), at), *of_query),
            mapped_key,
            cost_of(lambda it: position.map_query(it, at), *of_query),
            distance_key,
            term,
            window,
        )

    def reading_work(self, groups: int, width: int) -> int:
        """FLOPs of the further columns of keys from a cache, or of the map of keys that it could not hold mapped."""
        scorer, of_key, at = self.scorer, (self.batch, groups, self.held_keys), places(0, self.keys)
        mapped = cost_of(lambda it: scorer.map_key(it, places(0, self.held_keys)), *of_key, width)
        if mapped.width <= width:
            return cost_of(lambda it: scorer.widen_key(it, at[:, : self.held_keys]), *of_key, mapped.width).forward
        return cost_of(
            lambda it: scorer.widen_key(scorer.map_key(it, at), at), self.batch, groups, self.keys, width
        ).forward

    def score_work(self, costs: tuple[Cost, ...]) -> tuple[Work, Work, bool]:
        """FLOPs of the scores, element-wise operations of a pairwise scorer, and whether a score wants a gradient."""
        query, key, distance, of_distance, term, _ = costs
        flows, heads = self.score_gets_gradient, self.batch * self.config.num_attention_heads
        bias_wants = self.shared_bias or self.bias_wants_gradient()
        query_wants = query.wants_gradient or distance.wants_gradient
        key_wants = key.wants_gradient or of_distance.wants_gradient
        if not isinstance(self.scorer, PairwiseScorer):
            gradients = (query_wants + key_wants) if flows else 0
            work = product(heads * self.pairs, query.width + distance.width, 1, gradients=gradients)
            return work, Work(), query_wants or key_wants or bias_wants or term.wants_gradient
        products, operations, pair_wants = pair_costs(self.scorer, query=query, key=key, size=self.pair_size)
        wants = pair_wants or query_wants or key_wants
        if not flows:
            products, operations = Work(forward=products.forward), Work(forward=operations.forward)
        elif self.in_tiles(query.width + distance.width) and wants:
            # The tiles are computed again, up to the distance's product, whose result no one needs in backward.
            products += Work(backward=products.forward)
            operations += Work(backward=operations.forward)
        # The distance travels in the columns of query and key, so that it wants a gradient where they do.
        gradients = (query_wants + key_wants) if flows else 0
        products += product(heads * self.queries * self.keys, distance.width, 1, gradients=gradients)
        all_pairs = self.queries * self.keys
        wants = wants or bias_wants or term.wants_gradient
        return share(products, self.pairs, all_pairs), share(operations, self.pairs, all_pairs), wants

    @property
    def pair_size(self) -> tuple[int, int, int, int]:
        return self.batch, self.config.num_attention_heads, self.queries, self.keys

    def in_tiles(self, width: int) -> bool:
        """Whether eager attention computes the pairs in tiles of queries."""
        elements_per_query = self.batch * self.config.num_attention_heads * self.keys * width
        return max(1, TILE_ELEMENTS // max(1, elements_per_query)) < self.queries

    def bias_wants_gradient(self) -> bool:
        bias = self.position.bias(places(self.past, self.queries)[0], places(0, self.keys)[0], torch.float32)
        return bias is not None and bias.requires_grad

    def projection_work(self, rows: int, *, query_reached: bool, key_reached: bool) -> Work:
        """The four linear maps, of which `sharing` uses one for several."""
        config = self.config
        width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
        keys, new_rows = config.num_key_value_heads * config.head_dim, self.batch * self.new_keys
        value_is_key = self.sharing in ("key_value", "all")
        work = product(rows, width, queries, gradients=2 * query_reached)
        work += product(new_rows, width, keys, gradients=2 * (key_reached or value_is_key))
        if not value_is_key:
            work += product(new_rows, width, keys)
        return work + product(rows, queries, width)


def as_work(cost: Cost, *, gradient: bool) -> Work:
    """The cost of a map, backward only where a gradient arrives."""
    return Work(forward=cost.forward, backward=cost.backward if gradient else 0)


def share(work: Work, part: int, whole: int) -> Work:
    """The part of the work that belongs to some of the pairs."""
    return Work(forward=work.forward * part // whole, backward=work.backward * part // whole)


def pair_costs(
    scorer: PairwiseScorer, *, query: Cost, key: Cost, size: tuple[int, int, int, int]
) -> tuple[Work, Work, bool]:
    """Matrix products and element-wise operations of `scorer.pair` on all pairs, and whether it wants a gradient."""
    batch, heads, queries, keys = size
    mapped_query = torch.zeros(batch, heads, queries, query.width, device="meta", requires_grad=query.wants_gradient)
    mapped_key = torch.zeros(batch, heads, keys, key.width, device="meta", requires_grad=key.wants_gradient)
    with torch.enable_grad(), FlopCounterMode(display=False) as products, Operations() as operations:
        scores = scorer.pair(mapped_query, mapped_key)
        forward = products.get_total_flops(), operations.count
        if scores.requires_grad:
            scores.backward(torch.ones_like(scores))
    backward = products.get_total_flops() - forward[0], operations.count - forward[1]
    works = [Work(forward=there, backward=back) for there, back in zip(forward, backward, strict=True)]
    return works[0], works[1], scores.requires_grad


class Operations(TorchDispatchMode):
    """Counts element-wise operations: one for each number that a pointwise function makes or a sum takes in."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.pointwise in func.tags and isinstance(out, Tensor):
            self.count += out.numel()
        elif torch.Tag.reduction in func.tags and args and isinstance(args[0], Tensor):
            self.count += args[0].numel()
        return out
