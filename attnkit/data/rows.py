"""From documents to rows of token ids, with an account of where every token went."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnkit.data.documents import Document
from attnkit.data.packing import Packing, TokenizedTexts
from attnkit.errors import UsageError

PORTION = 2**18  # characters of text that are tokenized together: enough for several threads, and small in memory


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of the documents of a source; accounts add up."""

    documents: int = 0
    """Documents in the rows."""
    empty_documents: int = 0
    """Documents that the tokenizer turns into no token at all: they are in no row, not even as an end."""
    bytes: int = 0
    """Bytes of the text of the documents, in UTF-8 and without their ends, as bits per byte counts them."""
    tokens: int = 0
    """Tokens of the documents, the end of each included."""
    dropped_tokens: int = 0
    """Tokens in no row."""
    rows: int = 0
    padding_tokens: int = 0
    """Tokens that the rows lack to be all as long as a row may be."""

    def __add__(self, other: "Account") -> "Account":
        return Account(**{it.name: vars(self)[it.name] + vars(other)[it.name] for it in fields(self)})


class Group(NamedTuple):
    """Documents that are packed together."""

    source: int
    held_out: bool


class Portion(NamedTuple):
    """Documents of one group, tokenized."""

    texts: TokenizedTexts
    account: Account


class RowMaker:
    """Makes rows of documents, those of each group apart, in bounded memory.

    Text that looks like a special token is tokenized as the ordinary text that it is. Raises `UsageError` for a
    tokenizer that has no token to end documents with.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, packing: Callable[[], Packing]) -> None:
        self.tokenizer = tokenizer
        self.end = end_of_document(tokenizer)
        self.packing = packing
        self.accounts: dict[Group, Account] = {}
        """What became of the documents so far."""

    def rows(self, documents: Iterable[Document]) -> Iterator[tuple[Group, pa.Table]]:
        """The rows as they become complete; accounts are complete after the last of them."""
        packings: dict[Group, Packing] = {}
        for group, (texts, account) in self.tokenized(documents):
            if group not in packings:
                packings[group] = self.packing()
            packing = packings[group]
            yield group, self._counted(group, packing, packing.add(texts), account)
        for group, packing in packings.items():
            yield group, self._counted(group, packing, packing.rest(), Account())

    def tokenized(self, documents: Iterable[Document]) -> Iterator[tuple[Group, Portion]]:
        """The documents in portions, each tokenized (by the threads of the tokenizer) while the next is read."""
        waiting: deque[tuple[Group, Future[Portion]]] = deque()
        with ThreadPoolExecutor(max_workers=1) as pool:
            for group, texts in portions(documents):
                waiting.append((group, pool.submit(tokenize, texts, self.tokenizer, end=self.end)))
                if len(waiting) > 1:
                    group, portion = waiting.popleft()
                    yield group, portion.result()
            for group, portion in waiting:
                yield group, portion.result()

    def _counted(self, group: Group, packing: Packing, rows: pa.Table, account: Account) -> pa.Table:
        self.accounts[group] = self.accounts.get(group, Account()) + account + account_of(rows, packing)
        return rows


def account_of(rows: pa.Table, packing: Packing) -> Account:
    """What became of tokens in the rows that a packing has just made."""
    num_tokens = len(rows["input_ids"].combine_chunks().flatten())
    return Account(
        rows=rows.num_rows,
        padding_tokens=rows.num_rows * packing.row_length - num_tokens,
        dropped_tokens=packing.take_dropped(),
    )


def portions(documents: Iterable[Document]) -> Iterator[tuple[Group, list[tuple[str, ...]]]]:
    """Texts of documents of one group, about PORTION characters of them at a time."""
    pending: dict[Group, list[tuple[str, ...]]] = {}
    sizes: dict[Group, int] = {}
    for document in documents:
        group = Group(source=document.source, held_out=document.held_out)
        pending.setdefault(group, []).append(document.texts)
        sizes[group] = sizes.get(group, 0) + sum(map(len, document.texts))
        if sizes[group] >= PORTION:
            yield group, pending.pop(group)
            del sizes[group]
    yield from pending.items()


def tokenize(documents: list[tuple[str, ...]], tokenizer: PreTrainedTokenizerBase, *, end: int) -> Portion:
    """The token ids of the texts of documents, an end after each text, but for documents with a text without tokens."""
    num_texts = len(documents[0])
    encoded = encode(list(chain.from_iterable(documents)), tokenizer)
    kept = [
        (texts, token_ids)
        for texts, token_ids in zip(documents, zip(*[iter(encoded)] * num_texts, strict=True), strict=True)
        if all(token_ids)
    ]
    lengths = np.array([len(ids) + 1 for _, token_ids in kept for ids in token_ids], dtype=np.int64)
    ended = (chain(ids, (end,)) for _, token_ids in kept for ids in token_ids)
    flat = np.fromiter(chain.from_iterable(ended), dtype=np.int32, count=lengths.sum())
    account = Account(
        documents=len(kept),
        empty_documents=len(documents) - len(kept),
        tokens=len(flat),
        bytes=sum(len(text.encode()) for texts, _ in kept for text in texts),
    )
    return Portion(TokenizedTexts(flat, lengths), account)


def encode(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The token ids of texts, with no special tokens, whatever they look like."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return tokenizer(texts, return_attention_mask=False, **settings)["input_ids"]
    # The library under the tokenizer does the same in less time, and lets another thread work meanwhile.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def end_of_document(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends documents: `eos_token`, or `sep_token` where there is no other, as in BERT."""
    for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if token_id is not None:
            return token_id
    raise UsageError(
        "tokenizer.path: this tokenizer has neither eos_token nor sep_token to end documents with; "
        'set one with tokenizer.add_special_tokens({"eos_token": ...}), save it, and give that folder'
    )
