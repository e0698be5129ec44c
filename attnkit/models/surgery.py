"""Another scorer in a trained model, started as close to the old one as the algebra allows."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnkit.attention import Attention, Scorer, scorers
from attnkit.errors import UsageError
from attnkit.models.blocks import Block
from attnkit.models.checks import common_backend, obstacles
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.pretrained import AttnKitPreTrainedModel

Model = TypeVar("Model", bound=AttnKitPreTrainedModel)


@dataclass(frozen=True, kw_only=True)
class ScorerChange:
    """What `replace_scorer` did.

    `carried` are the parameters that kept their values (`rescaled` those of them that took over a factor of the score),
    `dropped` those of the old scorers, and `new` those of the new ones. `score_difference` is, per replaced layer, how
    far the new scores of random states are from the old ones, in units of the old ones' spread, not counting what
    softmax cancels: 0 is the same function.
    """

    carried: list[str]
    rescaled: list[str]
    dropped: list[str]
    new: list[str]
    score_difference: dict[int, float]


def replace_scorer(
    model: Model, scorer: str, *, scorer_options: dict[str, Any] | None = None, layers: Iterable[int] | None = None
) -> tuple[Model, ScorerChange]:
    """A copy of the model whose self attention uses another scorer, in all layers or in those of the given depths (the
    encoder's before the decoder's). Cross attention keeps its own.

    What else the copy has is the model's: its generation config, which parameters learn, and its backend where one
    was asked for that can compute the new scorer. Raises `UsageError` for a model that is not of attnkit, for a depth
    that the model does not have, and for what its configuration refuses.
    """
    if not isinstance(model, AttnKitPreTrainedModel):
        raise UsageError(f"{type(model).__name__} is no model of attnkit: make one of it with attnkit.from_hf() first")
    config = model.config
    depths = list(range(config.num_all_layers)) if layers is None else chosen(layers, config.num_all_layers)
    widths = [config.get_text_config(decoder=depth >= config.num_hidden_layers).head_dim for depth in depths]
    options = [scorers[scorer].nearest_to_scaled_dot(width) | (scorer_options or {}) for width in widths]
    changed = change_config(config, scorer, dict(zip(depths, options, strict=True)))
    backend = config._attn_implementation
    if backend != common_backend(config) and not obstacles(changed, backend):  # it was asked for
        changed._attn_implementation = backend
    with torch.random.fork_rng():  # the caller's random numbers are not ours to use
        fresh: Any = type(model)(changed)
    other = fresh.to(device=model.device, dtype=model.dtype)
    old, new = model.state_dict(), other.state_dict()
    replaced = {f"{name}.scorer." for depth, (name, _) in enumerate(attentions(model)) if depth in depths}
    carried = [key for key in new if key in old and not key.startswith(tuple(replaced))]
    other.load_state_dict({key: old[key] for key in carried}, strict=False)
    learns = {key: parameter.requires_grad for key, parameter in model.named_parameters()}
    for key, parameter in other.named_parameters():
        parameter.requires_grad_(key not in carried or learns.get(key, True))
    if other.can_generate():
        other.generation_config = deepcopy(model.generation_config)
    pairs = list(zip(attentions(model), attentions(other), strict=True))
    rescaled = [
        key
        for depth in depths
        for (_, before), (name, after) in [pairs[depth]]
        for key in rescale(name, after, config, ratio=before.scorer.gain / after.scorer.gain)
    ]
    difference = {depth: score_difference(pairs[depth][0][1], pairs[depth][1][1]) for depth in depths}
    change = ScorerChange(
        carried=carried,
        rescaled=rescaled,
        dropped=sorted(key for key in old if key.startswith(tuple(replaced))),
        new=sorted(new.keys() - set(carried)),
        score_difference=difference,
    )
    return other.train(model.training), change


def chosen(layers: Iterable[Any], num_layers: int) -> list[int]:
    """The depths in order. Raises `UsageError` for what is none of the model's."""
    given = list(layers) if isinstance(layers, Iterable) else [layers]
    unknown = [depth for depth in given if type(depth) is not int or not 0 <= depth < num_layers]
    if unknown or not given or not isinstance(layers, Iterable):
        raise UsageError(f"layers {unknown or layers} do not exist: the model has {num_layers}, give a list from 0 on")
    return sorted(set(given))


def change_config(config: AttnKitConfig, scorer: str, options: dict[int, dict[str, Any]]) -> AttnKitConfig:
    """The configuration with another scorer, with these options, at some depths."""
    first, depths = next(iter(options.values()), {}), range(config.num_all_layers)
    changes: dict[str, Any] = {"scorer": scorer, "scorer_options": first or None, "layer_scorers": None}
    if len(options) < len(depths) or any(given != first for given in options.values()):
        entries = [(scorer, options[depth]) if depth in options else config.scorer_of_layer(depth) for depth in depths]
        changes = {"layer_scorers": [{name: given} for name, given in entries]}
        if not config.is_encoder_decoder or config.cross_scorer is not None:
            changes["scorer_options"] = None  # which no layer reads any more
    elif config.is_encoder_decoder and config.cross_scorer is None:
        changes |= {"cross_scorer": config.scorer, "cross_scorer_options": config.scorer_options}
    return AttnKitConfig.from_dict(config.to_dict() | changes)


def attentions(model: AttnKitPreTrainedModel) -> list[tuple[str, Attention]]:
    """Self attention of every layer with its name, the encoder's before the decoder's."""
    return [(f"{name}.attention", block.attention) for name, block in model.named_modules() if isinstance(block, Block)]


@torch.no_grad()
def rescale(name: str, attention: Attention, config: AttnKitConfig, *, ratio: float) -> list[str]:
    """Move the factor by which the scores of two scorers differ into the queries."""
    if ratio == 1 or config.position == "transformer_xl" or attention.k_proj is None:
        return []  # there the query meets more than keys, or is the key
    for parameter in attention.q_proj.parameters():
        parameter.mul_(ratio)
    return [f"{name}.q_proj.{key}" for key, _ in attention.q_proj.named_parameters()]


@torch.no_grad()
def score_difference(before: Attention, after: Attention) -> float:
    """Spread of the difference of two attentions' scores, over the spread of the first's."""
    generator = torch.Generator().manual_seed(0)
    width, num_states = before.q_proj.in_features, min(64, before.scorer.max_positions)
    states = torch.randn(1, num_states, width, generator=generator).to(before.q_proj.weight)
    one, other = (centred_scores(attention, attention.scorer, states) for attention in (before, after))
    spread = one.std(correction=0).clamp(min=torch.finfo(one.dtype).tiny)
    return ((one - other).std(correction=0) / spread).item()


def centred_scores(attention: Attention, scorer: Scorer, states: Tensor) -> Tensor:
    """Scores of states with each other, less the mean of each query's."""
    query, (key, _) = attention.split_heads(attention.q_proj(states)), attention.project(states)
    scores = scorer(query, key)
    return scores - scores.mean(-1, keepdim=True)
