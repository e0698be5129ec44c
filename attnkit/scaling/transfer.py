"""Hyperparameters that stay the best ones while a model grows: rules, and the check that they hold.

With m the width and m_L the depth over those of the model that the learning rate was tuned on, for AdamW:

| | standard | mup | depth_mup | complete_p |
|---|---|---|---|---|
| init variance of hidden matrices | 1 | 1/m | 1/m | 1/m |
| learning rate of hidden matrices | 1 | 1/m | 1/m · m_L^-½ | 1/m |
| learning rate of norms and biases in blocks | 1 | 1 | m_L^-½ | 1 |
| weight decay of hidden matrices | 1 | m | m | m |
| what a part adds to the residual | 1 | 1 | m_L^-½ | m_L^-1 |
| states before the output embedding | 1 | 1/m | 1/m | 1/m |

(Yang 2022, arXiv 2203.03466, table 8; Yang 2023, arXiv 2310.02244; Dey 2025, arXiv 2505.01618, table 1.) Heads keep
their width, so that scores need no factor of their own: a wider model has more heads. Embeddings, and a scorer's own
parameters, whose sizes follow the head, keep their rates. AdamW's epsilon is not scaled: it has to be small.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from attnkit.errors import UsageError, nearest
from attnkit.models import AttnKitConfig, AttnKitForCausalLM
from attnkit.models.blocks import Block

Rule = Literal["standard", "mup", "depth_mup", "complete_p"]
DEPTH_POWER = {"standard": 0.0, "mup": 0.0, "depth_mup": 0.5, "complete_p": 1.0}


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The factors of one model on what was tuned on its base."""

    config: AttnKitConfig
    """The model's, with the factors that a config can say."""
    init_std: float
    hidden_rate: float
    vector_rate: float
    hidden_decay: float

    def build(self) -> AttnKitForCausalLM:
        """The model with random weights, those of hidden matrices scaled."""
        model = AttnKitForCausalLM(self.config)
        with torch.no_grad():
            for weight in hidden_matrices(model):
                weight.mul_(self.init_std)
        return model

    def groups(self, model: nn.Module, *, learning_rate: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """The parameter groups of AdamW for the base's learning rate and weight decay."""
        hidden = list(hidden_matrices(model))
        inside = {id(weight) for weight in hidden}
        vectors = [it for it in block_parameters(model) if it.ndim < 2]
        inside |= {id(vector) for vector in vectors}
        others = [it for it in model.parameters() if id(it) not in inside]
        return [
            {
                "params": hidden,
                "lr": learning_rate * self.hidden_rate,
                "weight_decay": weight_decay * self.hidden_decay,
            },
            {"params": vectors, "lr": learning_rate * self.vector_rate, "weight_decay": 0.0},
            {"params": others, "lr": learning_rate, "weight_decay": weight_decay},
        ]


def transfer(config: AttnKitConfig, *, base_width: int, base_layers: int, rule: Rule = "complete_p") -> Transfer:
    """The factors for a decoder whose learning rate was tuned at `base_width` and `base_layers`.

    Raises `UsageError` for an unknown rule, sizes below 1, and for models that the rules do not cover.
    """
    if rule not in get_args(Rule):
        raise UsageError(f"unknown rule {rule!r}: {nearest(rule, get_args(Rule))}")
    if min(base_width, base_layers) < 1:
        raise UsageError("base_width and base_layers must be at least 1")
    if config.architecture != "decoder":
        raise UsageError(f"the rules are for architecture 'decoder', not {config.architecture!r}")
    wider, deeper = config.hidden_size / base_width, config.num_hidden_layers / base_layers
    scaled, power = copy.deepcopy(config), DEPTH_POWER[rule]
    if rule == "standard":
        wider = 1.0
    scaled.output_scale = config.output_scale / wider
    scaled.residual_scale = config.residual_scale * deeper**-power
    depth_rate = deeper ** (power - 1) if power else 1.0
    return Transfer(
        config=scaled,
        init_std=wider**-0.5,
        hidden_rate=depth_rate / wider,
        vector_rate=depth_rate,
        hidden_decay=wider,
    )


def block_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Those of all blocks."""
    for block in model.modules():
        if isinstance(block, Block):
            yield from block.parameters()


def hidden_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of the linear layers of blocks: both of their sides grow with the model."""
    for block in model.modules():
        if isinstance(block, Block):
            for layer in block.modules():
                if isinstance(layer, nn.Linear):
                    assert isinstance(layer.weight, nn.Parameter)
                    yield layer.weight


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """The mean size of one kind of activation of one model after some steps."""

    width: int
    layers: int
    step: int
    place: str
    size: float


def coordinate_check(
    configs: Sequence[AttnKitConfig],
    *,
    rule: Rule,
    base_width: int,
    base_layers: int,
    steps: int = 4,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> list[Coordinate]:
    """Train models of several sizes for a few steps on one batch of random tokens and measure their activations.

    Where the rules hold, the change of an activation from the first to the last step has one size at every width and
    depth (Yang 2022, appendix D.1).
    """
    found = []
    for config in configs:
        torch.manual_seed(seed)
        scaled = transfer(config, base_width=base_width, base_layers=base_layers, rule=rule)
        model = scaled.build().train()
        optimizer = torch.optim.AdamW(scaled.groups(model, learning_rate=learning_rate))
        ids = torch.randint(config.vocab_size, (4, 16), generator=torch.Generator().manual_seed(seed))
        first = activations(model, ids)
        for step in range(1, steps + 1):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            for place, states in activations(model, ids).items():
                size = float((states - first[place]).abs().mean())
                found.append(
                    Coordinate(
                        width=config.hidden_size, layers=config.num_hidden_layers, step=step, place=place, size=size
                    )
                )
    return found


@torch.no_grad()
def activations(model: AttnKitForCausalLM, ids: Tensor) -> dict[str, Tensor]:
    """What the last block and the output embedding make of a text."""
    out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
    return {"last block": out.hidden_states[-1], "logits": out.logits}


def draw_coordinates(coordinates: Sequence[Coordinate], path: Path, *, over: Literal["width", "layers"]) -> None:
    """The size of each activation's change over the size of the model, a line per step."""
    from matplotlib.figure import Figure

    places = sorted({it.place for it in coordinates})
    figure = Figure(figsize=(5.5 * len(places), 4), layout="constrained")
    for axis, place in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        for step in sorted({it.step for it in coordinates}):
            points = [(vars(it)[over], it.size) for it in coordinates if it.place == place and it.step == step]
            axis.plot(*zip(*sorted(points), strict=True), marker="o", label=f"step {step}")
        axis.set(xscale="log", yscale="log", xlabel=over, ylabel="mean change", title=place)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)
