"""transformers' own shared test suites on the AttnKit models: three architectures times three scorers.

    make test-hf

The suites ship in transformers' source distribution, which is downloaded for the run. Of their tests folder it has only
the files at the top, so the sub-packages that they import are supplied empty: the exporters', the generation's and the
configuration's own cases are not part of the run. A test left out for a reason that is not listed here fails.
"""

import re
import sys
import tarfile
import tempfile
import types
import unittest
from importlib.metadata import version
from pathlib import Path
from subprocess import run
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from attnkit import (
    AttnKitConfig,
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForMultipleChoice,
    AttnKitForPreTraining,
    AttnKitForQuestionAnswering,
    AttnKitForSeq2SeqLM,
    AttnKitForSequenceClassification,
    AttnKitForTokenClassification,
    AttnKitModel,
)
from attnkit.models.auto import AUTO_CLASSES

SCORERS = ("scaled_dot", "gaussian", "additive")
FOLDER = tempfile.TemporaryDirectory(prefix="transformers-tests-", ignore_cleanup_errors=True)

MAPPINGS = {
    "MODEL_MAPPING_NAMES": AttnKitModel,
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES": AttnKitForPreTraining,
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": AttnKitForCausalLM,
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": AttnKitForMaskedLM,
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": AttnKitForSeq2SeqLM,
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": AttnKitForSequenceClassification,
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": AttnKitForTokenClassification,
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": AttnKitForQuestionAnswering,
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": AttnKitForMultipleChoice,
}


