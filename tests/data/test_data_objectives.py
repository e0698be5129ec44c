"""Laws of every objective: what is predicted, what is padded, and that labels count the terms of the loss."""

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_text import sentences
from transformers import PreTrainedTokenizerFast

from attnkit import AttnKitConfig
from attnkit.data import Objective, ObjectiveConfig, pack
from attnkit.data.objectives import IGNORED, objectives
from attnkit.errors import UsageError

every_objective = pytest.mark.parametrize("name", objectives)
Rows = list[dict[str, list[int]]]


def make(name: str, tokenizer: PreTrainedTokenizerFast, **options: float) -> Objective:
    return objectives[name](tokenizer, ObjectiveConfig(name=name, **options))


def rows_of(tokenizer: PreTrainedTokenizerFast, *lengths: int, seed: int = 0) -> Rows:
    """Rows of packed text, cut to the lengths."""
    documents = Dataset.from_dict({"text": sentences(20 * len(lengths), seed=seed)})
    packed = pack(documents, tokenizer, sequence_length=max(lengths)).rows
    return [{"input_ids": packed[index]["input_ids"][:length]} for index, length in enumerate(lengths)]


def without(tokenizer: PreTrainedTokenizerFast, kind: str) -> PreTrainedTokenizerFast:
    kept = {it: token for it, token in tokenizer.special_tokens_map.items() if it != kind}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **kept)


