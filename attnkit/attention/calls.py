"""How a layer alone may be built and called: each mistake is one line, before anything is computed.

Shapes: B batch, N tokens, S source tokens, H query heads.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers.cache_utils import Cache, EncoderDecoderCache

from attnkit.attention.backends import BACKENDS
from attnkit.attention.choice import FASTEST_FIRST, obstacle
from attnkit.attention.patterns import Full
from attnkit.errors import UsageError, check_count, nearest

Sharing = Literal["separate", "key_value", "query_key", "all"]


def check_sizes(
    hidden_size: int, num_heads: int, *, num_key_value_heads: int, head_dim: int | None, sharing: str
) -> None:
    """Raise `UsageError` for sizes that do not divide, or do not go with the sharing of projections."""
    given = {"hidden_size": hidden_size, "num_heads": num_heads, "num_key_value_heads": num_key_value_heads}
    for name, count in (given if head_dim is None else given | {"head_dim": head_dim}).items():
        check_count(name, count)
    if num_heads % num_key_value_heads:
        raise UsageError(f"num_heads {num_heads} is no multiple of num_key_value_heads {num_key_value_heads}")
    if head_dim is None and hidden_size % num_heads:
        raise UsageError(f"hidden_size {hidden_size} is no multiple of num_heads {num_heads}: give head_dim")
    if sharing not in get_args(Sharing):
        raise UsageError(f"unknown sharing {sharing!r}: {nearest(sharing, get_args(Sharing))}")
    if sharing in ("query_key", "all") and num_heads != num_key_value_heads:
        raise UsageError(f"sharing {sharing!r} needs as many key-value heads as query heads")


def check_switches(*, output_bias: object, **switches: object) -> None:
    """Raise `UsageError` for switches that are neither on nor off; the output's may follow another."""
    for name, value in (switches if output_bias is None else switches | {"output_bias": output_bias}).items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} must be True or False, not {value!r}")


def check_backend(layer: Any, backend: Any) -> None:
    """Raise `UsageError` for a backend that cannot compute the layer; what is registered under no name may."""
    if not callable(backend):
        raise UsageError(f"backend must be eager_attention or one of BACKENDS, as BACKENDS['sdpa'], not {backend!r}")
    parts: dict[str, Any] = {
        "scorer": type(layer.scorer),
        "normalizer": type(layer.normalizer),
        "pattern": type(layer.pattern),
    }
    name = next((name for name, known in BACKENDS.items() if known is backend), None)
    reason = None if name is None else obstacle(name, **parts)
    if reason is not None:
        able = next(name for name in FASTEST_FIRST if obstacle(name, **parts) is None)
        remedy = "use eager_attention, the default" if able == "eager" else f"use BACKENDS[{able!r}]"
        raise UsageError(f"backend {name!r}: {reason}; {remedy}")


def check_call(layer: Any, states: Tensor, source: Tensor | None, *, cache: Cache | None, **given: Any) -> None:
    """Raise `UsageError` for tensors that do not fit the layer or each other. `given` are `mask`, `positions`,
    `source_positions`, `key_positions` and `segments`, or None."""
    problem = next(kind_problems(cache=cache, **given), None) or next(state_problems(layer, "states", states), None)
    if problem is None and source is not None:
        of_source = state_problems(layer, "source", source)
        problem = next(chain(of_source, source_problems(layer, states, source, cache)), None)
    if problem is None:
        keys = states if source is None else source
        num_keys = keys.shape[1]
        if cache is not None and source is None:
            num_keys += cache.get_seq_length(layer.layer_idx)
        problem = next(call_problems(layer, states, source, num_keys=num_keys, **given), None)
    if problem is not None:
        raise UsageError(problem)


def kind_problems(*, cache: Any, mask: Any, **tensors: Any) -> Iterator[str]:
    """What is given as something that it cannot be."""
    if cache is not None and not isinstance(cache, Cache):
        yield f"cache must be a cache of transformers, as DynamicCache(), not {type(cache).__name__}"
    if mask is not None and not isinstance(mask, Tensor | BlockMask):
        yield f"mask must be a tensor, not {type(mask).__name__}"
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            yield f"{name} must be a tensor, not {type(tensor).__name__}"


def state_problems(layer: Any, name: str, states: Any) -> Iterator[str]:
    """What is wrong with states [B, N, hidden]."""
    weight = layer.q_proj.weight
    width = weight.shape[-1]
    if not isinstance(states, Tensor) or states.ndim != 3:
        got = list(states.shape) if isinstance(states, Tensor) else type(states).__name__
        yield f"{name} must be a tensor [batch, tokens, {width}], not {got}"
    elif states.shape[-1] != width:
        yield f"{name} have width {states.shape[-1]}, and the layer has hidden_size {width}"
    elif states.device != weight.device:
        yield f"{name} are on device {states.device} and the layer on {weight.device}: move one with .to()"
    elif states.dtype != weight.dtype and not torch.is_autocast_enabled(states.device.type):
        yield f"{name} are {states.dtype} and the layer {weight.dtype}: convert one with .to(), or use autocast"


