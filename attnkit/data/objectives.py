"""What a model is trained to predict: from rows of token ids to inputs and labels."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class ObjectiveConfig:
    """What the pretraining loss is."""

    name: str = "causal"
    """A name of the registry `attnkit.objectives`."""
    mask_rate: float = 0.15
    """`masked`: the part of the tokens that is predicted (Devlin 2019)."""
