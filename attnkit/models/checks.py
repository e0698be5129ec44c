"""What a configuration may not say: every problem of it at once, before any weight exists."""

import math
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from attnkit.attention import normalizers, patterns, positions, scorers
from attnkit.attention.choice import FASTEST_FIRST, obstacle, order_problems
from attnkit.attention.options import option_problems
from attnkit.attention.patterns import shape_of_pattern
from attnkit.attention.trial import check_part
from attnkit.errors import UsageError, nearest

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
COUNTS += ("intermediate_size", "max_position_embeddings")
DECODER_SIZES = {
    "num_attention_heads": "num_decoder_attention_heads",
    "num_key_value_heads": "num_decoder_key_value_heads",
    "head_dim": "decoder_head_dim",
    "intermediate_size": "decoder_intermediate_size",
}
"""Sizes of the encoder, or of the only stack, and of the decoder of two."""
NOT_NEGATIVE = ("initializer_range", "norm_eps", "type_vocab_size")
FACTORS = ("embedding_scale", "residual_scale", "output_scale")
OPTIONS = {family: f"{family}_options" for family in ("scorer", "cross_scorer", "normalizer", "pattern", "position")}
"""Where the options of a part stand, if they have a key of their own."""
DROPOUTS = ("hidden_dropout", "embedding_dropout", "attention_dropout", "activation_dropout", "output_dropout")


def check_inherited(config: Any, given: dict[str, Any]) -> None:
    """Raise `UsageError` for fields that transformers' configuration reads unchecked, among them those `given` besides
    the declared ones."""
    problems = []
    if not whole(given.get("num_labels", 1), least=1):
        problems.append(f"num_labels must be a whole number of at least 1, not {given['num_labels']!r}")
    names = config.id2label
    if names is not None and not (isinstance(names, dict) and all(map(names_label, names.items()))):
        problems.append(f"id2label must be a mapping from whole numbers to names, not {names!r}")
    numbers = config.label2id
    if numbers is not None and not (isinstance(numbers, dict) and all(map(whole_text, numbers.values()))):
        problems.append(f"label2id must be a mapping from names to whole numbers, not {numbers!r}")
    if config.problem_type not in (None, *PROBLEM_TYPES):
        problems.append(f"unknown problem_type {config.problem_type!r}: {nearest(config.problem_type, PROBLEM_TYPES)}")
    backend = given.get("attn_implementation")
    if not isinstance(backend, str | dict | None):
        problems.append(f"attn_implementation must be the name of a backend, as 'sdpa', not {backend!r}")
    if problems:
        raise UsageError(*problems)


def names_label(entry: tuple[Any, Any]) -> bool:
    """Whether an entry maps a whole number, which is text in JSON, to a name."""
    return whole_text(entry[0]) and isinstance(entry[1], str)


def whole_text(number: Any) -> bool:
    """Whether a number is whole, or is the text of one that is."""
    return whole(number, least=0) or (isinstance(number, str) and number.isdecimal())


