"""The models, registered with the Auto classes of transformers, and what is done with a whole model."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.convert import from_hf, to_hf
from attnkit.models.labels import (
    AttnKitForMultipleChoice,
    AttnKitForQuestionAnswering,
    AttnKitForSequenceClassification,
    AttnKitForTokenClassification,
)
from attnkit.models.language import (
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForPreTraining,
    AttnKitForSeq2SeqLM,
)
from attnkit.models.modeling_attnkit import AttnKitModel
from attnkit.models.permutation import AttnKitForPermutationLM
from attnkit.models.surgery import replace_scorer

__all__ = [
    "AUTO_CLASSES",
    "AttnKitForCausalLM",
    "AttnKitForMaskedLM",
    "AttnKitForMultipleChoice",
    "AttnKitForPermutationLM",
    "AttnKitForPreTraining",
    "AttnKitForQuestionAnswering",
    "AttnKitForSeq2SeqLM",
    "AttnKitForSequenceClassification",
    "AttnKitForTokenClassification",
    "AttnKitModel",
    "from_hf",
    "replace_scorer",
    "to_hf",
]

AUTO_CLASSES = {
    AutoModel: AttnKitModel,
    AutoModelForCausalLM: AttnKitForCausalLM,
    AutoModelForMaskedLM: AttnKitForMaskedLM,
    AutoModelForMultipleChoice: AttnKitForMultipleChoice,
    AutoModelForPreTraining: AttnKitForPreTraining,
    AutoModelForQuestionAnswering: AttnKitForQuestionAnswering,
    AutoModelForSeq2SeqLM: AttnKitForSeq2SeqLM,
    AutoModelForSequenceClassification: AttnKitForSequenceClassification,
    AutoModelForTokenClassification: AttnKitForTokenClassification,
}

AutoConfig.register(AttnKitConfig.model_type, AttnKitConfig)
for auto_class, model_class in AUTO_CLASSES.items():
    auto_class.register(AttnKitConfig, model_class)