@every_objective
@given(lengths=st.lists(st.integers(2, 30), min_size=1, max_size=6), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_a_batch_is_its_rows_padded_to_the_longest(
    name: str, tokenizer: PreTrainedTokenizerFast, lengths: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    rows = rows_of(tokenizer, *lengths, seed=seed)
    batch = make(name, tokenizer)(rows)
    longest = max(lengths)
    assert batch["input_ids"].shape == batch["labels"].shape == (len(rows), longest)
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    is_real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    assert ("attention_mask" in batch) == (not is_real.all())
    assert torch.equal(batch.get("attention_mask", torch.ones_like(is_real)).bool(), is_real)
    assert (batch["input_ids"][~is_real] == tokenizer.pad_token_id).all()
    assert (batch["labels"][~is_real] == IGNORED).all()
    assert (batch["labels"] != IGNORED).any(dim=1).all()
    for row, labels in zip(rows, batch["labels"], strict=True):
        predicted = labels[: len(row["input_ids"])] != IGNORED
        assert torch.equal(labels[: len(predicted)][predicted], torch.tensor(row["input_ids"])[predicted])


@every_objective
def test_what_is_random_comes_from_the_generator_of_torch(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    rows, objective = rows_of(tokenizer, 30, 30, 7), make(name, tokenizer)
    torch.manual_seed(1)
    first, other = objective(rows), objective(rows)
    torch.manual_seed(1)
    again = objective(rows)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert (name == "masked") == (not torch.equal(first["labels"], other["labels"]))


@every_objective
def test_rows_are_not_changed(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"input_ids": torch.tensor(row["input_ids"])} for row in rows_of(tokenizer, 30, 30)]
    before = [row["input_ids"].clone() for row in rows]
    make(name, tokenizer)(rows)
    assert all(torch.equal(row["input_ids"], kept) for row, kept in zip(rows, before, strict=True))


@every_objective
def test_labels_count_the_terms_of_the_loss(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make(name, tokenizer)
    for architecture in objective.architectures:
        config = AttnKitConfig(
            architecture=architecture,
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = objective.auto_class.from_config(config).eval()
        batch = objective(rows_of(tokenizer, 30, 9, 2))
        with torch.no_grad():
            output = model(**batch)
        logits, labels = output.logits, batch["labels"]
        if architecture == "decoder":  # which predicts the next token
            logits, labels = logits[:, :-1], labels[:, 1:]
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        count = (batch["labels"] != IGNORED).sum()
        torch.testing.assert_close(output.loss * count, total)


def test_causal_predicts_every_token_but_the_first(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = make("causal", tokenizer)([{"input_ids": [9, 8, 7]}, {"input_ids": [6, 5]}])
    assert batch["input_ids"].tolist() == [[9, 8, 7], [6, 5, tokenizer.pad_token_id]]
    assert batch["labels"].tolist() == [[IGNORED, 8, 7], [IGNORED, 5, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    with pytest.raises(ValueError, match="a row of 1 tokens has none that is predicted from another"):
        make("causal", tokenizer)([{"input_ids": [9]}])


@pytest.mark.parametrize("mask_rate", [0.15, 0.5, 1.0])
def test_masked_hides_tokens_as_bert_does(mask_rate: float, tokenizer: PreTrainedTokenizerFast) -> None:
    num_tokens = 200_000
    tokens = torch.randint(len(tokenizer), (num_tokens,))
    batch = make("masked", tokenizer, mask_rate=mask_rate)([{"input_ids": tokens}])
    inputs, labels = batch["input_ids"][0], batch["labels"][0]
    special = torch.tensor([token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id])
    is_special, chosen = torch.isin(tokens, special), labels != IGNORED
    assert not chosen[is_special].any()
    assert torch.equal(inputs[~chosen], tokens[~chosen])

    # Four standard deviations of a share among that many draws.
    def close(share: torch.Tensor, expected: float, draws: int) -> bool:
        return abs(float(share) - expected) <= 4 * (expected * (1 - expected) / draws) ** 0.5

    num_text, num_chosen = int((~is_special).sum()), int(chosen.sum())
    masked, stayed = inputs[chosen] == tokenizer.mask_token_id, inputs[chosen] == tokens[chosen]
    assert close(chosen.sum() / num_text, mask_rate, num_text)
    assert close(masked.float().mean(), 0.8, num_chosen)
    by_chance = 0.1 / (len(tokenizer) - len(special))  # a random token may be the right one
    assert close(stayed.float().mean(), 0.1 + by_chance, num_chosen)
    drawn = inputs[chosen][~masked & ~stayed]
    assert not torch.isin(drawn, special).any()
    assert len(drawn.unique()) == len(tokenizer) - len(special)


def test_masked_predicts_something_in_every_row(tokenizer: PreTrainedTokenizerFast) -> None:
    objective, end = make("masked", tokenizer, mask_rate=1e-9), tokenizer.eos_token_id
    rows = [{"input_ids": [end, 9, end]}, {"input_ids": [9, 8, 7, 6]}] * 50
    labels = objective(rows)["labels"]
    assert ((labels != IGNORED).sum(dim=1) == 1).all()
    assert (labels[::2, 1] == 9).all()
    assert len(set(labels[1::2].max(dim=1).values.tolist())) == 4  # any of its tokens
    with pytest.raises(ValueError, match="a row of special tokens has none that could be predicted"):
        objective([{"input_ids": [end, end]}])


def test_masked_may_predict_what_is_unknown(tokenizers: dict) -> None:
    tokenizer = tokenizers["wordpiece"]
    unknown = tokenizer.unk_token_id
    labels = make("masked", tokenizer)([{"input_ids": [unknown, tokenizer.eos_token_id]}])["labels"]
    assert labels.tolist() == [[unknown, IGNORED]]


@every_objective
def test_a_tokenizer_that_lacks_a_token_is_refused(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    for kind in ("pad_token", "mask_token"):
        if kind == "mask_token" and name != "masked":
            make(name, without(tokenizer, kind))
            continue
        with pytest.raises(
            UsageError, match=rf"objective.name: '{name}' needs a {kind}, .*give its folder as tokenizer"
        ):
            make(name, without(tokenizer, kind))


@pytest.mark.parametrize("mask_rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_mask_rate_that_is_no_rate_is_refused(mask_rate: float, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UsageError, match=r"objective.mask_rate: got .* above 0 and at most at 1"):
        make("masked", tokenizer, mask_rate=mask_rate)


@every_objective
def test_an_architecture_that_does_not_suit_is_refused(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make(name, tokenizer)
    for architecture in objective.architectures:
        objective.check_architecture(architecture, name=name)
    for architecture in {"encoder", "decoder"} - set(objective.architectures):
        other = {"encoder": "masked", "decoder": "causal"}[architecture]
        with pytest.raises(UsageError, match=rf"'{name}' trains .*, not '{architecture}'; objectives for .*{other}"):
            objective.check_architecture(architecture, name=name)
    with pytest.raises(UsageError, match="objectives for 'brain': none"):
        objective.check_architecture("brain", name=name)


def test_an_unknown_objective_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown objective 'masked_lm': did you mean 'masked'\?"):
        objectives["masked_lm"]
