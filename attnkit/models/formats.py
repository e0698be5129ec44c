"""What a format of transformers is: names of weights and of configuration fields, in both directions.

A name "layers.{i}.x" stands for every layer. Where a rule names a module, it holds for its weight and its bias.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attnkit.errors import UsageError
from attnkit.models import labels, language
from attnkit.models.configuration_attnkit import AttnKitConfig
from attnkit.models.modeling_attnkit import AttnKitModel
from attnkit.models.pretrained import AttnKitPreTrainedModel


@dataclass(frozen=True)
class Rule:
    """Their module or parameter for one of ours; `transposed` where theirs keeps its weight the other way round,
    `absent` where they have none, and ours is zero. Shapes may differ as long as the numbers are in one order."""

    theirs: str
    transposed: bool = False
    absent: bool = False

    def placed(self, prefix: str, layer: int) -> "Rule":
        return replace(self, theirs=prefix + self.theirs.format(i=layer))

    def part_of(self, tensor: Tensor) -> Tensor:
        return tensor.flatten(1).T if self.transposed else tensor

    def whole(self, parts: list[Tensor]) -> Tensor:
        return parts[0].T if self.transposed else parts[0]


@dataclass(frozen=True)
class Swapped(Rule):
    """The first two dimensions change places."""

    def part_of(self, tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1)

    def whole(self, parts: list[Tensor]) -> Tensor:
        return parts[0].transpose(0, 1)


@dataclass(frozen=True)
class Fused(Rule):
    """One of `count` of our modules whose outputs stand side by side in one of theirs."""

    index: int = 0
    count: int = 1

    def part_of(self, tensor: Tensor) -> Tensor:
        return super().part_of(tensor).chunk(self.count)[self.index]

    def whole(self, parts: list[Tensor]) -> Tensor:
        return super().whole([torch.cat(parts)])


def table(text: str) -> dict[str, Rule]:
    """Rules from lines of two names, ours and theirs."""
    names = text.split()
    return {ours: Rule(theirs) for ours, theirs in zip(names[::2], names[1::2], strict=True)}


@dataclass(frozen=True)
class Head:
    """One of our classes for one of theirs.

    `prefixes` are those of the body's names, ours and theirs; `fields` those of our configuration that the class
    decides, `unused` those that it does not read, and `required` what their configuration must say for this class.
    """

    model_class: type[AttnKitPreTrainedModel]
    prefixes: tuple[str, str] = ("model.", "")
    rules: dict[str, Rule] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    required: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """One `model_type` of transformers.

    `names` are fields of our configuration and theirs, `constants` what the format takes for granted, `required` what a
    foreign configuration must say to have a meaning here. `read_more` and `write_more` are for fields that are not the
    same number, `observe` for the fields that only the weights tell, and `expect` for what it will tell of an export.
    `unsaid` are fields of ours that the format has no need for, `own_weights` ends of names that it fills itself, and
    `zeros` of those that are zero where ours has none.
    """

    model_type: str
    names: dict[str, str]
    constants: dict[str, Any]
    body: Callable[[AttnKitConfig], dict[str, Rule]]
    heads: dict[str, Head]
    required: dict[str, Any] = field(default_factory=dict)
    read_more: Callable[[Any], dict[str, Any]] = lambda _: {}
    write_more: Callable[[AttnKitConfig], dict[str, Any]] = lambda _: {}
    observe: Callable[[PreTrainedModel], dict[str, Any]] = lambda _: {}
    expect: Callable[[AttnKitConfig], dict[str, Any]] = lambda _: {}
    own_weights: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    unsaid: frozenset[str] = frozenset()

    def read(self, config: Any, head: Head) -> dict[str, Any]:
        """Our fields for a configuration of transformers. Raises `UsageError` for an option without a counterpart."""
        for key, value in (self.required | head.required).items():
            if getattr(config, key) != value:
                raise UsageError(
                    f"{self.model_type}: {key} {getattr(config, key)!r} has no counterpart, only {value!r} has one"
                )
        named = {ours: getattr(config, theirs) for ours, theirs in self.names.items()}
        fields = self.constants | named | self.read_more(config) | head.fields
        if config.is_encoder_decoder != (fields["architecture"] == "encoder-decoder"):
            kind = f"{fields['architecture']!r}"
            raise UsageError(f"{self.model_type}: is_encoder_decoder {config.is_encoder_decoder} is wrong for {kind}")
        return fields

    def write(self, config: AttnKitConfig) -> dict[str, Any]:
        """Their fields for a configuration of ours, as far as they have a word for it."""
        named = {theirs: getattr(config, ours) for ours, theirs in self.names.items()}
        return {"is_encoder_decoder": config.is_encoder_decoder} | named | self.write_more(config)


SAME_NAMES = (
    "vocab_size",
    "initializer_range",
    "tie_word_embeddings",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "id2label",
    "label2id",
    "problem_type",
)
LANGUAGE_FIELDS = frozenset(
    {"output_transform", "output_transform_act", "output_bias", "output_scale", "tie_word_embeddings"}
)
POOLING_FIELDS = frozenset({"pooler", "pooling"})
TWO_ENDS = {"num_labels": 2}


def field_names(*same: str, **renamed: str) -> dict[str, str]:
    """Fields that both call the same, and fields of ours with their names."""
    return {name: name for name in (*SAME_NAMES, *same)} | renamed


def options_of(position: str, config: AttnKitConfig) -> dict[str, Any]:
    """The options of a position, if it is the configured one: those of another have no words in the format."""
    return config.position_options or {} if config.position == position else {}


def base() -> Head:
    """The body alone."""
    return Head(AttnKitModel, ("", ""), unused=LANGUAGE_FIELDS)


def causal_lm(theirs: str, rules: str = "lm_head lm_head", *, required: dict[str, Any] | None = None) -> Head:
    """The next token, from a body with the prefix `theirs`."""
    head = language.AttnKitForCausalLM
    return Head(head, ("model.", theirs), table(rules), unused=POOLING_FIELDS, required=required or {})


def masked_lm(theirs: str, rules: str, *, required: dict[str, Any] | None = None) -> Head:
    """The masked tokens."""
    head = language.AttnKitForMaskedLM
    return Head(head, ("model.", theirs), table(rules), unused=POOLING_FIELDS, required=required or {})


def seq2seq_lm(theirs: str, **rules: Rule) -> Head:
    """The target's next token."""
    rules = table("lm_head.weight lm_head.weight") | rules
    return Head(language.AttnKitForSeq2SeqLM, ("model.", theirs), rules, unused=POOLING_FIELDS)


