"""How a model is split among processes: what transformers calls its tensor, pipeline and sharding plans.

Heads are divided: the projections of queries, keys and values by columns, the one after them by rows, and with them the
parameters of a scorer, which has one set per head.
"""

from typing import Any

import torch

from attnkit.attention import PairwiseScorer, Position, normalizers, patterns, positions, scorers
from attnkit.attention.normalizers import Normalizer
from attnkit.attention.patterns import WeighingPattern

PER_HEAD = "attnkit_per_head"
"""The style of `per_head.PerHead`."""


def stacks_of(config: Any) -> list[str]:
    """The names of the stacks of a model."""
    return ["encoder", "decoder"] if config.is_encoder_decoder else [config.architecture]


def tensor_obstacle(config: Any, num_processes: int = 1) -> str | None:
    """Why the heads of a model cannot be divided among processes; None where they can."""
    for key in ("num_key_value_heads", "num_decoder_key_value_heads"):
        if (vars(config)[key] or 0) % num_processes:
            return f"{key} {vars(config)[key]} is no multiple of {num_processes} processes"
    for name, _ in config.all_scorers():
        if issubclass(scorers[name], PairwiseScorer):
            return f"scorer {name!r} reads its parameters once more in the backward pass, when they are not at hand"
    if normalizers[config.normalizer].sink is not Normalizer.sink:
        return f"normalizer {config.normalizer!r} has a number per head that is not divided"
    for name, _ in config.all_patterns():
        if issubclass(patterns[name], WeighingPattern):
            return f"pattern {name!r} has parameters per head that are not divided"
    position = positions[config.position]
    if position.per_layer or position.bias is not Position.bias:
        return f"position {config.position!r} has a term per head that is not divided"
    return None


def tensor_plan(config: Any) -> dict[str, str] | None:
    """Module or parameter of the body -> how it is divided; None where it cannot be."""
    if tensor_obstacle(config) is not None:
        return None
    plan: dict[str, str] = {}
    for stack in stacks_of(config):
        layer, sizes = f"{stack}.layers.*", config.get_text_config(decoder=stack == "decoder")
        plan[f"{stack}.embeddings.tokens"] = "embedding_rowwise"
        plan |= attention_plan(f"{layer}.attention", sizes, config.sharing, config.own_scorers())
        if config.is_encoder_decoder and stack == "decoder":
            scorer = config.scorer_of_cross_attention(0)
            plan |= attention_plan(f"{layer}.cross_attention", sizes, "separate", [scorer])
        plan |= {f"{layer}.feed_forward.{name}": "colwise" for name in ["gate_proj"] * config.gated_activation}
        plan |= {f"{layer}.feed_forward.up_proj": "colwise", f"{layer}.feed_forward.down_proj": "rowwise"}
    return plan


def attention_plan(
    attention: str, config: Any, sharing: str, of_layers: list[tuple[str, dict[str, Any]]]
) -> dict[str, str]:
    """The plan of one attention layer, whose scorer is one of several."""
    inputs = {"separate": ("q", "k", "v"), "key_value": ("q", "k"), "query_key": ("q", "v"), "all": ("q",)}[sharing]
    plan = {f"{attention}.{name}_proj": "colwise" for name in inputs} | {f"{attention}.o_proj": "rowwise"}
    shape = {"num_heads": config.num_attention_heads, "num_key_value_heads": config.num_key_value_heads}
    shape |= {"head_dim": config.head_dim, "max_positions": config.max_position_embeddings}
    with torch.device("meta"):
        built = [scorers[name](**shape, **options) for name, options in of_layers]
    named = {f"{attention}.scorer.{name}": PER_HEAD for scorer in built for name, _ in scorer.named_parameters()}
    return plan | named | ({attention: PER_HEAD} if named else {})


def pipeline_plan(config: Any) -> dict[str, tuple[list[str], list[str]]] | None:
    """Child of the body -> what goes in and what comes out, for a model of one stack."""
    if config.is_encoder_decoder:
        return None
    stack = config.architecture
    plan = {
        f"{stack}.embeddings": (["input_ids"], ["inputs_embeds"]),
        f"{stack}.layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
    }
    return plan | ({f"{stack}.norm": (["hidden_states"], ["hidden_states"])} if config.final_norm else {})


def sharding_plan(config: Any) -> dict[str, str]:
    """Modules of the body that are gathered as one when each process holds a part of every parameter."""
    plan: dict[str, str] = {}
    for stack in stacks_of(config):
        plan |= {f"{stack}.embeddings.tokens": "free_full_weight", f"{stack}.layers.*": "free_full_weight"}
        plan |= {f"{stack}.norm": "keep_full_weight"} if config.final_norm else {}
    return plan