def whole(number: Any, *, least: int) -> bool:
    """Whether a number is whole and not less."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


def check(config: Any) -> None:
    """Raise one `UsageError` with a line for every problem of the configuration."""
    lists = list(list_problems(config))
    problems = [*shape_problems(config), *lists]
    problems = problems or list(part_problems(config))  # which are built in the sizes of the configuration
    if not lists and all(name in registry for registry, name in named_parts(config)):
        problems += combination_problems(config)
    if problems:
        raise UsageError(*dict.fromkeys(problems))


def shape_problems(config: Any) -> Iterator[str]:
    """Sizes that cannot be, and fields that do not go with the architecture."""
    for key in (*COUNTS, *DECODER_SIZES.values()):
        if getattr(config, key) is not None and not 1 <= getattr(config, key) < 2**31:
            bound = "at least 1" if getattr(config, key) < 1 else f"at most {2**31 - 1}"
            yield f"{key} must be {bound}, not {getattr(config, key)}"
            return
    for key in DROPOUTS:
        if key == "embedding_dropout" and str(config.embedding_dropout) == str(config.hidden_dropout):
            continue  # as NaN is not itself; where it follows that one, the problem is said already
        if getattr(config, key) is not None and not 0 <= getattr(config, key) < 1:
            yield f"{key} must be at least 0 and less than 1, not {getattr(config, key)}"
    segments = (config.position_options or {}).get("segments", 0) if config.position == "transformer_xl" else 0
    if isinstance(segments, int) and 0 < segments < config.type_vocab_size:
        most = f"the {segments} segments of position_options"
        yield f"type_vocab_size must be at most {most}, not {config.type_vocab_size}"
    if config.type_vocab_size >= 2**31:
        yield f"type_vocab_size must be at most {2**31 - 1}, not {config.type_vocab_size}"
    for key in NOT_NEGATIVE:
        if not getattr(config, key) >= 0 or math.isinf(getattr(config, key)):
            yield f"{key} must be at least 0, not {getattr(config, key)}"
    for key in FACTORS:
        if not math.isfinite(getattr(config, key)):
            yield f"{key} must be a finite number, not {getattr(config, key)}"
    if config.pad_token_id is not None and not 0 <= config.pad_token_id < config.vocab_size:
        yield f"pad_token_id must be at least 0 and less than vocab_size {config.vocab_size}, not {config.pad_token_id}"
    yield from head_problems(config, "num_attention_heads", "num_key_value_heads", "head_dim")
    if config.is_encoder_decoder:
        yield from head_problems(config, *list(DECODER_SIZES.values())[:3])
    for key in DECODER_SIZES.values():
        if not config.is_encoder_decoder and getattr(config, key) is not None:
            yield f"{key} is for architecture 'encoder-decoder', not {config.architecture!r}"
    if config.is_encoder_decoder != (config.num_decoder_layers is not None):
        yield f"num_decoder_layers is for architecture 'encoder-decoder', not {config.architecture!r}"
    elif config.num_decoder_layers is not None and config.num_decoder_layers < 1:
        yield f"num_decoder_layers must be at least 1, not {config.num_decoder_layers}"
    if config.parallel_residual and config.norm_position == "post":
        yield "parallel_residual has no place for norm_position 'post': the parts of a block are summed"
    if config.position_counting == "unpadded" and config.pad_token_id is None:
        yield "position_counting 'unpadded' needs a pad_token_id"
    if config.two_stream and (config.architecture != "encoder" or config.position != "transformer_xl"):
        yield "two_stream is for architecture 'encoder' with position 'transformer_xl'"
    if config.cross_scorer is not None and not config.is_encoder_decoder:
        yield f"cross_scorer is for architecture 'encoder-decoder', not {config.architecture!r}"
    if config.cross_scorer is None and config.cross_scorer_options is not None:
        yield "cross_scorer_options need a cross_scorer, whose options they are"
    for key in ("hidden_act", "output_transform_act"):
        if (name := getattr(config, key)) not in ACT2FN:
            yield f"unknown {key} {name!r}: {nearest(name, ACT2FN)}"
            return  # of which the second follows the first


def list_problems(config: Any) -> Iterator[str]:
    """Lists of parts that do not go with the layers."""
    for key in ("layer_scorers", "layer_patterns"):
        entries = getattr(config, key)
        if entries is None:
            continue
        if len(entries) != config.num_all_layers:
            yield f"{key} has {len(entries)} entries for {config.num_all_layers} layers: give one each"
        if not all(isinstance(entry, str) or names_options(entry) for entry in entries):
            yield f"{key}: an entry is a name, or a mapping from one name to a mapping of its options"
        if (unread := unread_options(config, key)) is not None:
            yield f"{unread} are of no layer, as {key} names the part of each: give them there, as {{name: options}}"


def unread_options(config: Any, key: str) -> str | None:
    """The field of options that no layer reads where `key` lists the parts of all, if it is given."""
    family = key.removeprefix("layer_").removesuffix("s")
    in_cross_attention = family == "scorer" and config.is_encoder_decoder and config.cross_scorer is None
    return OPTIONS[family] if vars(config)[OPTIONS[family]] and not in_cross_attention else None


def head_problems(config: Any, heads_key: str, keys_key: str, width_key: str) -> Iterator[str]:
    """Numbers of heads of one stack that do not divide."""
    heads, keys, width = (getattr(config, key) for key in (heads_key, keys_key, width_key))
    if width is None:
        yield (
            f"hidden_size {config.hidden_size} is no multiple of {heads_key} {heads}: "
            f"change one of them, or give {width_key}"
        )
    if heads % keys:
        yield f"{heads_key} {heads} is no multiple of {keys_key} {keys}: give a divisor of it"
    if config.sharing in ("query_key", "all") and heads != keys:
        yield f"sharing {config.sharing!r} needs {keys_key} equal to {heads_key}"


def names_options(entry: dict[str, Any]) -> bool:
    """Whether an entry maps one name to its options."""
    return len(entry) == 1 and all(options is None or isinstance(options, dict) for options in entry.values())


def part_problems(config: Any) -> Iterator[str]:
    """Unknown names and options, in every family of parts, and parts of the user's own that do not work."""
    yield from problems_of_stack(config, range(config.num_hidden_layers), causal=config.architecture == "decoder")
    if not config.is_encoder_decoder:
        return
    sizes = config.get_text_config(decoder=True)
    yield from problems_of_stack(sizes, range(config.num_hidden_layers, config.num_all_layers), causal=True)
    key = "scorer" if config.cross_scorer is None else "cross_scorer"
    name, options = config.scorer_of_cross_attention(0)
    yield from problems_of_part(key, scorers, name, options, head_shape(sizes) | key_shape(sizes))