def source_problems(layer: Any, states: Tensor, source: Tensor, cache: Any) -> Iterator[str]:
    """What a layer with a source would leave out."""
    if states.shape[0] != source.shape[0]:
        yield f"states have {states.shape[0]} rows and the source {source.shape[0]}: give as many"
    if cache is not None and not isinstance(cache, EncoderDecoderCache):
        yield f"with a source the cache must be an EncoderDecoderCache, not {type(cache).__name__}"
    place = torch.zeros(1, 1, dtype=torch.long, device=states.device)
    for key, used in {
        "pattern": not isinstance(layer.pattern, Full),
        "causal": layer.is_causal,
        "attend_to_self": not layer.attend_to_self,
        "position": layer.position.rotation(place) is not None,
    }.items():
        if used:
            yield f"{key} is for tokens among themselves: build the layer that reads a source without it"


def call_problems(
    layer: Any,
    states: Tensor,
    source: Tensor | None,
    *,
    num_keys: int,
    mask: Any,
    positions: Tensor | None,
    source_positions: Tensor | None,
    key_positions: Tensor | None,
    segments: Tensor | None,
) -> Iterator[str]:
    """What is wrong with the mask, the positions and the segments, or with the number of tokens."""
    batch_size, num_queries = states.shape[:2]
    if isinstance(mask, Tensor):
        yield from mask_problems(mask, (batch_size, layer.scorer.num_heads, num_queries, num_keys), states.dtype)
    limit, longest = layer.scorer.max_trained, max(num_queries, num_keys)
    if source_positions is not None and source is None:
        yield "source_positions need a source"
    if key_positions is not None and source is not None:
        yield "key_positions are for tokens among themselves: give those of a source as source_positions"
    if segments is not None and not layer.position.reads_segments:
        yield f"segments are for a position that tells them apart, and {type(layer.position).__name__} does not"
    numbered = (
        ("positions", positions, num_queries, limit),
        ("source_positions", source_positions, num_keys, limit),
        ("key_positions", key_positions, num_keys, limit),
        ("segments", segments, num_queries, layer.position.segments if layer.position.reads_segments else None),
    )
    for name, places, length, end in numbered:
        if places is None:
            continue
        if places.ndim != 2 or places.shape[0] not in (1, batch_size) or places.shape[1] != length:
            yield f"{name} must be [{batch_size} or 1, {length}], not {list(places.shape)}"
        elif places.is_floating_point() or places.dtype == torch.bool:
            yield f"{name} must be whole numbers, not {places.dtype}"
        elif not torch.compiler.is_compiling() and (wrong := beyond(places, end)) is not None:
            yield f"{name} must be at least 0{'' if end is None else f' and less than {end}'}, not {wrong}"
    if limit is not None and longest > limit:
        yield f"{longest} tokens, but {type(layer.scorer).__name__} has {limit} positions: raise max_positions"


def beyond(places: Tensor, end: int | None) -> int | None:
    """A number that is negative or not less than `end`."""
    wrong = places[(places < 0) if end is None else (places < 0) | (places >= end)]
    return int(wrong.flatten()[0]) if len(wrong) else None


def mask_problems(mask: Tensor, sizes: tuple[int, int, int, int], dtype: torch.dtype) -> Iterator[str]:
    """What is wrong with a padding mask [B, keys], or one that broadcasts to `sizes`, [B, H, N, keys]."""
    padding = (sizes[0], sizes[-1])
    if mask.ndim not in (2, 4):
        yield f"mask must be a padding mask {list(padding)} or broadcast to {list(sizes)}, not {list(mask.shape)}"
    elif mask.ndim == 2 and mask.shape != padding:
        yield f"a padding mask must be {list(padding)} [batch, keys], not {list(mask.shape)}"
    elif mask.ndim == 2 and mask.is_floating_point():
        yield f"a padding mask must be boolean, or 1 for tokens and 0 for padding, not {mask.dtype}"
    elif mask.ndim == 4 and any(got not in (1, size) for got, size in zip(mask.shape, sizes, strict=True)):
        yield f"a mask must broadcast to {list(sizes)} [batch, heads, tokens, keys], not {list(mask.shape)}"
    elif mask.ndim == 4 and mask.dtype not in (torch.bool, dtype):
        yield f"a mask must be boolean (True: may meet), or {dtype} to be added to scores, not {mask.dtype}"
