"""What a scorer is: two maps of single tokens and a pair function.

Shapes: B batch, H query heads, G key-value heads (H is a multiple of G), Q queries, K keys, D head width, M mapped
width.
"""

from abc import ABC
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.errors import UsageError
from attnkit.registry import Registry


class Scorer(nn.Module, ABC):
    """A score that is a dot product after a map of each query and each key alone.

    score(q, k) = scale · ⟨map_query(q), [k', key_columns(k')]⟩ + query_term(q),  k' = map_key(k)

    Because the map of a key does not depend on the query, such a score runs on every attention backend and a cache may
    hold mapped keys. What a mapped key, or its position, says by itself belongs in the further columns, which no
    cache holds. The query term moves all scores of a query alike, so softmax cancels it.
    """

    scale: float = 1.0

    knows_order: bool = False
    """The score depends on the positions of query and key, so a position that acts on scores would say it twice."""

    compares: bool = True
    """The score compares query and key. Where it does not, a rotation of both could not tell their distance."""

    gain: float = 1.0
    """How many times the scale of q · k / √d the score has, or starts with."""

    without_gradient: dict[str, str] = {}
    """Parameters that get no gradient under a normalizer that cancels the query term, and why."""

    def __init__(
        self, *, num_heads: int, head_dim: int, max_positions: int, num_key_value_heads: int | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        self.head_dim = head_dim
        self.max_positions = max_positions

    @property
    def max_trained(self) -> int | None:
        """Positions that have parameters of their own; None where the score can be computed at any position."""
        return None

    @classmethod
    def nearest_to_scaled_dot(cls, head_dim: int) -> dict[str, Any]:
        """Options with which the score starts nearest to q · k / √d, where its defaults aim at something else."""
        return {}

    @property
    def is_plain(self) -> bool:
        """Neither queries nor keys are mapped, so that the score is a multiple of their dot product."""
        return type(self).map_query is Scorer.map_query and type(self).map_key is Scorer.map_key

    def map_query(self, query: Tensor, positions: Tensor) -> Tensor:
        """[B, H, Q, D] and positions [B, Q] -> [B, H, Q, M + C]."""
        return query

    def map_key(self, key: Tensor, positions: Tensor) -> Tensor:
        """[B, G, K, D] and positions [B, K] -> [B, G, K, M]. Where M is more than D, a cache holds keys that are not
        mapped, and all of them are mapped for each new token."""
        return key

    def key_columns(self, mapped_key: Tensor, positions: Tensor) -> Tensor | None:
        """[B, G, K, M] and positions [B, K] -> C further columns [B, G, K, C], which the last ones of the mapped query
        multiply."""
        return None

    def widen_key(self, mapped_key: Tensor, positions: Tensor) -> Tensor:
        """[B, G, K, M] and positions [B, K] -> [B, G, K, M + C], with the further columns. A class may define it where
        that is faster."""
        columns = self.key_columns(mapped_key, positions)
        return mapped_key if columns is None else torch.cat([mapped_key, columns], dim=-1)

    def query_term(self, query: Tensor) -> Tensor | None:
        """[B, H, Q, D] -> [B, H, Q, 1], the part of the score that depends on the query only; None where it is zero."""
        return None

    def pair(self, mapped_query: Tensor, mapped_key: Tensor) -> Tensor:
        """[B, H, Q, M + C] and [B, H, K, M + C] -> [B, H, Q, K]."""
        return mapped_query @ mapped_key.transpose(-1, -2)

    def for_tiles(self, mapped_query: Tensor, mapped_key: Tensor) -> "Scorer":
        """The scorer whose `prepare`, `tile` and `tile_gradient` compute these tokens' pairs tile by tile. A class may
        define them where its formula is cheaper than `pair`."""
        return self

    def prepare(self, mapped: Tensor) -> Tensor:
        """What a tile reads of mapped queries or keys, computed once per token: [B, H, N, M] -> [B, H, N, ·]."""
        return mapped

    def tile(self, query: Tensor, key: Tensor) -> Tensor:
        """`pair` of prepared queries and keys, [B, H, Q, K]."""
        return self.pair(query, key)

    def tile_gradient(self, query: Tensor, key: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """From the scores' gradient [B, H, Q, K] those of mapped query, mapped key and the parameters `pair` reads."""
        parameters = dict(self.named_parameters())

        def pair(parameters: dict[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
            named = {f"scorer.{name}": parameter for name, parameter in parameters.items()}
            return torch.func.functional_call(PairModule(self), named, (query, key))

        backward: Any = torch.func.vjp(pair, parameters, query, key)[1]
        gradients = backward(gradient)
        of_parameters, of_query, of_key = gradients
        return of_query, of_key, of_parameters

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> Tensor:
        """The definition: [B, H, Q, D] and [B, G, K, D] -> [B, H, Q, K]. Positions count from 0 if none are given."""
        query_positions = (
            count_positions(query) if query_positions is None else query_positions.reshape(-1, query.shape[2])
        )
        key_positions = count_positions(key) if key_positions is None else key_positions.reshape(-1, key.shape[2])
        mapped_query = self.map_query(query, query_positions)
        mapped_key = self.widen_key(self.map_key(key, key_positions), key_positions)
        score = self.scale * self.pair(mapped_query, repeat_heads(mapped_key, mapped_query.shape[1]))
        query_term = self.query_term(query)
        return score if query_term is None else score + query_term

    def reset_parameters(self) -> None:
        """Set every parameter of the class to its initial value. A scorer with parameters must define it, because a
        model is built without memory for its weights when it is loaded."""
        if next(self.parameters(recurse=False), None) is not None:
            raise UsageError(
                f"{type(self).__qualname__} has parameters but no reset_parameters(): define it, with the functions of "
                "transformers.initialization, and call it at the end of __init__"
            )


class PairwiseScorer(Scorer, ABC):
    """A score that is no dot product of maps. A class of this kind defines `pair`.

    Only the backends `eager` and `pairwise` can compute it.
    """


class PairModule(nn.Module):
    """A scorer's pair function as the forward of a module, which is what torch.func can call with other parameters."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.scorer.pair(query, key)


def scaled_pair(
    pair: Callable[[Tensor, Tensor], Tensor],
    mapped_query: Tensor,
    mapped_key: Tensor,
    *,
    scaling: float,
    distance_width: int,
) -> Tensor:
    """scaling · pair(query, key), plus the product of the last `distance_width` columns of both, in which a position
    says how far they are apart: [B, H, Q, M] and [B, H, K, M] -> [B, H, Q, K]. That product is one of fp32 at least:
    its terms may be as large as a text is long, and their difference small."""
    if distance_width == 0:
        return scaling * pair(mapped_query, mapped_key)
    query, of_query = mapped_query[..., :-distance_width], mapped_query[..., -distance_width:]
    key, of_key = mapped_key[..., :-distance_width], mapped_key[..., -distance_width:]
    wide = torch.promote_types(of_query.dtype, torch.float32)
    return scaling * pair(query, key) + of_query.to(wide) @ of_key.to(wide).transpose(-1, -2)


scorers: Registry[Scorer] = Registry("scorer", Scorer)


def count_positions(states: Tensor) -> Tensor:
    """[..., N, D] -> positions 0 … N-1, [1, N]."""
    return torch.arange(states.shape[-2], device=states.device)[None]


def repeat_heads(states: Tensor, num_heads: int) -> Tensor:
    """[B, G, K, M] -> [B, H, K, M]: each key-value head once for each of its query heads."""
    return states if states.shape[1] == num_heads else states.repeat_interleave(num_heads // states.shape[1], dim=1)