def sequence_labels(theirs: str, rules: str, *, bias: bool = True) -> Head:
    """A label for a text; `bias` False where their last layer has none."""
    absent = {} if bias else {"score.bias": Rule("", absent=True)}
    head = labels.AttnKitForSequenceClassification
    return Head(head, ("model.", theirs), table(rules) | absent, unused=LANGUAGE_FIELDS)


def token_labels(theirs: str, rules: str) -> Head:
    """A label for each token."""
    unused = LANGUAGE_FIELDS | POOLING_FIELDS
    return Head(labels.AttnKitForTokenClassification, ("model.", theirs), table(rules), unused=unused)


def answers(theirs: str, *, required: dict[str, Any] | None = None) -> Head:
    """The ends of the answer in a text; `required` is `TWO_ENDS` where their last layer has an output per label."""
    unused, rules = LANGUAGE_FIELDS | POOLING_FIELDS, table("qa_outputs qa_outputs")
    head = labels.AttnKitForQuestionAnswering
    return Head(head, ("model.", theirs), rules, unused=unused, required=required or {})


def choices(theirs: str) -> Head:
    """One of several texts."""
    rules = table("score classifier")
    return Head(labels.AttnKitForMultipleChoice, ("model.", theirs), rules, unused=LANGUAGE_FIELDS)
