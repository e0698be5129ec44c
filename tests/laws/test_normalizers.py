"""What all normalizers promise in half precision, and what single ones promise beyond the laws of all."""

import copy
from typing import Any

import pytest
import torch
from parts import Part, variants

import attnkit
from attnkit.attention import normalizers
from attnkit.errors import UsageError


@pytest.mark.parametrize("training", [False, True], ids=["after training", "in training"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("part", variants("normalizer"), ids=str)
def test_rows_of_half_precision_are_those_of_fp32_in_fewer_digits(
    part: Part, dtype: torch.dtype, training: bool
) -> None:
    """Over more keys than fp16 has numbers for, and for scores whose weights half precision cannot tell apart."""
    normalizer = normalizers[part.name](num_heads=2, **dict(part.options)).train(training)
    some = torch.rand(1, 1, 3, 70_000) > 0.02
    some[0, 0, 2, 9:] = False
    for spread in (3.0, 1.0, 0.001):
        scores = (spread * torch.randn(1, 2, 3, 70_000)).to(dtype)
        for allowed in (None, some):
            rows = []
            for same_scores in (scores, scores.float()):
                torch.manual_seed(0)
                normalizer.reset_parameters()
                rows.append(normalizer(same_scores, allowed))
            assert rows[0].dtype == dtype
            torch.testing.assert_close(rows[0], rows[1].to(dtype), rtol=0, atol=0)


def test_sparsemax_is_the_projection_on_the_simplex() -> None:
    """The nearest point of the simplex, found by bisection on its threshold."""
    scores = torch.randn(2, 2, 3, 9).double() * 2
    low, high = scores.amin(-1, keepdim=True) - 1, scores.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        too_much = (scores - middle).clamp(min=0).sum(-1, keepdim=True) > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    expected = (scores - low).clamp(min=0)
    torch.testing.assert_close(normalizers["sparsemax"](num_heads=2)(scores, None), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", variants("normalizer"), ids=str)
def test_scores_that_are_next_to_nothing_weigh_nothing(part: Part) -> None:
    """As masks that are added to scores make them, however far below the others."""
    normalizer = normalizers[part.name](num_heads=1, **dict(part.options)).eval()
    scores = torch.randn(1, 1, 2, 5).requires_grad_()
    for hidden in (-1e9, -1e20, -1e30):
        weights = normalizer(torch.cat([scores[..., :3], torch.full((1, 1, 2, 2), hidden)], dim=-1), None)
        assert (weights[..., 3:] == 0).all(), hidden
        (gradient,) = torch.autograd.grad(weights.square().sum() + 0 * scores.sum(), scores)
        assert gradient.isfinite().all(), hidden


def test_entmax15_is_the_root_of_its_condition() -> None:
    """Σ max(s/2 - τ, 0)² = 1, found by bisection on τ."""
    scores = torch.randn(2, 2, 3, 9).double() * 2
    low, high = scores.amin(-1, keepdim=True) / 2 - 1, scores.amax(-1, keepdim=True) / 2
    for _ in range(80):
        middle = (low + high) / 2
        too_much = (scores / 2 - middle).clamp(min=0).square().sum(-1, keepdim=True) > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    expected = (scores / 2 - low).clamp(min=0).square()
    torch.testing.assert_close(normalizers["entmax15"](num_heads=2)(scores, None), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "softmax1", "sink", "sigmoid"])
def test_gradients_are_those_of_the_function(name: str) -> None:
    normalizer = normalizers[name](num_heads=2).double()
    scores = torch.randn(1, 2, 2, 5).double().requires_grad_()
    allowed = torch.rand(1, 1, 2, 5) > 0.3
    allowed[..., 0] = True
    assert torch.autograd.gradcheck(lambda s: normalizer(s, allowed), scores)


def test_gumbel_cools_down_and_its_clock_is_saved() -> None:
    normalizer = normalizers["gumbel"](num_heads=1, initial_temperature=2.0, final_temperature=0.5, decay=0.1).train()
    assert normalizer.temperature(normalizer.num_passes) == 2.0
    for _ in range(30):
        weights = normalizer(torch.randn(1, 1, 2, 4), None)
    assert normalizer.temperature(normalizer.num_passes) == 0.5
    assert normalizer.state_dict()["num_passes"] == 30
    assert ((weights - weights.round()).abs() < 1e-6).all()  # straight-through: one-hot in value


def test_gumbel_draws_from_softmax() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0]).view(1, 1, 1, 3).expand(20000, 1, 1, 3)
    share = normalizers["gumbel"](num_heads=1).train()(scores, None).mean((0, 1, 2))
    torch.testing.assert_close(share, torch.softmax(scores[0, 0, 0], -1), atol=0.02, rtol=0)


