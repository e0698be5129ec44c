"""Packing: documents become rows of token ids of one length, with nothing padded and nothing lost.

    document 1 ⊕ end ⊕ document 2 ⊕ end ⊕ …   →   rows of `sequence_length` tokens, the last one shorter

A row is a list of token ids. Each document ends with its `end`, so where documents begin can be read from the rows:
position ids that restart, or masks between documents, need nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from attnkit.errors import UsageError

BATCH = 2**22  # characters of text that are tokenized together
MIN_ROW = 2  # tokens: a row of one has none that is predicted from another


@dataclass(kw_only=True)
class PackedText:
    """Rows of token ids, and where everything went: tokens = Σ len(row) + dropped_tokens."""

    rows: datasets.Dataset
    """The column `input_ids` (int32): `sequence_length` tokens in every row but the last, which may be shorter."""
    documents: int
    """Documents in the rows."""
    empty_documents: int
    """Documents that the tokenizer turns into no token at all: they are in no row, not even as an end."""
    tokens: int
    """Tokens of the documents, the end of each included."""
    dropped_tokens: int
    """Tokens in no row: the last one, where it would make a row by itself."""
    bytes: int
    """Bytes of the text of the documents, in UTF-8 and without their ends, as bits per byte counts them."""


def pack(
    documents: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    sequence_length: int,
    min_tokens: int | None = None,
) -> PackedText:
    """Tokenize documents (column `text`), end each, and cut the whole into rows of `sequence_length` tokens.

    The end is the tokenizer's `eos_token`, or its `sep_token` if it has no other, as BERT's has not. Text that looks
    like a special token is tokenized as the ordinary text that it is.

    `min_tokens`: the tokens that there have to be, a full row if not given. Raises `UsageError` where there are fewer,
    and for a tokenizer that has no token to end documents with.
    """
    if sequence_length < MIN_ROW:
        raise UsageError(f"data.sequence_length: got {sequence_length}; a row needs at least {MIN_ROW} tokens")
    end = _end(tokenizer)
    blocks: list[pa.Array] = []
    rest = np.empty(0, dtype=np.int32)
    num_documents = num_tokens = num_bytes = 0
    for texts in _batches(documents):
        tokens, count, size = _tokenize(texts, tokenizer, end=end)
        num_documents += count
        num_tokens += len(tokens)
        num_bytes += size
        tokens = np.concatenate([rest, tokens])
        full = len(tokens) - len(tokens) % sequence_length
        blocks.append(_rows(tokens[:full], sequence_length))
        rest = tokens[full:]
    needed = max(MIN_ROW, sequence_length if min_tokens is None else min_tokens)
    if num_tokens < needed:
        raise UsageError(
            f"data.source: too little text: {num_documents} documents of {num_bytes} bytes make {num_tokens} tokens "
            f"and {needed} are needed; give more text, or lower data.sequence_length (now {sequence_length})"
        )
    if len(rest) >= MIN_ROW:
        blocks.append(_rows(rest, len(rest)))
    return PackedText(
        rows=datasets.Dataset(pa.table({"input_ids": pa.chunked_array(blocks, pa.list_(pa.int32()))})),
        documents=num_documents,
        empty_documents=len(documents) - num_documents,
        tokens=num_tokens,
        dropped_tokens=len(rest) if len(rest) < MIN_ROW else 0,
        bytes=num_bytes,
    )


def _end(tokenizer: PreTrainedTokenizerBase) -> int:
    for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if token_id is not None:
            return token_id
    raise UsageError(
        "tokenizer.path: this tokenizer has neither eos_token nor sep_token to end documents with; "
        'set one with tokenizer.add_special_tokens({"eos_token": ...}), save it, and give that folder'
    )


def _tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase, *, end: int) -> tuple[np.ndarray, int, int]:
    """The tokens of texts, an end after each; how many of the texts have tokens; and the bytes of those."""
    encoded = tokenizer(
        texts, add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )["input_ids"]
    kept = [(text, token_ids) for text, token_ids in zip(texts, encoded, strict=True) if token_ids]
    tokens = np.fromiter(chain.from_iterable([*token_ids, end] for _, token_ids in kept), dtype=np.int32)
    return tokens, len(kept), sum(len(text.encode()) for text, _ in kept)


def _batches(documents: datasets.Dataset) -> Iterator[list[str]]:
    """Texts in lists of about BATCH characters: enough to tokenize in parallel, and few whatever their length."""
    pending: list[str] = []
    size = 0
    for rows in documents.select_columns("text").iter(batch_size=256):
        for text in rows["text"]:
            pending.append(text)
            size += len(text)
            if size >= BATCH:
                yield pending
                pending, size = [], 0
    if pending:
        yield pending


def _rows(tokens: np.ndarray, length: int) -> pa.Array:
    """Tokens [rows · length] as an array of rows of one length."""
    offsets = np.arange(0, len(tokens) + 1, length, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens, pa.int32()))
