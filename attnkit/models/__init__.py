"""Configuration and models, registered with the Auto classes of transformers."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.modeling_attnkit import (
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForSequenceClassification,
    AttnKitModel,
    AttnKitPreTrainedModel,
)

__all__ = [
    "AttnKitConfig",
    "AttnKitForCausalLM",
    "AttnKitForMaskedLM",
    "AttnKitForSequenceClassification",
    "AttnKitModel",
    "AttnKitPreTrainedModel",
]

AutoConfig.register(AttnKitConfig.model_type, AttnKitConfig)
AutoModel.register(AttnKitConfig, AttnKitModel)
AutoModelForCausalLM.register(AttnKitConfig, AttnKitForCausalLM)
AutoModelForMaskedLM.register(AttnKitConfig, AttnKitForMaskedLM)
AutoModelForSequenceClassification.register(AttnKitConfig, AttnKitForSequenceClassification)
