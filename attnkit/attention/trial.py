"""A part on a few tokens: what is wrong with one of the user's own is said before a run begins.

Shapes: B batch, H query heads, G key-value heads, Q queries, K keys, D head width, M mapped width, N tokens.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.attention.normalizers import Normalizer
from attnkit.attention.patterns import Pattern, WeighingPattern
from attnkit.attention.positions import Position
from attnkit.attention.scorers import PairwiseScorer, Scorer
from attnkit.attention.scorers.base import repeat_heads
from attnkit.errors import UsageError, in_one_line, line_of_error, place_of_class

ROWS, QUERIES, KEYS = 2, 7, 5
WORKING: set[tuple[type, str]] = set()
"""Classes that were found to work, with all that they were built with: configurations are checked again and again."""


class PartError(Exception):
    """What is wrong with a part, as what is said of its class."""


def check_part(part: Any, *, base: Any, shape: dict[str, Any], options: dict[str, Any]) -> None:
    """Build a part of the family of `base` and, if it is not ours, use it once as a layer of that shape would.

    Raises `UsageError` that names the class and its place, what was expected and what came. All is done without memory,
    as where a model is loaded; only a part that has to see numbers gets some.
    """
    tried = (part, repr((shape, options)))
    if tried in WORKING:
        return
    try:
        with torch.device("meta"):
            built = build(part, base=base, shape=shape, options=options)
        if package_of(part) != package_of(base):  # tests hold ours to the rest, which takes a second the first time
            try:
                use(built, base, shape, device="meta")
            except (PartError, UsageError):
                raise
            except Exception:
                with torch.random.fork_rng(devices=[]):  # what a run draws does not depend on who looked at it before
                    use(part(**shape, **options), base, shape, device="cpu")
            check_loading(built)
    except PartError as error:
        raise UsageError(f"{part.__qualname__} ({place_of_class(part)}) {error}") from error
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        said = f"fails on {QUERIES} tokens: {said_by(error, part)}"
        raise UsageError(f"{part.__qualname__} ({place_of_class(part)}) {said}") from error
    WORKING.add(tried)


def build(part: Any, *, base: Any, shape: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    """The part, if it is what its base makes of it and can be set after it is loaded."""
    try:
        built: nn.Module = part(**shape, **options)
    except UsageError:
        raise
    except Exception as error:
        raise PartError(f"cannot be built with options {options}: {said_by(error, part)}") from error
    given = {it.name for it in inspect.signature(base).parameters.values() if it.kind is it.KEYWORD_ONLY}
    if not given | {"_parameters"} <= vars(built).keys():
        raise PartError(
            "has an __init__ without super().__init__: call that first, with all that is no option of its own"
        )
    own = [name for name, _ in built.named_parameters(recurse=False)]
    if own and part.reset_parameters is base.reset_parameters:
        raise PartError(
            f"has parameters ({', '.join(own)}) but no reset_parameters: define it, with the functions of "
            "transformers.initialization, and call it at the end of __init__"
        )
    loose = [name for module in built.modules() for name, value in vars(module).items() if isinstance(value, Tensor)]
    if loose:
        raise PartError(
            f"keeps a tensor in its attribute {loose[0]!r}, which is neither saved nor moved to a device: make it a "
            "parameter, or register_buffer, and set it in reset_parameters"
        )
    return built


@torch.no_grad()
def check_loading(built: nn.Module) -> None:
    """Raise `PartError` for state that a model would not have again after it was saved and loaded: then a part is built
    without memory, set by `reset_parameters`, and gets what was saved."""
    built.to_empty(device="cpu")
    saved = built.state_dict().keys()
    tensors = {name: buffer for name, buffer in built.named_buffers(recurse=False) if name not in saved}
    tensors |= dict(built.named_parameters(recurse=False))
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    with torch.random.fork_rng(devices=[]):
        built.reset_parameters()
    forgotten = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if forgotten:
        raise PartError(
            f"has {', '.join(forgotten)}, which reset_parameters does not set: set all there that is not saved, and "
            "all that is learnt, with the functions of transformers.initialization"
        )


def package_of(cls: type) -> str:
    """The outermost package of a class."""
    return cls.__module__.partition(".")[0]


def said_by(error: BaseException, part: type) -> str:
    """An error in the code of a part, with the line of the user's that it comes from if there is one."""
    line = line_of_error(error, place_of_class(part).rpartition(":")[0])
    return in_one_line(error) if line is None else f"{in_one_line(error)} ({line})"


@torch.no_grad()
def use(part: Any, base: type, shape: dict[str, Any], *, device: str) -> None:
    """Call what a layer calls of a part; raises `PartError` where the result is not what the base's docstrings say."""
    with torch.device(device):
        TRIALS[base](part, shape)


