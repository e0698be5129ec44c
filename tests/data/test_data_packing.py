"""Packing loses nothing: rows put together again are the documents, and the accounting adds up."""

from itertools import chain

import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_text import ALGORITHMS, sentences
from transformers import PreTrainedTokenizerFast

from attnkit.data import pack, packing
from attnkit.errors import UsageError


def documents_of(*texts: str) -> Dataset:
    return Dataset(pa.table({"text": pa.array(texts, pa.string())}))


def without(tokenizer: PreTrainedTokenizerFast, *kinds: str) -> PreTrainedTokenizerFast:
    """The same tokenizer without some of its special tokens."""
    kept = {kind: token for kind, token in tokenizer.special_tokens_map.items() if kind not in kinds}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **kept)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    texts=st.lists(st.one_of(st.text(), st.integers(0, 99).map(lambda seed: sentences(1, seed=seed)[0])), max_size=12),
    sequence_length=st.integers(2, 40),
    batch=st.sampled_from([1, 20, 2**22]),
)
@settings(deadline=None)
def test_rows_are_the_documents_cut_into_pieces(
    algorithm: str, tokenizers: dict, texts: list[str], sequence_length: int, batch: int
) -> None:
    tokenizer = tokenizers[algorithm]
    end = tokenizer.eos_token_id
    encoded = [tokenizer(text, split_special_tokens=True)["input_ids"] for text in texts]
    stream = [token for ids in encoded if ids for token in [*ids, end]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BATCH", batch)  # characters, so that rows reach over batches
        if len(stream) < 2:
            with pytest.raises(UsageError, match="too little text"):
                pack(documents_of(*texts), tokenizer, sequence_length=sequence_length, min_tokens=0)
            return
        packed = pack(documents_of(*texts), tokenizer, sequence_length=sequence_length, min_tokens=0)
    rows = packed.rows["input_ids"][:]
    lengths = [len(row) for row in rows]
    assert [*chain.from_iterable(rows), *stream[len(stream) - packed.dropped_tokens :]] == stream
    assert all(length == sequence_length for length in lengths[:-1])
    assert 2 <= lengths[-1] <= sequence_length
    assert packed.tokens == len(stream) == sum(lengths) + packed.dropped_tokens
    assert packed.dropped_tokens in (0, 1)
    assert packed.documents + packed.empty_documents == len(texts)
    assert packed.documents == stream.count(end)
    assert packed.bytes == sum(len(text.encode()) for text, ids in zip(texts, encoded, strict=True) if ids)
    assert packed.rows.data.schema == pa.schema({"input_ids": pa.list_(pa.int32())})


def test_a_document_may_be_longer_than_a_row_or_many_fit_into_one(tokenizer: PreTrainedTokenizerFast) -> None:
    end = tokenizer.eos_token_id
    one, two, long = (tokenizer(text)["input_ids"] for text in ("x", "y z", "qwertzuiop"))
    packed = pack(documents_of("x", "y z", "qwertzuiop"), tokenizer, sequence_length=8)
    whole = [*one, end, *two, end, *long, end]
    assert packed.rows["input_ids"][:] == [whole[:8], whole[8:]]


def test_a_token_that_is_left_alone_is_dropped_and_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    packed = pack(documents_of("xyz", "xyz"), tokenizer, sequence_length=7)
    assert (packed.tokens, len(packed.rows), packed.dropped_tokens) == (8, 1, 1)


def test_text_that_looks_like_a_special_token_is_text(tokenizers: dict) -> None:
    for tokenizer in tokenizers.values():
        packed = pack(documents_of("a <|endoftext|> b <|mask|><|pad|>"), tokenizer, sequence_length=5)
        tokens = [*chain.from_iterable(packed.rows["input_ids"])]
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        assert [token for token in tokens if token in special] == [tokenizer.eos_token_id]
        assert tokens[-1] == tokenizer.eos_token_id


def test_rows_of_a_selection_are_those_of_its_documents(tokenizer: PreTrainedTokenizerFast) -> None:
    documents = documents_of("one", "two", "three").select([2, 0])
    packed = pack(documents, tokenizer, sequence_length=4)
    whole = tokenizer.decode([*chain.from_iterable(packed.rows["input_ids"])])
    assert whole == "three<|endoftext|>one<|endoftext|>"


def test_a_tokenizer_without_an_end_uses_its_separator(tokenizer: PreTrainedTokenizerFast) -> None:
    bert = without(tokenizer, "eos_token")
    assert pack(documents_of("xyz"), bert, sequence_length=2).rows["input_ids"][-1][-1] == bert.sep_token_id
    with pytest.raises(UsageError, match=r"tokenizer.path: .*neither eos_token nor sep_token.*add_special_tokens"):
        pack(documents_of("xyz"), without(tokenizer, "eos_token", "sep_token"), sequence_length=2)


def test_too_little_text_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(
        UsageError,
        match=r"data.source: too little text: 2 documents of 7 bytes make 8 tokens and 64 are needed; give more text, "
        r"or lower data.sequence_length \(now 64\)",
    ):
        pack(documents_of("xyz", "éqw"), tokenizer, sequence_length=64)
    assert len(pack(documents_of("xyz"), tokenizer, sequence_length=64, min_tokens=2).rows) == 1
    with pytest.raises(UsageError, match=r"data.sequence_length: got 1; a row needs at least 2 tokens"):
        pack(documents_of("xyz"), tokenizer, sequence_length=1)