def load_suites() -> types.ModuleType:
    """Download the source distribution and import its tests folder as the package `hf_tests`."""
    folder = Path(FOLDER.name)
    name = f"transformers=={version('transformers')}"
    # Only the archive is wanted: no dependency, and no isolated build to read its metadata.
    options = ["--quiet", "--no-deps", "--no-binary", "transformers", "--no-build-isolation", "--dest", str(folder)]
    run([sys.executable, "-m", "pip", "download", *options, name], check=True)
    (archive,) = folder.glob("transformers-*.tar.gz")
    with tarfile.open(archive) as distribution:
        distribution.extractall(folder, filter="data")
    tests = folder / archive.name.removesuffix(".tar.gz") / "tests"
    (tests / "__init__.py").touch()
    package = types.ModuleType("hf_tests")
    package.__path__ = [str(tests)]
    sys.modules["hf_tests"] = package
    supply("hf_tests.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
    supply("hf_tests.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    supply("hf_tests.utils.test_configuration_utils", config_common_kwargs={})
    return package


def supply(name: str, **members: Any) -> None:
    """Put a module into memory, with the package that it is in."""
    package = types.ModuleType(name.rpartition(".")[0])
    package.__path__ = []
    sys.modules.setdefault(package.__name__, package)
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


load_suites()
for mapping, model_class in MAPPINGS.items():
    # The suites know by these names which labels a class takes.
    vars(modeling_auto)[mapping][AttnKitConfig.model_type] = model_class.__name__

from hf_tests.generation.test_utils import GenerationTesterMixin  # noqa: E402
from hf_tests.test_configuration_common import ConfigTester  # noqa: E402
from hf_tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask  # noqa: E402
from hf_tests.test_training_mixin import TrainingTesterMixin  # noqa: E402

LABEL_CLASSES = (AttnKitForSequenceClassification, AttnKitForTokenClassification, AttnKitForQuestionAnswering)
CLASSES = {
    "encoder": (AttnKitModel, AttnKitForMaskedLM, AttnKitForPreTraining, *LABEL_CLASSES, AttnKitForMultipleChoice),
    "decoder": (AttnKitModel, AttnKitForCausalLM, *LABEL_CLASSES),
    "encoder-decoder": (AttnKitModel, AttnKitForSeq2SeqLM, *LABEL_CLASSES),
}
assert {cls for classes in CLASSES.values() for cls in classes} == set(AUTO_CLASSES.values())


# What the suites say where they leave a test out, and why that is right. Whatever else is left out fails.
MISSING = "needs what the machine may not have"
PEERS = "transformers' own BERT, Llama and T5 leave it out too"
ALLOWED_SKIPS = {
    r"^test requires (Flash Attention|accelerator|multiple accelerators|MPS|deepspeed|the kernels library)": MISSING,
    r"^test is slow$": PEERS,
    r"^Not a prioritized model for now\.$": PEERS,
    r"^Model is not a composite model\.$|^No subconfigs |^This model is not composite$": PEERS,
    r"^AttnKitModel does not support SDPA$": PEERS + ": the test is of composite models, and says so in these words",
    r"_keep_in_fp32_modules": PEERS + ": no part is kept in fp32",
    r"^No conversion found for <class ": PEERS + ": weights are saved under the names that they have",
    r"^Model does not have position embeddings$": PEERS + ": they grow by max_position_embeddings, not by a method",
    r"^Model does not support sliding window mask$": PEERS + ": a window is a pattern here",
    r"^Model does not support output_attentions$": PEERS,
    r"^This model has no (`output_router_logits` in its config|sparse experts)\.$": PEERS,
    r"does not support grouped_mm$": PEERS + ": no mixture of experts",
    r"axial RoPE": PEERS + ": positions of images",
    r"^No (decoder-only|sequence-to-sequence) language modeling head to check$": PEERS + ", each the other's",
    r"does not propagate hidden states correctly or uses another name$": "T5 too: two stacks have two names for them",
    r"^Do not take a cache as input to forward$": "encoders, and heads that label a whole text, go on with none",
    r"^Not returning cache or non standard Cache$": "a head that labels a whole text returns no cache",
    r"^This model does not (support RoPE scaling|have RoPE)$": (
        "it is an option of a position here, not `rope_parameters`; tests/models/test_convert.py holds it to Llama's"
    ),
    r"^Parts of this model don't support sdpa$": "additive scores are no dot product",
    r"^Model does not have a TP plan\.$": "a scorer that reads its parameters once more cannot be divided",
    r"^asks the class, which serves all scorers, ": "the class says it of all scorers, the model of its own",
}


class AttnKitTester:
    """A tiny configuration and inputs for it, under the names that the suites ask for."""

    batch_size = 3
    seq_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_labels = 3
    num_choices = 4

    def __init__(self, parent: unittest.TestCase, *, architecture: str, scorer: str) -> None:
        self.parent = parent
        self.architecture = architecture
        self.scorer = scorer
        language = {
            "decoder": AttnKitForCausalLM,
            "encoder": AttnKitForMaskedLM,
            "encoder-decoder": AttnKitForSeq2SeqLM,
        }
        self.causal_lm_class = language[architecture]
        if architecture == "encoder-decoder":
            self.encoder_seq_length = self.decoder_seq_length = self.seq_length

    def get_config(self) -> AttnKitConfig:
        return AttnKitConfig(
            architecture=self.architecture,
            scorer=self.scorer,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=2,
            intermediate_size=37,
            max_position_embeddings=64,
            type_vocab_size=2 if self.architecture == "encoder" else 0,
            pooler=self.architecture == "encoder",
            num_labels=self.num_labels,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )

    def prepare_config_and_inputs(self) -> tuple[AttnKitConfig, dict[str, torch.Tensor]]:
        shape = [self.batch_size, self.seq_length]
        inputs = {
            "input_ids": ids_tensor(shape, self.vocab_size - 3) + 3,
            "attention_mask": random_attention_mask(shape),
        }
        if self.architecture == "encoder":
            inputs["token_type_ids"] = ids_tensor(shape, 2)
        if self.architecture == "encoder-decoder":
            inputs["decoder_input_ids"] = ids_tensor(shape, self.vocab_size - 3) + 3
            inputs["decoder_attention_mask"] = random_attention_mask(shape)
        return self.get_config(), inputs

    prepare_config_and_inputs_for_common = prepare_config_and_inputs


class SuiteMixin(ModelTesterMixin):
    """What every architecture and scorer is put through."""

    architecture: str
    scorer: str
    model_tester: AttnKitTester

    def setUp(self) -> None:
        self.model_tester = AttnKitTester(self, architecture=self.architecture, scorer=self.scorer)
        self.config_tester = ConfigTester(self, config_class=AttnKitConfig, hidden_size=32, num_attention_heads=4)

    def run(self, result: Any = None) -> Any:
        """As unittest does it, but what may not be left out fails."""
        skip = result.addSkip

        def check_skip(test: Any, reason: str) -> None:
            if any(re.search(pattern, reason) for pattern in ALLOWED_SKIPS):
                skip(test, reason)
                return
            try:
                self.fail(f"left out, for no reason in ALLOWED_SKIPS: {reason}")
            except self.failureException:
                result.addFailure(test, sys.exc_info())

        result.addSkip = check_skip
        return super().run(result)

    def _prepare_for_class(self, inputs: dict, model_class: type, return_labels: bool = False) -> dict:
        inputs = super()._prepare_for_class(inputs, model_class, return_labels=return_labels)
        if return_labels and model_class is AttnKitForPreTraining:  # as in transformers' tests of BERT
            inputs["labels"] = torch.zeros_like(inputs["input_ids"])
            inputs["next_sentence_label"] = torch.zeros(self.model_tester.batch_size, dtype=torch.long)
        return inputs

    def test_config(self) -> None:
        self.config_tester.run_common_tests()


def suite(architecture: str, scorer: str) -> type[unittest.TestCase]:
    members = {
        "architecture": architecture,
        "scorer": scorer,
        "all_model_classes": CLASSES[architecture],
        "is_encoder_decoder": architecture == "encoder-decoder",
        "model_tester": None,
        "__module__": __name__,
    }
    if scorer == "additive":
        members["test_sdpa_can_dispatch_non_composite_models"] = unittest.skip(
            "asks the class, which serves all scorers, whether it supports sdpa; with this one the model does not"
        )(lambda self: None)
    name = f"{architecture.title().replace('-', '')}{scorer.title().replace('_', '')}Test"
    # The overfitting test prompts an encoder with one token of the text it was trained to copy: not for two stacks.
    training = () if architecture == "encoder-decoder" else (TrainingTesterMixin,)
    generation = () if architecture == "encoder" else (GenerationTesterMixin,)
    return type(name, (SuiteMixin, *training, *generation, unittest.TestCase), members)


for _architecture in CLASSES:
    for _scorer in SCORERS:
        _suite = suite(_architecture, _scorer)
        globals()[_suite.__name__] = _suite
del _suite  # a second name for the last one would run it twice