def problems_of_stack(config: Any, depths: range, *, causal: bool) -> Iterator[str]:
    """The same of one stack, whose sizes the configuration has, and the layers of these depths."""
    heads, keys = head_shape(config), key_shape(config)
    for depth in depths if config.layer_scorers else depths[:1]:
        name, options = config.scorer_of_layer(depth)
        yield from problems_of_part(layer_key(config, "scorer"), scorers, name, options, heads | keys)
    yield from problems_of_part(
        "normalizer", normalizers, config.normalizer, config.normalizer_options, {"num_heads": heads["num_heads"]}
    )
    for depth in depths if config.layer_patterns else depths[:1]:
        name, options = config.pattern_of_layer(depth)
        shape = shape_of_pattern(name, **heads)
        yield from problems_of_part(layer_key(config, "pattern"), patterns, name, options, shape)
    stack = {"hidden_size": config.hidden_size, "causal": causal}
    yield from problems_of_part("position", positions, config.position, config.position_options, heads | keys | stack)


def head_shape(config: Any) -> dict[str, int]:
    """What parts know of the heads of queries."""
    return {"num_heads": config.num_attention_heads, "head_dim": config.head_dim}


def key_shape(config: Any) -> dict[str, int]:
    """What parts know of keys."""
    return {"num_key_value_heads": config.num_key_value_heads, "max_positions": config.max_position_embeddings}


def layer_key(config: Any, family: str) -> str:
    """The field that names the scorers, or the patterns, of the layers."""
    return family if vars(config)[f"layer_{family}s"] is None else f"layer_{family}s"


def problems_of_part(
    key: str, registry: Any, name: str, options: dict[str, Any] | None, shape: dict[str, Any]
) -> Iterator[str]:
    """What is wrong with one part, which `key` of the configuration names; using it once shows what it cannot."""
    try:
        part, options = registry[name], options or {}
    except UsageError as error:
        yield f"{key}: {error}"
        return
    problems = [problem for option, value in options.items() for problem in option_problems(part, option, value)]
    yield from (f"{OPTIONS.get(key, key)}: {problem}" for problem in problems)
    if problems:
        return
    try:
        check_part(part, base=registry.base, shape=shape, options=options)
    except UsageError as error:
        yield f"{key}: {error}"


def combination_problems(config: Any) -> Iterator[str]:
    """Parts that do not go together, each with the reason."""
    for name, _ in config.own_scorers():
        yield from order_problems(name, config.position, scorer_key=layer_key(config, "scorer"))
    if config._attn_implementation is not None:
        yield from backend_problems(config, config._attn_implementation)


def backend_problems(config: Any, backend: str) -> Iterator[str]:
    """Why a backend cannot compute the layers of a configuration, and which one can."""
    for reason in obstacles(config, backend):
        yield f"attn_implementation {backend!r}: {reason}; use {common_backend(config)!r}"


def obstacles(config: Any, backend: str) -> list[str]:
    """Why a backend cannot compute the layers of a configuration."""
    reasons = (obstacle(backend, **parts) for parts in layer_parts(config))
    return [reason for reason in reasons if reason is not None]


def common_backend(config: Any) -> str:
    """The fastest backend that can compute every layer."""
    return next(name for name in FASTEST_FIRST if not obstacles(config, name))


def layer_parts(config: Any) -> list[dict[str, Any]]:
    """The classes of scorer, normalizer and pattern that meet in some layer."""
    normalizer = normalizers[config.normalizer]
    return [
        {"scorer": scorers[scorer], "normalizer": normalizer, "pattern": patterns[pattern]}
        for scorer, _ in config.all_scorers()
        for pattern, _ in config.all_patterns()
    ]


def named_parts(config: Any) -> Iterator[tuple[Any, str]]:
    """The registry and the name of every part that a configuration names."""
    yield from ((scorers, name) for name, _ in config.all_scorers())
    yield from ((patterns, name) for name, _ in config.all_patterns())
    yield from ((normalizers, config.normalizer), (positions, config.position))


def all_parts(config: Any) -> list[type]:
    """The class of every part that a configuration names."""
    return list(dict.fromkeys(registry[name] for registry, name in named_parts(config)))


def num_positions(config: PreTrainedConfig) -> int | None:
    """The positions of a model, or those that it is said to be trained for; None where its config says nothing."""
    # Looked up as an attribute, since models such as GPT-2 store it by a name of their own.
    positions = config.max_position_embeddings if hasattr(config, "max_position_embeddings") else None
    return positions if positions is None or positions > 0 else None  # XLNet says -1
