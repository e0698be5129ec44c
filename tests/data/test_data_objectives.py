"""Laws of every objective: what is predicted, what is padded, and that labels count the terms of the loss."""

from contextlib import suppress
from copy import deepcopy
from itertools import chain, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_text import ALGORITHMS
from matching_models import MODEL_FIELDS, make_objective, make_tokenizer, model_for, rows_for
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from attnkit import AttnKitConfig, scorers
from attnkit.data import ObjectiveConfig
from attnkit.data.objectives import IGNORED, objectives
from attnkit.data.objectives.base import document_positions
from attnkit.data.objectives.masking import TextTokens, num_noise, num_spans, random_spans
from attnkit.data.sources import PretrainDataConfig
from attnkit.errors import UsageError

every_objective = pytest.mark.parametrize("name", objectives)
RANDOM = ("masked", "permuted", "denoising", "next_sentence")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(sequence_length=30)


def without(tokenizer: PreTrainedTokenizerFast, *kinds: str) -> PreTrainedTokenizerFast:
    kept = {it: token for it, token in tokenizer.special_tokens_map.items() if it not in kinds}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **kept)


def special_ids(tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    return torch.tensor([token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id])


@every_objective
@given(picked=st.lists(st.integers(0, 10**6), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=10)
def test_a_batch_is_its_rows_padded_to_the_longest(
    name: str, tokenizer: PreTrainedTokenizerFast, picked: list[int], seed: int
) -> None:
    objective = make_objective(name, tokenizer)
    rows = rows_for(objective, tokenizer, 12, seed=seed % 4)
    rows = [rows[index % len(rows)] for index in picked] + [rows[len(rows) - 1]]
    torch.manual_seed(seed)
    examples = [objective.example(row) for row in rows]
    torch.manual_seed(seed)
    batch = objective(rows)
    lengths = torch.tensor([len(example["input_ids"]) for example in examples])
    longest = int(lengths.max())
    is_real = torch.arange(longest) < lengths[:, None]
    assert batch["input_ids"].shape == (len(rows), longest)
    assert all(values.dtype == torch.int64 for values in batch.values())
    assert ("attention_mask" in batch) == (not is_real.all())
    assert torch.equal(batch.get("attention_mask", torch.ones_like(is_real)).bool(), is_real)
    assert (batch["input_ids"][~is_real] == tokenizer.pad_token_id).all()
    assert not (batch["labels"] == tokenizer.pad_token_id).any()  # no label on padding
    assert (batch["labels"] != IGNORED).any(dim=1).all()  # and one in every row
    if "labels" in examples[0]:
        expected = [example["labels"] for example in examples]
        assert all(torch.equal(row[: len(own)], own) for row, own in zip(batch["labels"], expected, strict=True))
        assert all((row[len(own) :] == IGNORED).all() for row, own in zip(batch["labels"], expected, strict=True))


@every_objective
def test_special_tokens_are_neither_hidden_nor_put_in_their_place(
    name: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    objective = make_objective(name, tokenizer)
    rows, special = rows_for(objective, tokenizer), special_ids(tokenizer)
    new = {"masked": {tokenizer.mask_token_id}, "next_sentence": {tokenizer.mask_token_id}}
    new["denoising"] = {tokenizer.convert_tokens_to_ids(token) for token in ("<extra_id_0>", "<extra_id_1>")}
    for row in rows:
        example = objective.example(row)
        before, after = (
            [token for token in tokens if token in special.tolist()]
            for tokens in (row["input_ids"], example["input_ids"].tolist())
        )
        after = [token for token in after if token not in new.get(name, set())]
        if name == "denoising" and row["input_ids"][-1] != tokenizer.eos_token_id:  # inputs always end
            before.append(tokenizer.eos_token_id)
        assert after == before
        if name in ("masked", "next_sentence"):
            hidden = torch.tensor(row["input_ids"])[example["labels"] != IGNORED]
            assert not torch.isin(hidden, special).any()


@every_objective
def test_what_is_random_comes_from_the_generator_of_torch(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make_objective(name, tokenizer)
    rows = list(rows_for(objective, tokenizer, 8))
    torch.manual_seed(1)
    first, other = objective(rows), objective(rows)
    torch.manual_seed(1)
    again = objective(rows)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert (name in RANDOM) == (
        not (first["labels"].shape == other["labels"].shape and first["labels"].equal(other["labels"]))
    )
    assert list(rows_for(objective, tokenizer, 8)) == rows


@every_objective
def test_rows_are_not_changed(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make_objective(name, tokenizer)
    rows = [{key: torch.as_tensor(value) for key, value in row.items()} for row in rows_for(objective, tokenizer, 5)]
    before = [{key: value.clone() for key, value in row.items()} for row in rows]
    objective(rows)
    assert all(torch.equal(row[key], kept[key]) for row, kept in zip(rows, before, strict=True) for key in row)


@every_objective
def test_labels_count_the_terms_of_the_loss(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    objective, model = make_objective(name, tokenizer), model_for(name, tokenizer)
    batch = objective([*rows_for(objective, tokenizer, 5)])
    with torch.no_grad():
        output = model(**batch)
    logits = output.prediction_logits if name == "next_sentence" else output.logits
    labels = batch["labels"]
    if name == "causal":  # which predicts the next token
        logits, labels = logits[:, :-1], labels[:, 1:]
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    loss = output.loss
    if name == "next_sentence":
        loss = loss - F.cross_entropy(output.seq_relationship_logits, batch["next_sentence_label"])
    torch.testing.assert_close(loss * (batch["labels"] != IGNORED).sum(), total)


@every_objective
def test_a_step_against_the_gradient_lowers_the_loss(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    objective, model = make_objective(name, tokenizer), model_for(name, tokenizer)
    batch = objective([*rows_for(objective, tokenizer, 5)])
    before = model(**batch).loss
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad
        assert model(**batch).loss < before


def test_causal_predicts_every_token_but_the_first(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = make_objective("causal", tokenizer)([{"input_ids": [9, 8, 7]}, {"input_ids": [6, 5]}])
    assert batch["input_ids"].tolist() == [[9, 8, 7], [6, 5, tokenizer.pad_token_id]]
    assert batch["labels"].tolist() == [[IGNORED, 8, 7], [IGNORED, 5, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    with pytest.raises(ValueError, match="a row of 1 tokens has none that is predicted from another"):
        make_objective("causal", tokenizer)([{"input_ids": [9]}])


def close(share: Any, expected: float, draws: int) -> bool:
    """Within four standard deviations of a share among that many draws."""
    return abs(float(share) - expected) <= 4 * (expected * (1 - expected) / draws) ** 0.5


@pytest.mark.parametrize(("mask_rate", "masked", "drawn"), [(0.15, 0.8, 0.1), (0.5, 0.5, 0.5), (1.0, 0.0, 0.25)])
def test_masked_hides_tokens_at_its_rates(
    mask_rate: float, masked: float, drawn: float, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokens = torch.randint(len(tokenizer), (300_000,))
    rates = {"mask_rate": mask_rate, "mask_token_rate": masked, "random_token_rate": drawn}
    batch = make_objective("masked", tokenizer, **rates)([{"input_ids": tokens}])
    inputs, labels, special = batch["input_ids"][0], batch["labels"][0], special_ids(tokenizer)
    is_special, chosen = torch.isin(tokens, special), labels != IGNORED
    assert not chosen[is_special].any()
    assert torch.equal(inputs[~chosen], tokens[~chosen])
    assert torch.equal(labels[chosen], tokens[chosen])
    num_text, num_chosen = int((~is_special).sum()), int(chosen.sum())
    is_masked, stayed = inputs[chosen] == tokenizer.mask_token_id, inputs[chosen] == tokens[chosen]
    assert close(chosen.sum() / num_text, mask_rate, num_text)
    assert close(is_masked.float().mean(), masked, num_chosen)
    by_chance = drawn / (len(tokenizer) - len(special))  # a random token may be the right one
    assert close(stayed.float().mean(), 1 - masked - drawn + by_chance, num_chosen)
    others = inputs[chosen][~is_masked & ~stayed]
    assert not torch.isin(others, special).any()
    assert len(others.unique()) == len(tokenizer) - len(special)


def test_masked_predicts_something_in_every_row(tokenizer: PreTrainedTokenizerFast) -> None:
    objective, end = make_objective("masked", tokenizer, mask_rate=1e-9), tokenizer.eos_token_id
    rows = [{"input_ids": [end, 19, end]}, {"input_ids": [19, 10, 11, 12]}] * 50
    labels = objective(rows)["labels"]
    assert ((labels != IGNORED).sum(dim=1) == 1).all()
    assert (labels[::2, 1] == 19).all()
    assert len(set(labels[1::2].max(dim=1).values.tolist())) == 4  # any of its tokens
    with pytest.raises(ValueError, match="a row of special tokens has none that could be predicted"):
        objective([{"input_ids": [end, end]}])


def test_masked_may_predict_what_is_unknown(tokenizers: dict) -> None:
    tokenizer = tokenizers["wordpiece"]
    unknown = tokenizer.unk_token_id
    labels = make_objective("masked", tokenizer)([{"input_ids": [unknown, tokenizer.eos_token_id]}])["labels"]
    assert labels.tolist() == [[unknown, IGNORED]]


@pytest.mark.parametrize("heading", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_whole_words_are_hidden_or_none_of_their_tokens(algorithm: str, heading: bool, tokenizers: dict) -> None:
    tokenizer = deepcopy(tokenizers[algorithm])
    if heading:
        tokenizer.add_tokens(["##"])  # as the vocabulary of a text with headings has it
    words = ["kalomi", "nertas", "vo", "kanervotas", "milo"] * 40
    tokens, word_of = [], []
    for number, word in enumerate(words):
        pieces = tokenizer(f" {word}")["input_ids"]
        tokens += pieces
        word_of += [number] * len(pieces)
    assert max(word_of.count(number) for number in range(5)) > 1
    objective = make_objective("masked", tokenizer, mask_unit="word", mask_rate=0.3)
    chosen = objective([{"input_ids": tokens}])["labels"][0] != IGNORED
    counts = torch.zeros(len(words)).index_add(0, torch.tensor(word_of), chosen.float())
    sizes = torch.bincount(torch.tensor(word_of))
    assert ((counts == 0) | (counts == sizes)).all()
    assert close((counts > 0).float().mean(), 0.3, len(words))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_word_ends_with_its_document_and_one_is_hidden_at_least(algorithm: str, tokenizers: dict) -> None:
    tokenizer = tokenizers[algorithm]
    first, second = (tokenizer(word)["input_ids"] for word in ("kanervotas", "nertas"))
    tokens = [*first, tokenizer.eos_token_id, *second, tokenizer.eos_token_id]
    objective = make_objective("masked", tokenizer, mask_unit="word", mask_rate=0.01)
    seen = set()
    for seed in range(40):
        torch.manual_seed(seed)
        seen.add(tuple((objective([{"input_ids": tokens}])["labels"][0] != IGNORED).nonzero()[:, 0].tolist()))
    start = len(first) + 1
    assert {tuple(range(len(first))), tuple(range(start, start + len(second)))} <= seen
    assert len(seen) == 2


@given(num_tokens=st.integers(1, 200), rate=st.floats(0.01, 1), span_length=st.floats(1, 10), seed=st.integers(0, 99))
@settings(deadline=None)
def test_spans_hide_as_many_tokens_as_they_should(num_tokens: int, rate: float, span_length: float, seed: int) -> None:
    torch.manual_seed(seed)
    hidden = random_spans(num_tokens, num_noise(num_tokens, rate), span_length=span_length)
    number = num_noise(num_tokens, rate)
    assert (len(hidden), int(hidden.sum())) == (num_tokens, number)
    runs = int(hidden[0]) + int((hidden[1:] & ~hidden[:-1]).sum())
    assert runs == min(num_spans(number, span_length), num_tokens - number + 1)


def test_every_division_into_spans_is_as_likely() -> None:
    drawn = [tuple(random_spans(6, 3, span_length=1.5).tolist()) for _ in range(2000)]
    counts = {each: drawn.count(each) for each in set(drawn)}
    assert len(counts) == 12  # 3 hidden tokens in 2 spans: 2 ways; 3 others before, between and after: 6 ways
    assert all(close(count / 2000, 1 / 12, 2000) for count in counts.values())


def test_permuted_targets_see_what_their_order_allows(tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make_objective("permuted", tokenizer, mask_rate=0.3)
    rows = [*rows_for(objective, tokenizer, 5)]
    batch = objective(rows)
    for row, hidden, mapping, labels in zip(
        rows, batch["perm_mask"].bool(), batch["target_mapping"], batch["labels"], strict=True
    ):
        count = int((labels != IGNORED).sum())
        places = mapping[:count].argmax(dim=1)
        assert (mapping[:count].sum(dim=1) == 1).all()
        assert not mapping[count:].any()
        assert labels[:count].tolist() == [row["input_ids"][place] for place in places]
        others = torch.tensor([place for place in range(len(hidden)) if place not in places])
        assert not hidden[:, others].any()  # what is no target is seen by all
        assert hidden[others][:, places].all()  # and sees no target
        among = hidden[places][:, places]  # targets see those before them in one order, and so not themselves
        assert among.sum(dim=1).sort().values.tolist() == list(range(1, count + 1))
        assert torch.equal(among | among.T, torch.ones_like(among))


def test_denoising_loses_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    for packing in ("concatenate", "one_document"):
        data = PretrainDataConfig(sequence_length=30, packing=packing)
        objective, end = make_objective("denoising", tokenizer, data=data), tokenizer.eos_token_id
        sentinels = [tokenizer.convert_tokens_to_ids(f"<extra_id_{number}>") for number in range(2)]
        for row in rows_for(objective, tokenizer):
            example = objective.example(row)
            inputs, labels = example["input_ids"].tolist(), example["labels"].tolist()
            assert [token for token in inputs if token in sentinels] == [
                token for token in labels if token in sentinels
            ]
            spans: dict[int, list[int]] = {}
            for token in labels[:-1]:
                spans.setdefault(token, []) if token in sentinels else spans[[*spans][-1]].append(token)
            filled = [token for place in inputs for token in spans.get(place, [place])]
            expected = row["input_ids"] if row["input_ids"][-1] == end else [*row["input_ids"], end]
            if packing == "one_document":
                assert filled == expected
            else:  # a span may reach over the end of a document, which stays behind
                assert [it for it in filled if it != end] == [it for it in expected if it != end]
            assert labels[-1] == inputs[-1] == end


@pytest.mark.parametrize("sequence_length", [8, 30, 64, 512])
@pytest.mark.parametrize(("rate", "span_length"), [(0.15, 3.0), (0.5, 3.0), (0.3, 8.0)])
def test_denoising_fills_the_inputs(sequence_length: int, rate: float, span_length: float) -> None:
    config = ObjectiveConfig(mask_rate=rate, span_length=span_length)
    denoising = objectives["denoising"]
    length = denoising.row_length(config, data=PretrainDataConfig(sequence_length=sequence_length))

    def longer(tokens: int) -> int:
        noise = num_noise(tokens, rate)
        return max(tokens - noise, noise) + num_spans(noise, span_length) + 1

    assert longer(length) <= sequence_length < longer(length + 1)
    if (sequence_length, rate) == (512, 0.15):
        assert length == 568  # Raffel 2020's own arithmetic gives the same


def test_denoising_of_rows_too_short_is_refused() -> None:
    with pytest.raises(UsageError, match=r"data.sequence_length: got 2; objective.name 'denoising' needs 3 or more"):
        objectives["denoising"].extra_tokens(ObjectiveConfig(), data=PretrainDataConfig(sequence_length=2))


def test_denoising_needs_its_sentinels(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UsageError, match=r"'denoising' needs 11 sentinels .* lacks <extra_id_2>; train one with"):
        make_objective("denoising", tokenizer, data=PretrainDataConfig(sequence_length=200))


def test_next_sentence_rows_are_pairs(tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make_objective("next_sentence", tokenizer, data=PretrainDataConfig(sequence_length=20))
    rows, cls, sep = rows_for(objective, tokenizer, 200), tokenizer.cls_token_id, tokenizer.sep_token_id
    text = [*chain.from_iterable(rows_for(make_objective("causal", tokenizer), tokenizer, 200)["input_ids"])]
    follows = {*pairwise(text)}
    for row in rows:
        ids, types = row["input_ids"], row["token_type_ids"]
        middle = ids.index(sep)
        assert (ids[0], ids[-1], ids.count(sep), ids.count(cls)) == (cls, sep, 2, 1)
        assert types == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
        assert 1 < middle < len(ids) - 2 <= 18
        if not row["next_sentence_label"]:
            assert (ids[middle - 1], ids[middle + 1]) in follows
    assert close(sum(rows["next_sentence_label"]) / len(rows), 0.5, len(rows))
    with pytest.raises(UsageError, match=r"data\.sequence_length: got 4; a row cls A sep B sep needs at least 5"):
        make_objective("next_sentence", tokenizer, data=PretrainDataConfig(sequence_length=4))
    with pytest.raises(UsageError, match=r"model\.type_vocab_size: 0 is too small for objective.name 'next_sentence'"):
        objective.check_model(AttnKitConfig(architecture="encoder"))


def test_texts_of_a_pair_are_cut_and_still_end(tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make_objective("sequence_to_sequence", tokenizer, data=PretrainDataConfig(sequence_length=6))
    for row in rows_for(objective, tokenizer, 20):
        for column in ("input_ids", "labels"):
            assert len(row[column]) <= 6
            assert row[column][-1] == tokenizer.eos_token_id


@every_objective
def test_a_tokenizer_that_lacks_a_token_is_refused(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    needed = {"masked": ["mask_token"], "next_sentence": ["mask_token", "cls_token", "sep_token"]}
    for kind in ("pad_token", "mask_token", "cls_token", "sep_token"):
        if kind != "pad_token" and kind not in needed.get(name, []):
            make_objective(name, without(tokenizer, kind))
            continue
        with pytest.raises(
            UsageError, match=rf"objective.name: '{name}' needs a {kind}, .*give its folder as tokenizer"
        ):
            make_objective(name, without(tokenizer, kind))


def test_settings_that_cannot_be_are_refused_together(tokenizer: PreTrainedTokenizerFast) -> None:
    for rate in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match=r"objective.mask_rate: got .* above 0 and at most at 1"):
            make_objective("masked", tokenizer, mask_rate=rate)
    wrong = {"mask_token_rate": -0.1, "random_token_rate": -0.2, "span_length": 0.5}
    with pytest.raises(UsageError) as error:
        make_objective("masked", tokenizer, **wrong)
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == [f"objective.{name}" for name in wrong]
    with pytest.raises(
        UsageError, match=r"mask_token_rate: got 0.8; with objective.random_token_rate 0.3 it has to be at"
    ):
        make_objective("masked", tokenizer, random_token_rate=0.3)


@every_objective
def test_an_architecture_that_does_not_suit_is_refused(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    objective = make_objective(name, tokenizer)
    for architecture in objective.architectures:
        objective.check_architecture(architecture, name=name)
    others = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "denoising"}
    for architecture in others.keys() - set(objective.architectures):
        match = rf"'{name}' trains .*, not '{architecture}'; objectives for .*{others[architecture]}"
        with pytest.raises(UsageError, match=match):
            objective.check_architecture(architecture, name=name)
    with pytest.raises(UsageError, match="objectives for 'brain': none"):
        objective.check_architecture("brain", name=name)


def test_an_unknown_objective_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown objective 'masked_lm': did you mean 'masked'\?"):
        objectives["masked_lm"]


def test_positions_start_anew_with_each_document() -> None:
    tokens = torch.tensor([5, 6, 1, 7, 1, 1, 8, 9])
    assert document_positions(tokens, end=1).tolist() == [0, 1, 2, 0, 1, 0, 0, 1]
    assert document_positions(torch.tensor([1]), end=1).tolist() == [0]


def pairs_with_scorers() -> list[tuple[str, str, str]]:
    """(objective, scorer, position) that go together, for every objective whose rows hold several documents."""
    found = []
    for name in [name for name in objectives if objectives[name].keeps_rows]:
        position = MODEL_FIELDS.get(name, {}).get("position", "learned")
        for scorer in scorers:
            with suppress(UsageError):
                AttnKitConfig(scorer=scorer, position=position)
                found.append((name, scorer, position))
    return found


@pytest.mark.parametrize(("name", "scorer", "position"), pairs_with_scorers())
def test_documents_of_a_row_do_not_see_each_other(
    name: str, scorer: str, position: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    data = PretrainDataConfig(sequence_length=30, document_mask=True)
    objective, end = make_objective(name, tokenizer, data=data), tokenizer.eos_token_id
    rows = [[20, 21, 22, 23, 24, end, 30, 31, 32, 33, end, 40, 41], [50, 51, 52, end, 53, 54]]
    changed = [[25, 26, 27, 28, 29, end, *rows[0][6:]], rows[1]]
    model = model_for(name, tokenizer, scorer=scorer, position=position)
    logits = []
    for each in (rows, changed):
        batch = objective([{"input_ids": row} for row in each])
        assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0, 1]
        inputs = {key: batch[key] for key in ("attention_mask", "position_ids")}
        with torch.no_grad():  # nothing hidden, and logits of all tokens
            tokens = [torch.tensor(row) for row in each]
            logits.append(model(input_ids=pad_sequence(tokens, batch_first=True), **inputs).logits)
    assert torch.equal(logits[0][0, 6:], logits[1][0, 6:])
    assert not torch.equal(logits[0][0, :6], logits[1][0, :6])
    assert torch.equal(logits[0][1], logits[1][1])


def test_an_objective_that_keeps_no_rows_has_no_document_mask(tokenizer: PreTrainedTokenizerFast) -> None:
    for name in objectives:
        if not objectives[name].keeps_rows:
            with pytest.raises(UsageError, match=rf"data.document_mask: objective.name '{name}' keeps no row"):
                make_objective(name, tokenizer, data=PretrainDataConfig(sequence_length=30, document_mask=True))


def test_unknown_tokens_are_text_and_other_special_tokens_are_not(tokenizer: PreTrainedTokenizerFast) -> None:
    text = TextTokens(tokenizer)
    assert sorted({*range(len(tokenizer))} - {*text.ids.tolist()}) == sorted(special_ids(tokenizer).tolist())
    assert MODEL_FIELDS.keys() <= objectives.keys()
