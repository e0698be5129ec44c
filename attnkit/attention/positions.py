"""Where order enters: added to token embeddings, as a rotation of queries and keys, or as a term of the score.

Shapes: B batch, N tokens, H query heads, G key-value heads, Q queries, K keys.
"""

import math
from abc import ABC
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from attnkit.errors import UsageError, at_least, more_than
from attnkit.registry import Registry


class Position(nn.Module, ABC):
    """One way in which a model knows the order of its tokens. A class of this kind defines one of `embed`, `rotation`,
    `bias`, or both `map_query` and `map_key`."""

    acts_on_scores: bool = False
    """Order enters where query and key meet, by a rotation of both or by a term of the score."""

    needs_comparison: bool = False
    """It works through the comparison of query and key, so a scorer that makes none has no use for it."""

    per_layer: bool = False
    """Each layer has its own; otherwise the layers of a model share one."""

    @property
    def reads_segments(self) -> bool:
        """The mapped key says of which type a token is, which nothing else in a cache does."""
        return False

    def __init__(
        self,
        *,
        hidden_size: int,
        head_dim: int,
        num_heads: int,
        num_key_value_heads: int,
        max_positions: int,
        causal: bool,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.max_positions = max_positions
        self.causal = causal

    @property
    def max_trained(self) -> int | None:
        """Positions that have parameters of their own; None where any position can be computed."""
        return None

    def embed(self, positions: Tensor) -> Tensor | None:
        """[B, N] -> [B, N, hidden_size], added to the token embeddings."""
        return None

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """[B, N] -> cosines and sines [B, 1, N, head_dim] in fp32, applied to queries and keys by `rotate`."""
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Positions [Q] and [K] -> a term of the score [1, H, Q, K], for scores of that dtype."""
        return None

    def content_query(self, query: Tensor) -> Tensor:
        """[B, H, Q, head_dim], the query as the scorer sees it."""
        return query

    def map_query(self, query: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor | None:
        """[B, H, Q, head_dim] -> [B, H, Q, M], whose product with the mapped key is a term of the score.

        `segments` [B, Q] are the token types, for a position that tells them apart.
        """
        return None

    def map_key(self, positions: Tensor, dtype: torch.dtype, segments: Tensor | None = None) -> Tensor | None:
        """[B, K] -> [B or 1, G, K, M]."""
        return None

    def query_term(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        """[B, Q] -> [B, H, Q, 1], at least in fp32, what the mapped query and key leave out, as it is one number for
        all keys. `dtype` is that of the mapped query and key."""
        return None

    def reset_parameters(self) -> None:
        """Set every parameter and buffer of the class to its initial value."""


positions: Registry[Position] = Registry("position", Position)


@positions.register("none")
class NoPosition(Position):
    """The model does not know the order of its tokens, except through a causal mask."""


@positions.register("learned")
class Learned(Position):
    """One learned vector per position (Gehring 2017): embed(i) = P_(i + offset).

    P is [max_positions + offset, hidden_size].
    RoBERTa (Liu 2019) has offset 2: with padding at position -1, row 1 is that of padding.
    """

    def __init__(self, *, offset: int = 0, **shape: Any) -> None:
        super().__init__(**shape)
        at_least(0, "position", offset=offset)
        self.offset = offset
        self.embedding = nn.Embedding(self.max_positions + offset, self.hidden_size)

    @property
    def max_trained(self) -> int:
        return self.max_positions

    def embed(self, positions: Tensor) -> Tensor:
        return self.embedding((positions + self.offset).clamp(min=0))


@positions.register("sinusoidal")
class Sinusoidal(Position):
    """Waves of geometric wavelengths (Vaswani 2017, section 3.5).

    embed(i)[2j] = sin(i / 10000^(2j/d)),  embed(i)[2j+1] = cos(i / 10000^(2j/d)),  d = hidden_size

    `layout` "halves" has all sines before all cosines, as tensor2tensor and Marian do.
    """

    def __init__(self, *, layout: Literal["interleaved", "halves"] = "interleaved", **shape: Any) -> None:
        super().__init__(**shape)
        self.layout = layout

    def embed(self, positions: Tensor) -> Tensor:
        sine, cosine = waves(positions, self.hidden_size)
        if self.layout == "halves":
            return torch.cat([sine, cosine[..., : self.hidden_size // 2]], dim=-1).float()
        return torch.stack([sine, cosine], dim=-1).flatten(-2)[..., : self.hidden_size].float()


TRAINED = "original_max_position_embeddings"
ROPE_OPTIONS: dict[str, dict[str, float | None]] = {
    "yarn": {TRAINED: None, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None},
    "llama3": {TRAINED: None, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
"""What some ways of scaling take besides the factor, with the values where they are not given."""


@positions.register("rope")
class Rope(Position):
    """Rotation of query and key by an angle proportional to their position (Su 2021, section 3.2).

    The score of rotated vectors depends on the distance of their positions. Dimensions j and j + d/2 of a head turn
    together, by the angle i · base^(-2j/d).

    `scaling` names a way to reach beyond the trained length by the given `factor`: "linear" (Chen 2023), "dynamic"
    (NTK, bloc97 2023: it depends on the length of the text, so keys in a cache keep the angles of that at which they
    came), "yarn" (Peng 2023) or "llama3" (Grattafiori 2024). The other options are for the last two, under the names
    of transformers: the trained length (`max_positions` if not given); the turns within it from which an angle is kept
    (`beta_fast`, 32; `high_freq_factor`, 4) and up to which it is divided by the factor (`beta_slow`, 1;
    `low_freq_factor`, 1); the factor of cosines and sines (`attention_factor`, 1 + log(factor) / 10).
    """

    acts_on_scores = True
    needs_comparison = True

    def __init__(
        self,
        *,
        base: float = 10000.0,
        scaling: Literal["default", "linear", "dynamic", "yarn", "llama3"] = "default",
        factor: float = 1.0,
        original_max_position_embeddings: int | None = None,
        beta_fast: float | None = None,
        beta_slow: float | None = None,
        attention_factor: float | None = None,
        low_freq_factor: float | None = None,
        high_freq_factor: float | None = None,
        **shape: Any,
    ) -> None:
        super().__init__(**shape)
        if self.head_dim % 2:
            raise UsageError(f"position 'rope' turns pairs of dimensions, and head_dim {self.head_dim} is odd")
        if scaling == "dynamic" and self.head_dim < 4:
            raise UsageError(f"position 'rope': scaling 'dynamic' needs head_dim of at least 4, not {self.head_dim}")
        more_than(1, "position", base=base)
        at_least(1, "position", factor=factor, original_max_position_embeddings=original_max_position_embeddings)
        more_than(0, "position", attention_factor=attention_factor)
        if scaling == "default" and factor != 1:
            raise UsageError(f"position option factor {factor} is for a scaling, as 'linear', not 'default'")
        self.base = base
        self.scaling = scaling
        self.factor = factor
        self.options = self.complete(
            original_max_position_embeddings=original_max_position_embeddings,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            attention_factor=attention_factor,
            low_freq_factor=low_freq_factor,
            high_freq_factor=high_freq_factor,
        )
        self.register_buffer("frequency", torch.empty(self.head_dim // 2), persistent=False)
        self.reset_parameters()

    def complete(self, **options: float | None) -> dict[str, float | None]:
        """The options of the scaling, with what is not given filled in. Refuses those of another scaling."""
        known = ROPE_OPTIONS.get(self.scaling, {})
        given = {name: value for name, value in options.items() if value is not None}
        for name in given.keys() - known.keys():
            kinds = ", ".join(kind for kind, names in ROPE_OPTIONS.items() if name in names)
            raise UsageError(f"position option {name} is for scaling {kinds}, not {self.scaling!r}")
        complete: dict[str, Any] = known | ({TRAINED: self.max_positions} if known else {}) | given
        for low, high in (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor")):
            if low in complete:
                more_than(0, "position", **{low: complete[low]})
                more_than(complete[low], "position", **{high: complete[high]})
        return complete

    @torch.no_grad()
    def reset_parameters(self) -> None:
        frequency, self.amplitude = self.frequencies(self.max_positions)
        init.copy_(self.frequency, frequency)

    def frequencies(self, num_positions: int | Tensor) -> tuple[Tensor, float]:
        """Angle per position [head_dim / 2] for a text of at least `max_positions`, and a factor on cosines and
        sines."""
        if self.scaling in ("default", "dynamic"):  # by hand, because a compiler cannot read a config
            base: Any = self.base
            if self.scaling == "dynamic":
                stretch = self.factor * num_positions / self.max_positions - (self.factor - 1)
                base = base * stretch ** (self.head_dim / (self.head_dim - 2))
            even = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=self.frequency.device)
            return 1 / base ** (even / self.head_dim), 1.0
        config = PreTrainedConfig()
        config.hidden_size, config.num_attention_heads = self.head_dim, 1
        config.head_dim, config.max_position_embeddings = self.head_dim, self.max_positions
        parameters = {"rope_type": self.scaling, "rope_theta": self.base, "factor": self.factor}
        config.rope_parameters = parameters | self.options
        with torch.device("cpu"):  # these functions move a tensor, which one without memory cannot
            return ROPE_INIT_FUNCTIONS[self.scaling](config, device=torch.device("cpu"))

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        frequency = self.frequency.float()
        if self.scaling == "dynamic":  # beyond the trained length, they depend on how long the text has become
            length = F.pad(positions.flatten(), (1, 0)).max() + 1  # of no tokens too
            longer, _ = self.frequencies(length.clamp(min=self.max_positions))
            frequency = torch.where(length > self.max_positions, longer, frequency)
        angle = positions[:, None, :, None].float() * frequency
        angle = torch.cat([angle, angle], dim=-1)
        return self.amplitude * angle.cos(), self.amplitude * angle.sin()


@positions.register("alibi")
class Alibi(Position):
    """A penalty for distance, of another slope in each head (Press 2022).

    score(i, j) += -m_h |i - j|,  m_h = 2^(-8h/H), h = 1 … H

    In a causal model the term is m_h · j, one product more in the score, and -m_h · i where the normalizer does not
    cancel what is one number for all keys; otherwise it is a table.
    """

    acts_on_scores = True
    per_layer = True

    def slopes(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """m_h [H, 1, 1] with the digits of `dtype`, as fp32 at least."""
        wide = torch.promote_types(dtype, torch.float32)
        heads = torch.arange(1, self.num_heads + 1, dtype=wide, device=device)
        return (2.0 ** (-8.0 / self.num_heads * heads)[:, None, None]).to(dtype).to(wide)

    def map_query(self, query: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor | None:
        if not self.causal:
            return None
        slope = self.slopes(query.dtype, query.device)
        return torch.cat([256 * slope, slope], dim=-1).to(query.dtype).expand(*query.shape[:-1], 2)

    def map_key(self, positions: Tensor, dtype: torch.dtype, segments: Tensor | None = None) -> Tensor | None:
        if not self.causal:
            return None
        # Two columns: half precision holds no position above 256 exactly.
        parts = torch.stack([positions // 256, positions % 256], dim=-1).to(dtype)
        return parts[:, None].expand(-1, self.num_key_value_heads, -1, -1)

    def query_term(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        if not self.causal:
            return None
        return -self.slopes(dtype, positions.device) * positions[:, None, :, None]

    def bias(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        if self.causal:
            return None
        distance = (query_positions[:, None] - key_positions).abs()
        return (-self.slopes(dtype, distance.device) * distance)[None].to(dtype)


@positions.register("t5")
class T5Buckets(Position):
    """A learned number per head and bucket of distance, the same in all layers (Raffel 2020, section 2.1).

    score(i, j) += b_h[bucket(j - i)]; half of the buckets hold one distance each, the others grow logarithmically up to
    `max_distance`. A causal model has buckets for the past only.
    """

    acts_on_scores = True

    def __init__(self, *, num_buckets: int = 32, max_distance: int = 128, **shape: Any) -> None:
        super().__init__(**shape)
        exact = num_buckets // 2 if self.causal else num_buckets // 4
        if num_buckets < 4 or max_distance <= exact:
            raise UsageError(
                "position 't5' needs num_buckets of at least 4, and max_distance of more than the distances that have "
                f"a bucket each, {exact} of {num_buckets} buckets here, not {max_distance}"
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.embedding = nn.Embedding(num_buckets, self.num_heads)

    def bias(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> Tensor:
        bucket = self.bucket(key_positions - query_positions[:, None])  # [Q, K]
        return self.embedding(bucket).permute(2, 0, 1)[None].to(dtype)

    def bucket(self, offset: Tensor) -> Tensor:
        """The bucket of each offset j - i."""
        num_buckets, first = self.num_buckets, torch.zeros_like(offset)
        if self.causal:
            distance = (-offset).clamp(min=0)
        else:
            num_buckets //= 2
            distance, first = offset.abs(), (offset > 0).long() * num_buckets
        exact = num_buckets // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
        return first + torch.where(distance < exact, distance, far)


@positions.register("transformer_xl")
class TransformerXL(Position):
    """The query meets the distance to each key (Dai 2019, section 3.3).

    score(i, j) = score(q_i + u, k_j) + (q_i + v) · W_R R_(i-j) / √d,  R_n = [sin(nω), cos(nω)]

    with u, v [d] per head, W_R [width, d] per head and ω the frequencies of the sinusoids of `width`, the head width
    where it is not given. As R_(i-j) is R_j turned by i, the term is a product of a map of the query at i and R_j.
    W_R starts from N(0, 1/width), u and v at 0.

    With `segments` kinds of token types, which side of them a key is on counts too (Yang 2019, section 2.5):

    score(i, j) += (q_i + t) · e / √d,  e = e_same or e_other per head, as the types of i and j are the same or not

    Without token types that term is 0. t starts at 0, both e from N(0, 1/d).
    """

    acts_on_scores = True
    needs_comparison = True
    per_layer = True

    def __init__(self, *, width: int | None = None, segments: int = 0, **shape: Any) -> None:
        super().__init__(**shape)
        at_least(2, "position", width=width)
        at_least(0, "position", segments=segments)
        self.segments = segments
        self.width = self.head_dim + self.head_dim % 2 if width is None else width
        if self.width % 2:
            raise UsageError(f"position 'transformer_xl' has pairs of waves, and width {self.width} is odd")
        self.content_prior = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.distance_prior = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
        self.weight = nn.Parameter(torch.empty(self.num_heads, self.width, self.head_dim))
        if segments:
            self.segment_prior = nn.Parameter(torch.empty(self.num_heads, self.head_dim))
            self.segment_weight = nn.Parameter(torch.empty(2, self.num_heads, self.head_dim))  # same, other
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        init.zeros_(self.content_prior)
        init.zeros_(self.distance_prior)
        init.normal_(self.weight, std=self.width**-0.5)
        if self.segments:
            init.zeros_(self.segment_prior)
            init.normal_(self.segment_weight, std=self.head_dim**-0.5)

    @property
    def reads_segments(self) -> bool:
        return self.segments > 0

    def content_query(self, query: Tensor) -> Tensor:
        return query + self.content_prior[:, None]

    def map_query(self, query: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        weight = self.weight.transpose(-1, -2) * self.head_dim**-0.5
        wish = query @ weight + self.distance_prior[:, None] @ weight
        of_sine, of_cosine = wish.chunk(2, dim=-1)
        sine, cosine = self.waves(positions)
        # sin((i-j)ω) = sin(iω)cos(jω) - cos(iω)sin(jω) and cos((i-j)ω) = cos(iω)cos(jω) + sin(iω)sin(jω)
        on_sine = of_cosine * sine - of_sine * cosine
        on_cosine = of_sine * sine + of_cosine * cosine
        columns = [on_sine, on_cosine]
        if self.segments:
            columns.append(self.map_segments(query, segments))
        return torch.cat(columns, dim=-1).to(query.dtype)

    def map_segments(self, query: Tensor, segments: Tensor | None) -> Tensor:
        """The term of each key's possible type, [B, H, Q, segments]."""
        if segments is None:
            return query.new_zeros(*query.shape[:-1], self.segments)
        scores = (query + self.segment_prior[:, None]) @ self.segment_weight.permute(1, 2, 0) * self.head_dim**-0.5
        same, other = scores.split(1, dim=-1)
        return torch.where(F.one_hot(segments, self.segments)[:, None].bool(), same, other)

    def map_key(self, positions: Tensor, dtype: torch.dtype, segments: Tensor | None = None) -> Tensor:
        columns = torch.cat(self.waves(positions), dim=-1).to(dtype)
        if self.segments:
            given = positions.new_zeros(positions.shape) if segments is None else segments
            kinds = F.one_hot(given, self.segments)[:, None].to(dtype)
            columns = torch.cat([columns.expand(len(kinds), -1, -1, -1), kinds], dim=-1)
        return columns.expand(-1, self.num_key_value_heads, -1, -1)

    def waves(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """sin(iω) and cos(iω), [B, 1, N, width / 2]."""
        sine, cosine = waves(positions[:, None], self.width)
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        return sine.to(wide), cosine.to(wide)


def waves(positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """sin(iω_j) and cos(iω_j) of positions i, [..., width / 2 rounded up], with ω_j = 10000^(-2j/width), in fp64: the
    angle of a late position has too few digits left in fp32."""
    even = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64)
    angle = positions[..., None].double() / 10000.0 ** (even / width)
    return angle.sin(), angle.cos()


def rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn vectors [B, H, N, head_dim] by the angles of their positions."""
    cosine, sine = (part.to(states.dtype) for part in rotation)
    first, second = states.chunk(2, dim=-1)
    return states * cosine + torch.cat([-second, first], dim=-1) * sine