def test_hard_passes_the_gradient_of_softmax() -> None:
    scores = torch.randn(1, 1, 2, 5).requires_grad_()
    direction = torch.randn(1, 1, 2, 5)
    (normalizers["hard"](num_heads=1)(scores, None) * direction).sum().backward()
    expected = torch.autograd.grad((torch.softmax(scores, -1) * direction).sum(), scores)[0]
    torch.testing.assert_close(scores.grad, expected)


def find_the_one_that_matters(*, with_policy: bool) -> float:
    """Accuracy on rows in which one token of six says the label, at a place that changes; only where a head looks
    decides, and what it draws has no gradient of its own."""
    torch.manual_seed(0)
    config = attnkit.AttnKitConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        position="none",
        normalizer="stochastic",
        num_labels=2,
    )
    model = attnkit.AttnKitForSequenceClassification(config).train()
    drawing = model.model.decoder.layers[0].attention.normalizer
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def sample(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels, place = torch.randint(2, (size,)), torch.randint(5, (size,))
        ids = torch.randint(2, 6, (size, 6)).scatter(1, place[:, None], labels[:, None])
        return ids.index_fill(1, torch.tensor([5]), 7), labels

    for _ in range(400):
        ids, labels = sample(64)
        outputs = model(input_ids=ids, labels=labels)
        loss = outputs.loss if with_policy else torch.nn.functional.cross_entropy(outputs.logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        drawing.draws = ()
    ids, labels = sample(1000)
    with torch.no_grad():
        return (model.eval()(input_ids=ids).logits.argmax(-1) == labels).float().mean().item()


def test_stochastic_attention_learns_through_the_models_output_alone() -> None:
    assert find_the_one_that_matters(with_policy=True) > 0.95
    assert find_the_one_that_matters(with_policy=False) < 0.8


@pytest.mark.parametrize("normalizer", ["stochastic", "gumbel"])
def test_draws_learn_the_same_with_activation_checkpointing(normalizer: str) -> None:
    """And the clock of a schedule counts each pass once."""
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        sizes = {"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1}
        config = attnkit.AttnKitConfig(
            **sizes, normalizer=normalizer, normalizer_options={"decay": 0.5} if normalizer == "gumbel" else None
        )
        model = attnkit.AttnKitForCausalLM(config).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        ids = torch.randint(8, (3, 5))
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        clocks = [module.num_passes for module in model.modules() if isinstance(module, normalizers["gumbel"])]
        assert all(clock == 1 for clock in clocks)
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_policy_loss_without_a_pass_before_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="learns from the draws of the pass before its loss"):
        normalizers["stochastic"](num_heads=1).policy_loss(torch.ones(2))


SIZES = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def drawing_model(head: Any = attnkit.AttnKitForCausalLM, **fields: Any) -> Any:
    torch.manual_seed(0)
    return head(attnkit.AttnKitConfig(**SIZES | {"normalizer": "stochastic"} | fields)).train()


def ids_of(*shape: int) -> torch.Tensor:
    return torch.randint(3, 37, shape, generator=torch.Generator().manual_seed(1))


def test_a_batch_without_a_finite_loss_teaches_no_baseline() -> None:
    model, ids = drawing_model(), ids_of(4, 11)
    baseline = model.model.decoder.layers[0].attention.normalizer.baseline
    assert model(ids, labels=torch.full_like(ids, -100)).loss.isnan()
    assert baseline == 0
    states = torch.full((4, 11, 16), torch.inf)
    assert model(inputs_embeds=states, labels=ids).loss.isnan()
    assert baseline == 0
    assert model(ids, labels=ids).loss.isfinite()
    assert baseline > 0


def test_draws_of_parts_of_a_batch_weigh_what_they_do_in_the_whole() -> None:
    """The bonus drowns all else, and depends on no draw in one layer."""
    model, ids = drawing_model(normalizer_options={"entropy_bonus": 1e6}), ids_of(4, 11)
    labels = ids.clone()
    labels[0, :7] = -100
    whole = model(ids, labels=labels, num_items_in_batch=37).loss
    parts = [model(ids[part], labels=labels[part], num_items_in_batch=37).loss for part in (slice(2), slice(2, None))]
    torch.testing.assert_close(sum(parts), whole)
    mean = model(ids, labels=labels).loss
    torch.testing.assert_close(mean * int((labels[:, 1:] != -100).sum()), whole * 37)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_draws_nothing_that_counts(side: str) -> None:
    model, ids = drawing_model(normalizer_options={"entropy_bonus": 1e6}), ids_of(4, 11)
    alone = model(ids, labels=ids).loss
    padding, real = torch.zeros(4, 9, dtype=torch.long), torch.ones_like(ids)
    order = slice(None) if side == "right" else slice(None, None, -1)
    padded, mask = (torch.cat([each, padding][order], dim=1) for each in (ids, real))
    loss = model(padded, attention_mask=mask, labels=padded.masked_fill(mask == 0, -100)).loss
    torch.testing.assert_close(loss, alone)


def test_a_copy_learns_from_draws_of_its_own() -> None:
    model, ids = drawing_model(), ids_of(2, 5)
    model(ids)
    copied = copy.deepcopy(model)
    assert [len(it.draws()[0].draws) for it in (model, copied)] == [1, 0]
    assert copied(ids, labels=ids).loss.isfinite()


def test_checkpoints_that_leave_draws_untaught_are_refused() -> None:
    with pytest.raises(UsageError, match="use_reentrant: the pass before the loss then has no gradients"):
        drawing_model().activation_checkpointing_enable({"use_reentrant": True})
    drawing_model(normalizer="gumbel").activation_checkpointing_enable({"use_reentrant": True})


def test_draws_learn_in_every_head() -> None:
    """Of texts among which one is to be chosen, and in both streams of a permuted one, too."""
    ids, places = ids_of(3, 6), torch.eye(6)[None, :2].expand(3, -1, -1)
    two_streams = {"architecture": "encoder", "position": "transformer_xl", "two_stream": True}
    sentences = {"architecture": "encoder", "pooler": True, "type_vocab_size": 2}
    for model, inputs in (
        (drawing_model(attnkit.AttnKitForMultipleChoice), {"input_ids": ids[None], "labels": torch.tensor([1])}),
        (
            drawing_model(attnkit.AttnKitForPermutationLM, **two_streams),
            {"input_ids": ids, "target_mapping": places, "labels": ids[:, :2]},
        ),
        (
            drawing_model(attnkit.AttnKitForPreTraining, **sentences),
            {"input_ids": ids, "next_sentence_label": torch.tensor([0, 1, 1])},
        ),
    ):
        for draw in model.draws():
            draw.entropy_bonus = 1.0
        model(**inputs).loss.backward()
        for name, parameter in model.named_parameters():
            if name.endswith("q_proj.weight"):
                assert parameter.grad.abs().max() > 0, f"{type(model).__name__}: {name}"
