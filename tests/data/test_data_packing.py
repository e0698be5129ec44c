"""Packing loses nothing: rows put together again are the documents, and the account adds up."""

from itertools import chain
from typing import Any

import datasets
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_text import ALGORITHMS, sentences
from transformers import PreTrainedTokenizerFast

from attnkit.data import rows as rows_module
from attnkit.data.documents import Document
from attnkit.data.mixing import mix, repeats
from attnkit.data.packing import packings
from attnkit.data.rows import Account, Group, RowMaker
from attnkit.errors import UsageError

every_packing = pytest.mark.parametrize("name", packings)
TRAIN = Group(source=0, held_out=False)


def pack(texts: list[str], tokenizer: Any, *, name: str = "concatenate", row_length: int) -> tuple[list, Account]:
    maker = RowMaker(tokenizer, packing=lambda: packings[name](row_length=row_length))
    tables = [table for _, table in maker.rows(Document((text,), 0, held_out=False) for text in texts)]
    rows = [row for table in tables for row in table["input_ids"].to_pylist()]
    return rows, maker.accounts.get(TRAIN, Account())


def without(tokenizer: PreTrainedTokenizerFast, *kinds: str) -> PreTrainedTokenizerFast:
    """The same tokenizer without some of its special tokens."""
    kept = {kind: token for kind, token in tokenizer.special_tokens_map.items() if kind not in kinds}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **kept)


def pieces_of(row: list[int], end: int) -> list[tuple[int, ...]]:
    """The documents, or parts of them, in a row."""
    pieces: list[list[int]] = [[]]
    for token in row:
        pieces[-1].append(token)
        if token == end:
            pieces.append([])
    return [tuple(piece) for piece in pieces if piece]


@every_packing
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    texts=st.lists(st.one_of(st.text(), st.integers(0, 99).map(lambda seed: sentences(1, seed=seed)[0])), max_size=12),
    row_length=st.integers(2, 40),
    portion=st.sampled_from([1, 20, 2**22]),
)
@settings(deadline=None, max_examples=30)
def test_rows_hold_every_token_of_the_documents(
    algorithm: str, name: str, tokenizers: dict, texts: list[str], row_length: int, portion: int
) -> None:
    tokenizer = tokenizers[algorithm]
    end = tokenizer.eos_token_id
    encoded = [tokenizer(text, split_special_tokens=True)["input_ids"] for text in texts]
    stream = [token for ids in encoded if ids for token in [*ids, end]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "PORTION", portion)  # characters, so that rows reach over portions
        rows, account = pack(texts, tokenizer, name=name, row_length=row_length)
    lengths = list(map(len, rows))
    assert all(2 <= length <= row_length for length in lengths)
    assert account == Account(
        documents=stream.count(end),
        empty_documents=len(texts) - stream.count(end),
        bytes=sum(len(text.encode()) for text, ids in zip(texts, encoded, strict=True) if ids),
        tokens=len(stream),
        dropped_tokens=len(stream) - sum(lengths),
        rows=len(rows),
        padding_tokens=len(rows) * row_length - sum(lengths),
    )
    assert account.dropped_tokens <= {"concatenate": 1}.get(name, len(texts))
    if account.dropped_tokens == 0:
        assert sorted(chain.from_iterable(rows)) == sorted(stream)