def try_scorer(scorer: Scorer, shape: dict[str, Any]) -> None:
    heads, groups, width = shape["num_heads"], shape["num_key_value_heads"], shape["head_dim"]
    num_queries, num_keys = min(QUERIES, shape["max_positions"]), min(KEYS, shape["max_positions"])
    query = torch.randn(ROWS, heads, num_queries, width)
    key = torch.randn(ROWS, groups, num_keys, width)
    places, key_places = torch.arange(num_queries), torch.arange(num_keys)
    if not isinstance(scorer.scale, int | float) or not math.isfinite(scorer.scale):
        raise PartError(f"has scale {scorer.scale!r}: give a finite number, or scale in map_query")
    own_pair = type(scorer).pair is not Scorer.pair
    if own_pair is not isinstance(scorer, PairwiseScorer):
        raise PartError("defines pair, which is for a class on PairwiseScorer" if own_pair else "defines no pair")
    mapped_query = scorer.map_query(query, places.expand(ROWS, -1))
    expect(mapped_query, "map_query", "B H Q M", [ROWS, heads, num_queries, None])
    mapped_key = scorer.map_key(key, key_places.expand(ROWS, -1))
    columns = None if own_pair else mapped_query.shape[-1]
    if (further := scorer.key_columns(mapped_key, key_places.expand(ROWS, -1))) is not None:
        expect(further, "key_columns", "B G K C", [ROWS, groups, num_keys, None])
        columns = None if own_pair else columns - further.shape[-1]
    expect(mapped_key, "map_key", "B G K M", [ROWS, groups, num_keys, columns])
    mapped_key = scorer.widen_key(mapped_key, key_places.expand(ROWS, -1))
    scores = [ROWS, heads, num_queries, num_keys]
    expect(scorer.pair(mapped_query, repeat_heads(mapped_key, heads)), "pair", "B H Q K", scores)
    if (term := scorer.query_term(query)) is not None:
        expect(term, "query_term", "B H Q 1", [*scores[:3], 1])


def try_normalizer(normalizer: Normalizer, shape: dict[str, Any]) -> None:
    if not isinstance(normalizer.cancels_query_term, bool):
        raise PartError(f"has cancels_query_term {normalizer.cancels_query_term!r}: set it to True or False")
    sizes = [ROWS, shape["num_heads"], QUERIES, KEYS]
    for allowed in (None, torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool)):
        expect(normalizer(torch.randn(sizes), allowed), "forward", "B H Q K", sizes)
    if (sink := normalizer.sink()) is not None:
        expect(sink, "sink", "H", [shape["num_heads"]])


def try_pattern(pattern: Pattern, shape: dict[str, Any]) -> None:
    places, key_places = torch.arange(QUERIES)[:, None], torch.arange(KEYS)
    expect(pattern.allowed(places, key_places), "allowed", "Q K", [QUERIES, KEYS], dtype=torch.bool)
    if isinstance(pattern, WeighingPattern):
        sizes = [ROWS, shape["num_heads"], QUERIES]
        factors = pattern.window_weight(torch.randn(*sizes, shape["head_dim"]), places + 1, key_places - places * 0)
        expect(factors, "window_weight", "B H Q K", [*sizes, KEYS])


def try_position(position: Position, shape: dict[str, Any]) -> None:
    heads, width = shape["num_heads"], shape["head_dim"]
    num_tokens = min(QUERIES, shape["max_positions"])
    query, places = torch.randn(ROWS, heads, num_tokens, width), torch.arange(num_tokens)
    tokens = places.expand(ROWS, -1)
    if (states := position.embed(tokens)) is not None:
        expect(states, "embed", "B N hidden_size", [ROWS, num_tokens, shape["hidden_size"]])
    if (rotation := position.rotation(tokens)) is not None:
        cosine, sine = rotation
        expect(cosine, "rotation", "B 1 N D", [ROWS, 1, num_tokens, width])
        expect(sine, "rotation", "B 1 N D", [ROWS, 1, num_tokens, width])
    if (bias := position.bias(places, places, query.dtype)) is not None:
        expect(bias, "bias", "1 H Q K", [1, heads, num_tokens, num_tokens])
    expect(position.content_query(query), "content_query", "B H Q D", list(query.shape))
    mapped_query, mapped_key = position.map_query(query, tokens), position.map_key(tokens, query.dtype)
    if mapped_query is not None or mapped_key is not None:
        expect(mapped_query, "map_query", "B H Q M", [ROWS, heads, num_tokens, None])
        expect(mapped_key, "map_key", "B G K M", [None, None, num_tokens, mapped_query.shape[-1]])


TRIALS: dict[type, Callable[[Any, dict[str, Any]], None]] = {
    Scorer: try_scorer,
    Normalizer: try_normalizer,
    Pattern: try_pattern,
    Position: try_position,
}


def expect(
    value: Any, method: str, letters: str, sizes: Sequence[int | None], *, dtype: torch.dtype = torch.float32
) -> None:
    """Raise `PartError` unless a method gave a tensor of that type with these sizes; None is any size."""
    fits = (
        isinstance(value, Tensor)
        and value.dtype == dtype
        and value.ndim == len(sizes)
        and all(expected in (None, got) for expected, got in zip(sizes, value.shape, strict=True))
    )
    if fits:
        return
    kind = str(dtype).removeprefix("torch.")
    wanted = f"{kind} [{', '.join(letters.split())}], here [{', '.join(str(size or 'any') for size in sizes)}]"
    got = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise PartError(f"gives {got} from {method}: it has to give {wanted}")
