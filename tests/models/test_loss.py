"""The loss without logits: what the logits give, in value and gradient, for every head that predicts tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit import (
    AttnKitConfig,
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForPermutationLM,
    AttnKitForPreTraining,
    AttnKitForSeq2SeqLM,
)
from attnkit.attention.normalizers import Stochastic
from attnkit.models.language import LanguageModel, minimising
from attnkit.models.loss import IGNORED, TokenLoss

HEADS: dict[type[LanguageModel], dict[str, Any]] = {
    AttnKitForCausalLM: {"architecture": "decoder", "output_transform": True},
    AttnKitForMaskedLM: {"architecture": "encoder", "output_transform": False},
    AttnKitForPreTraining: {"architecture": "encoder", "pooler": True},
    AttnKitForPermutationLM: {"architecture": "encoder", "two_stream": True, "position": "transformer_xl"},
    AttnKitForSeq2SeqLM: {"architecture": "encoder-decoder", "decoder_start_token_id": 0},
}
TIES = {"tied": {"tie_word_embeddings": True}, "untied": {"tie_word_embeddings": False, "output_bias": True}}
SIZES = {"vocab_size": 29, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}
LENGTH = 70  # tokens: eight rows of them are more than one chunk


def make(head: type[LanguageModel], **fields: Any) -> LanguageModel:
    torch.manual_seed(1)
    return head(AttnKitConfig(**(SIZES | {"max_position_embeddings": LENGTH} | HEADS[head] | fields)))


def batch_of(model: LanguageModel) -> dict[str, Tensor]:
    """Rows of different lengths, in which about half of the tokens are predicted."""
    ids = torch.randint(1, 29, (8, LENGTH))
    labels = torch.where(torch.rand(ids.shape) < 0.8, ids, IGNORED)
    labels[0, 20:] = IGNORED
    return {"input_ids": ids, "labels": labels}


def loss_and_gradients(model: LanguageModel, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(**batch).loss
    (3 * loss).backward()
    return {"loss": loss.detach()} | {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("head", HEADS)
def test_loss_and_gradient_are_those_of_the_logits(head: type[LanguageModel], tie: str) -> None:
    model = make(head, **TIES[tie], output_scale=0.7).double()
    batch = batch_of(model)
    logits, predicted = whole_logits(model, batch)
    for loss in (TokenLoss(), TokenLoss(label_smoothing=0.1, z_loss=1e-2)):
        model.zero_grad()
        expected = loss.of_logits(logits[predicted != IGNORED], predicted[predicted != IGNORED])[0]
        expected = expected / (predicted != IGNORED).sum()
        (3 * expected).backward(retain_graph=True)
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        gradients = {name: gradient.clone() for name, gradient in gradients.items()}
        model.token_loss = loss
        actual = loss_and_gradients(model, batch)
        torch.testing.assert_close(actual.pop("loss"), expected.detach(), rtol=0, atol=1e-12)
        assert actual.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(actual[name], gradient, rtol=0, atol=1e-12)


def whole_logits(model: LanguageModel, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits of a pass that gives them, and the labels of their places."""
    output = model(**batch)
    logits = output.prediction_logits if isinstance(model, AttnKitForPreTraining) else output.logits
    shifted = F.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:] if model.predicts_next else batch["labels"]
    return logits, shifted


@pytest.mark.parametrize("head", HEADS)
def test_the_definition_is_that_of_torch_and_transformers(head: type[LanguageModel]) -> None:
    model = make(head)
    batch = batch_of(model)
    theirs = model(**batch).loss
    model.token_loss = TokenLoss()
    assert torch.allclose(model(**batch).loss, theirs, atol=1e-6)
    logits, labels = torch.randn(5, 9, dtype=torch.float64), torch.randint(0, 9, (5,))
    ours, nll = TokenLoss(label_smoothing=0.2, z_loss=0.3).of_logits(logits, labels)
    z_loss = 0.3 * logits.logsumexp(-1).square().sum()
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2, reduction="sum") + z_loss
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(nll, F.cross_entropy(logits, labels, reduction="none"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_logits_come_without_labels_and_after_the_run(head: type[LanguageModel]) -> None:
    model = make(head)
    batch, names = batch_of(model), {"logits", "prediction_logits"}
    inputs = {"input_ids": batch["input_ids"]}
    inputs |= {"decoder_input_ids": batch["input_ids"]} if model.config.is_encoder_decoder else {}
    with minimising(TokenLoss(), model):
        assert not names & set(model(**batch).keys())
        assert names & set(model(**inputs).keys())
    assert names & set(model(**batch).keys())


def test_models_of_others_are_left_alone() -> None:
    layer = nn.Linear(2, 2)
    with minimising(TokenLoss(), layer):
        assert "token_loss" not in vars(layer)


def test_autocast_computes_in_its_own_precision_and_leaves_whole_gradients() -> None:
    model = make(AttnKitForCausalLM, tie_word_embeddings=False)
    batch = batch_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = loss_and_gradients(model, batch)
        model.token_loss = TokenLoss()
        ours = loss_and_gradients(model, batch)
    assert {tensor.dtype for tensor in ours.values()} == {torch.float32}
    for name, expected in theirs.items():  # bf16 has three digits
        torch.testing.assert_close(ours[name], expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at itself while it traces
def test_a_compiled_model_has_the_same_loss() -> None:
    model = make(AttnKitForMaskedLM)
    model.token_loss = TokenLoss()
    batch = batch_of(model)
    expected = loss_and_gradients(model, batch)
    compiled = torch.compile(model, backend="eager")
    model.zero_grad()
    compiled(**batch).loss.mul(3).backward()
    torch.testing.assert_close(model.lm_head.weight.grad, expected["model.encoder.embeddings.tokens.weight"])


class Adapted(nn.Linear):
    """An output embedding to which something is added, as an adapter adds it."""

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states) + 1e-2 * states.sum(-1, keepdim=True) * torch.arange(self.out_features)


def test_an_adapted_output_embedding_is_called() -> None:
    model = make(AttnKitForCausalLM)
    model.lm_head = Adapted(16, 29)
    batch = batch_of(model)
    expected = loss_and_gradients(model, batch)
    model.token_loss = TokenLoss()
    actual = loss_and_gradients(model, batch)
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor)


def test_what_is_kept_for_the_backward_pass_does_not_grow_with_tokens_times_vocabulary() -> None:
    states, weight = torch.randn(4096, 8, requires_grad=True), torch.randn(4000, 8, requires_grad=True)
    labels = torch.randint(0, 4000, (4096,))
    largest = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total, _ = TokenLoss().of_states(states, labels, weight=weight, bias=None)
    total.backward()
    assert largest == states.numel()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        total.backward()


def test_the_number_of_items_in_a_batch_divides_the_sum() -> None:
    model = make(AttnKitForCausalLM)
    batch = batch_of(model)
    expected = model(**batch, num_items_in_batch=7).loss
    model.token_loss = TokenLoss()
    assert torch.allclose(model(**batch, num_items_in_batch=torch.tensor(7)).loss, expected)


def test_draws_learn_from_the_loss_of_their_row() -> None:
    model = make(AttnKitForCausalLM, normalizer="stochastic")
    batch = batch_of(model)
    torch.manual_seed(5)
    expected = loss_and_gradients(model, batch)
    for module in model.modules():
        if isinstance(module, Stochastic):
            module.reset_parameters()
    model.token_loss = TokenLoss()
    torch.manual_seed(5)
    actual = loss_and_gradients(model, batch)
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-4, atol=1e-5)