@every_packing
def test_documents_are_cut_as_the_packing_says(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    texts, end = [text[:17] for text in sentences(60)] + ["x" * 50], tokenizer.eos_token_id
    rows, account = pack(texts, tokenizer, name=name, row_length=20)
    documents = [(*tokenizer(text)["input_ids"], end) for text in texts]
    short = sorted(document for document in documents if len(document) <= 20)
    pieces = [piece for row in rows for piece in pieces_of(row, end)]
    if name == "concatenate":
        assert [*chain.from_iterable(rows)] == [*chain.from_iterable(documents)]
        assert all(len(row) == 20 for row in rows[:-1])
    else:  # whole documents are whole, and longer ones are cut into full rows and a rest
        kept = list(pieces)
        for document in short:
            kept.remove(document)
        long = [token for document in documents if len(document) > 20 for token in document]
        assert sorted(map(len, kept)) == sorted([20] * (len(long) // 20) + [len(long) % 20])
    if name == "one_document":
        assert all(len(pieces_of(row, end)) == 1 for row in rows)
    if name == "best_fit":
        # No two rows could be one, and so at most one row is less than half full.
        assert sum(len(row) <= 10 for row in rows) <= 1
        assert account.padding_tokens < 0.2 * account.tokens


def test_a_token_that_is_left_alone_is_dropped_and_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    rows, account = pack(["xyz", "xyz"], tokenizer, row_length=7)
    assert (account.tokens, len(rows), account.dropped_tokens) == (8, 1, 1)


def test_text_that_looks_like_a_special_token_is_text(tokenizers: dict) -> None:
    for tokenizer in tokenizers.values():
        rows, _ = pack(["a <|endoftext|> b <|mask|><|pad|>"], tokenizer, row_length=5)
        tokens = [*chain.from_iterable(rows)]
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        assert [token for token in tokens if token in special] == [tokenizer.eos_token_id]
        assert tokens[-1] == tokenizer.eos_token_id


def test_a_tokenizer_without_an_end_uses_its_separator(tokenizer: PreTrainedTokenizerFast) -> None:
    bert = without(tokenizer, "eos_token")
    assert pack(["xyz"], bert, row_length=2)[0][-1][-1] == bert.sep_token_id
    with pytest.raises(UsageError, match=r"tokenizer.path: .*neither eos_token nor sep_token.*add_special_tokens"):
        pack(["xyz"], without(tokenizer, "eos_token", "sep_token"), row_length=2)


def test_groups_are_packed_apart(tokenizer: PreTrainedTokenizerFast) -> None:
    documents = [Document((text,), number % 2, held_out=number % 3 == 0) for number, text in enumerate(sentences(30))]
    maker = RowMaker(tokenizer, packing=lambda: packings["concatenate"](row_length=16))
    found: dict[Group, list[int]] = {}
    for group, table in maker.rows(documents):
        found.setdefault(group, []).extend(chain.from_iterable(table["input_ids"].to_pylist()))
    for group, tokens in found.items():
        texts = [it.texts[0] for it in documents if (it.source, it.held_out) == group]
        assert tokens == pack_all(texts, tokenizer)
        assert maker.accounts[group].documents == len(texts)
    assert len(found) == 4


def pack_all(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    return [token for text in texts for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]


@given(
    sources=st.lists(st.tuples(st.integers(1, 60), st.floats(0.1, 10)), min_size=1, max_size=4), seed=st.integers(0, 9)
)
@settings(deadline=None, max_examples=30)
def test_a_mix_has_the_shares_it_was_asked_for(sources: list[tuple[int, float]], seed: int) -> None:
    numbers, weights = map(list, zip(*sources, strict=True))
    rows = [
        datasets.Dataset(pa.table({"source": [index] * number, "row": range(number)}))
        for index, number in enumerate(numbers)
    ]
    mixed = mix(rows, weights, seed=seed)
    total, met = sum(repeats(numbers, weights)), mixed.to_dict()
    assert len(mixed) == total
    for index, (number, weight) in enumerate(zip(numbers, weights, strict=True)):
        counts = [0] * number
        for source, row in zip(met["source"], met["row"], strict=True):
            if source == index:
                counts[row] += 1
        assert min(counts) >= 1  # every row is there
        assert max(counts) - min(counts) <= 1  # and none much more often than another of its source
        assert abs(sum(counts) - total * weight / sum(weights)) <= len(numbers) / 2 + 0.5
    assert mixed.to_dict() == mix(rows, weights, seed=seed).to_dict()
    assert len(mix(rows, None, seed=seed)) == sum(numbers)


def test_a_mix_too_large_to_be_drawn_is_refused() -> None:
    assert sum(repeats([10, 10**6], [1, 1])) == 2 * 10**6
    with pytest.raises(UsageError, match=r"data.source: a weight of 1e-09 for 100 rows asks for 1e\+11 rows of all"):
        repeats([100, 100], [1e-9, 1])
