"""Hyperparameters that stay the best ones while a model grows: rules, and the check that they hold.

With m the width and m_L the depth over those of the model that the learning rate was tuned on, for AdamW:

| | none | mup | depth-mup | completep |
|---|---|---|---|---|
| init variance of hidden matrices | 1 | 1/m | 1/m | 1/m |
| learning rate of hidden matrices | 1 | 1/m | 1/m · m_L^-½ | 1/m |
| learning rate of norms and biases in blocks | 1 | 1 | m_L^-½ | 1 |
| weight decay of hidden matrices | 1 | m | m | m |
| what a part adds to the residual | 1 | 1 | m_L^-½ | m_L^-1 |
| states before the output embedding | 1 | 1/m | 1/m | 1/m |

(Yang 2022, arXiv 2203.03466, table 8; Yang 2023, arXiv 2310.02244; Dey 2025, arXiv 2505.01618, table 1.) Scores need no
factor, although the rules divide by d instead of √d: heads keep their width d, and a wider model has more of them.
Embeddings, and a scorer's own parameters, whose sizes follow the head, keep their rates. AdamW's epsilon is not scaled:
it has to be small.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from attnkit.errors import UsageError, check_count, nearest
from attnkit.models.blocks import Block
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.kinds import vectors
from attnkit.models.language import AttnKitForCausalLM
from attnkit.scaling.choices import Rule
from attnkit.scaling.subject import MOST_LAYERS

DEPTH_POWER = {"mup": 0.0, "depth-mup": 0.5, "completep": 1.0}


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The factors of one model on what was tuned on its base."""

    init_std: float = 1.0
    hidden_rate: float = 1.0
    vector_rate: float = 1.0
    hidden_decay: float = 1.0
    output_scale: float = 1.0
    residual_scale: float = 1.0

    def scaled(self, config: AttnKitConfig) -> AttnKitConfig:
        """The config with the factors that a config can say; a config that says them already stays as it is.

        Raises `UsageError` where it says others: they would be lost.
        """
        scaled = copy.deepcopy(config)
        for name in ("output_scale", "residual_scale"):
            said, factor = vars(config)[name], vars(self)[name]
            if said not in (1, factor):
                raise UsageError(
                    f"model.{name}: {said} is not {factor:g}, which the rule of transfer asks for: drop it"
                )
            setattr(scaled, name, factor)
        return scaled

    @torch.no_grad()
    def start(self, model: nn.Module) -> None:
        """Scale the random weights that hidden matrices start from."""
        for weight in hidden_matrices(model):
            weight.mul_(self.init_std)

    def factors(self, model: nn.Module) -> dict[int, tuple[float, float]]:
        """Factors of learning rate and weight decay, by the `id` of the parameter; all others keep theirs."""
        of_blocks = {id(parameter) for parameter in block_parameters(model)}
        found = dict.fromkeys(vectors(model) & of_blocks, (self.vector_rate, 1.0))
        return found | {id(it): (self.hidden_rate, self.hidden_decay) for it in hidden_matrices(model)}


def transfer(
    config: PreTrainedConfig, *, rule: str, base_hidden_size: int | None, base_num_hidden_layers: int | None
) -> Transfer:
    """The factors for a decoder whose learning rate was tuned on a model of the base's width and depth.

    Raises `UsageError` for an unknown rule, sizes that are missing or below 1, and models that no rule covers.
    """
    if rule not in get_args(Rule):
        raise UsageError(f"unknown rule {rule!r}: {nearest(rule, get_args(Rule))}")
    if base_hidden_size is None or base_num_hidden_layers is None or min(base_hidden_size, base_num_hidden_layers) < 1:
        raise UsageError("base_hidden_size and base_num_hidden_layers must be given, and at least 1")
    check_count("base_hidden_size", base_hidden_size)
    check_count("base_num_hidden_layers", base_num_hidden_layers, most=MOST_LAYERS)
    if not isinstance(config, AttnKitConfig) or config.architecture != "decoder":
        raise UsageError(
            f"rule {rule!r} is for a decoder of attnkit, and this is none: its papers do not say how cross attention "
            "and the heads of encoders scale, so tune the learning rate on the model itself"
        )
    wider, deeper = config.hidden_size / base_hidden_size, config.num_hidden_layers / base_num_hidden_layers
    power = DEPTH_POWER[rule]
    depth_rate = deeper ** (power - 1) if power else 1.0
    return Transfer(
        init_std=wider**-0.5,
        hidden_rate=depth_rate / wider,
        vector_rate=depth_rate,
        hidden_decay=wider,
        output_scale=1 / wider,
        residual_scale=deeper**-power,
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
    rule: Rule | None,
    base_hidden_size: int,
    base_num_hidden_layers: int,
    steps: int = 4,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> list[Coordinate]:
    """Train models of several sizes for a few steps on one batch of random tokens and measure their activations.

    Where the rules hold, the change of an activation from the first to the last step has one size at every width and
    depth (Yang 2022, appendix D.1). Without a rule all models are trained alike.
    """
    found = []
    for config in configs:
        base = {"base_hidden_size": base_hidden_size, "base_num_hidden_layers": base_num_hidden_layers}
        factors = Transfer() if rule is None else transfer(config, rule=rule, **base)
        torch.manual_seed(seed)
        model = AttnKitForCausalLM(factors.scaled(config)).train()
        factors.start(model)
        size = {"width": config.hidden_size, "layers": config.num_hidden_layers}
        for step, changes in enumerate(few_steps(model, factors, steps, learning_rate=learning_rate, seed=seed), 1):
            found += [Coordinate(**size, step=step, place=place, size=change) for place, change in changes.items()]
    return found


def few_steps(
    model: AttnKitForCausalLM, factors: Transfer, steps: int, *, learning_rate: float, seed: int
) -> Iterator[dict[str, float]]:
    """How far activations have moved after each step, in the mean."""
    of_id, groups = factors.factors(model), []
    for parameter in model.parameters():
        rate, _ = of_id.get(id(parameter), (1.0, 1.0))
        groups.append({"params": [parameter], "lr": learning_rate * rate})
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    ids = torch.randint(model.config.vocab_size, (4, 16), generator=torch.Generator().manual_seed(seed))
    first = activations(model, ids)
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield {place: float((it - first[place]).abs().mean()) for place, it in activations(model, ids).items()}


@torch.no_grad()
def activations(model: AttnKitForCausalLM, ids: Tensor) -> dict[str, Tensor]:
    """What the last block and the output embedding make of a text."""
    out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
    return {"last block": out.hidden_states[-1], "logits": out.logits}


def draw_coordinates(
    checks: Mapping[str, Sequence[Coordinate]], path: Path, *, over: Literal["width", "layers"]
) -> None:
    """The size of each activation's change over the size of the model, a line per step; a row of pictures per check."""
    from matplotlib.figure import Figure

    places = sorted({it.place for coordinates in checks.values() for it in coordinates})
    figure = Figure(figsize=(5 * len(places), 3.5 * len(checks)), layout="constrained")
    axes = figure.subplots(len(checks), len(places), squeeze=False, sharey="col")
    for row, (title, coordinates) in zip(axes, checks.items(), strict=True):
        for axis, place in zip(row, places, strict=True):
            for step in sorted({it.step for it in coordinates}):
                points = [(vars(it)[over], it.size) for it in coordinates if it.place == place and it.step == step]
                axis.plot(*zip(*sorted(points), strict=True), marker="o", label=f"step {step}")
            axis.set(xscale="log", yscale="log", xlabel=over, ylabel="mean change", title=f"{place}, {title}")
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)
