"""The text of a run: documents, the tokenizer, and rows of token ids with their accounting."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from attnkit.data.documents import Document, Documents
from attnkit.data.mixing import mix, repeats
from attnkit.data.objectives import Objective, ObjectiveConfig, objectives
from attnkit.data.prepared import (
    MANIFEST,
    TOKENIZER,
    changed_settings,
    differences,
    other_rows,
    read_manifest,
    read_shards,
)
from attnkit.data.rows import Account, Group, RowMaker
from attnkit.data.sources import PretrainDataConfig, named
from attnkit.data.statistics import unigram_loss
from attnkit.data.streaming import StreamedRows
from attnkit.data.tokenizer import TokenizerConfig, load_tokenizer, train_tokenizer
from attnkit.errors import UsageError
from attnkit.training.launch import on_main

if TYPE_CHECKING:
    import datasets

LARGEST_EXPONENT = 700  # of e, in double precision


@dataclass(frozen=True, kw_only=True)
class SourceAccount:
    """What became of the text of one source."""

    name: str
    account: Account
    repeats: float
    """How often its rows are in the mix, in the mean."""
    trained_rows: int | None = None
    """Of a source that is streamed: its rows that were trained on, a row of several epochs once for each."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Rows to evaluate on, and what they were made of."""

    rows: "datasets.Dataset"
    account: Account


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows to train on and rows held out, and how well a model of token frequencies alone predicts these."""

    train: Any  # a Dataset, or StreamedRows
    held_out: HeldOut
    made: list[SourceAccount]
    """Of each source, where all rows are there before they are read."""
    duplicates: int | None
    """Documents left out because the same text is there already; None where they are not counted, of a stream."""
    unigram_loss: float | None  # nats per token; None for rows that are not there before they are read

    def sources(self, *, rows_seen: int) -> list[SourceAccount]:
        """What became of the text of each source, if it is streamed so far: after so many rows were trained on."""
        if not isinstance(self.train, StreamedRows):
            return self.made
        names = [source.name for source in self.train.documents.sources]
        accounts = zip(names, self.train.accounts, self.train.first(rows_seen), strict=True)
        return [
            SourceAccount(name=name, account=account, repeats=1, trained_rows=trained)
            for name, account, trained in accounts
        ]


def read_documents(data: PretrainDataConfig, objective: ObjectiveConfig) -> Documents:
    """The documents of a run: texts, or pairs of texts where the objective wants them."""
    return Documents(data, target_column=objectives[objective.name].target_column(objective))


def get_tokenizer(
    documents: Documents,
    tokenizer: TokenizerConfig,
    *,
    path: str | None,
    objective: ObjectiveConfig,
    data: PretrainDataConfig,
    accelerator: Accelerator,
) -> PreTrainedTokenizerBase:
    """The tokenizer at `path`, that of the prepared rows, or one trained on the documents, by the main process."""
    if path is not None:
        return load_tokenizer(path)
    if data.prepared is not None and (Path(data.prepared) / MANIFEST).is_file():
        folder = Path(data.prepared)
        found = changed_settings(read_manifest(folder).trained, trained_settings(tokenizer))
        if found:
            raise other_rows(folder, found)
        return load_tokenizer(folder / TOKENIZER)
    extra_tokens = objectives[objective.name].extra_tokens(objective, data=data)
    return on_main(accelerator, lambda: train_tokenizer(documents.train_texts, tokenizer, extra_tokens=extra_tokens))


def trained_settings(tokenizer: TokenizerConfig) -> dict[str, Any]:
    """The settings that decide on a tokenizer that is trained."""
    return {"tokenizer.algorithm": tokenizer.algorithm, "tokenizer.vocab_size": tokenizer.vocab_size}


def make_rows(documents: Documents, tokenizer: PreTrainedTokenizerBase, *, objective: Objective) -> Rows:
    """Tokenize and pack the documents. Raises `UsageError` if there is not the text for one row."""
    made, accounts = in_memory(documents, tokenizer, objective=objective)
    return gather(made, accounts, documents=documents, objective=objective, vocab_size=len(tokenizer))


def find_rows(documents: Documents, tokenizer: PreTrainedTokenizerBase, *, objective: Objective) -> Rows:
    """The rows of `data.prepared`, or rows made now."""
    prepared = documents.data.prepared
    if documents.data.streaming:
        return stream_rows(documents, tokenizer, objective=objective)
    if prepared is None:
        return make_rows(documents, tokenizer, objective=objective)
    return read_prepared(Path(prepared), documents, tokenizer, objective=objective)


def stream_rows(documents: Documents, tokenizer: PreTrainedTokenizerBase, *, objective: Objective) -> Rows:
    """Rows to train on that are made while they are read, one of each source at once to see if there is, and rows to
    evaluate on."""
    held_out = takewhile(lambda document: document.held_out, documents)  # they come first
    made, accounts = in_memory(held_out, tokenizer, objective=objective)
    train = StreamedRows(documents, tokenizer, objective=objective)
    train.check()
    return Rows(
        train=train,
        held_out=held_out_of(made, accounts, named=held_out_setting(documents.data)),
        made=[],
        duplicates=None,
        unigram_loss=None,
    )


def read_prepared(
    folder: Path, documents: Documents, tokenizer: PreTrainedTokenizerBase, *, objective: Objective
) -> Rows:
    """Prepared rows. Raises `UsageError` if the folder is damaged, or if its rows are not those of these settings."""
    manifest = read_manifest(folder)
    found = differences(manifest, documents, tokenizer, objective=objective)
    if found:
        raise other_rows(folder, found)
    documents.duplicates = manifest.duplicates
    rows, accounts = read_shards(folder, manifest), manifest.accounts_by_group()
    return gather(rows, accounts, documents=documents, objective=objective, vocab_size=len(tokenizer))


def make_held_out(
    data: PretrainDataConfig, tokenizer: PreTrainedTokenizerBase, *, objective: Objective, config: ObjectiveConfig
) -> HeldOut:
    """All of `data.source` as rows to evaluate on."""
    target_column = objective.target_column(config)
    documents = Documents(data, target_column=target_column, all_held_out=True)
    made, accounts = in_memory(documents, tokenizer, objective=objective)
    return held_out_of(made, accounts, named=f"data.source: the documents of {named(data.source)}")


def in_memory(
    documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, *, objective: Objective
) -> "tuple[dict[Group, datasets.Dataset], dict[Group, Account]]":
    """The rows of each group of documents, and what they were made of."""
    import datasets  # here, as text is prepared without it

    maker = RowMaker(tokenizer, packing=objective.packing)
    tables: dict[Group, list[pa.Table]] = {}
    for group, table in maker.rows(documents):
        tables.setdefault(group, []).append(table)
    return {group: datasets.Dataset(pa.concat_tables(parts)) for group, parts in tables.items()}, maker.accounts


def held_out_of(rows: "dict[Group, datasets.Dataset]", accounts: dict[Group, Account], *, named: str) -> HeldOut:
    """The rows to evaluate on, of all sources. Raises `UsageError` if there is none, `named` being the text."""
    import datasets

    groups, account = [group for group in rows if group.held_out], held_out_account(accounts, named=named)
    return HeldOut(rows=datasets.concatenate_datasets([rows[group] for group in groups]), account=account)


def held_out_account(accounts: dict[Group, Account], *, named: str) -> Account:
    """What the rows to evaluate on were made of. Raises `UsageError` if there is none, `named` being the text."""
    account = sum((account for group, account in accounts.items() if group.held_out), Account())
    if account.rows == 0:
        raise UsageError(f"{named} make no row to evaluate on; give more text")
    return account


def held_out_setting(data: PretrainDataConfig) -> str:
    """The setting that decides what is held out, as the beginning of an error."""
    setting = "held_out_fraction" if data.held_out_source is None else "held_out_source"
    return f"data.{setting}: the documents held out"


def source_accounts(
    accounts: dict[Group, Account], *, documents: Documents, objective: Objective
) -> list[SourceAccount]:
    """What became of the text of each source. Raises `UsageError` for one without a row."""
    sources = documents.sources
    groups = [Group(source=number, held_out=False) for number in range(len(sources))]
    check_enough(accounts, groups, documents=documents, row_length=objective.packing().row_length)
    weights = [source.weight for source in sources if source.weight is not None] or None
    numbers = [accounts[group].rows for group in groups]
    seen = numbers if weights is None else repeats(numbers, weights)
    return [
        SourceAccount(name=source.name, account=accounts[group], repeats=k / n)
        for source, group, k, n in zip(sources, groups, seen, numbers, strict=True)
    ]


def gather(
    rows: "dict[Group, datasets.Dataset]",
    accounts: dict[Group, Account],
    *,
    documents: Documents,
    objective: Objective,
    vocab_size: int,
) -> Rows:
    """The rows of all sources as one mix. Raises `UsageError` for a source, or for held-out text, without a row."""
    made = source_accounts(accounts, documents=documents, objective=objective)
    held_out = held_out_of(rows, accounts, named=held_out_setting(documents.data))
    weights = [source.weight for source in documents.sources if source.weight is not None] or None
    groups = [Group(source=number, held_out=False) for number in range(len(documents.sources))]
    train = mix([rows[group] for group in groups], weights, seed=documents.data.seed)
    return Rows(
        train=train,
        held_out=held_out,
        made=made,
        duplicates=documents.duplicates,
        unigram_loss=unigram_loss(train, held_out.rows, vocab_size=vocab_size),
    )


def check_enough(accounts: dict[Group, Account], groups: list[Group], *, documents: Documents, row_length: int) -> None:
    """Raise `UsageError` if a source makes no row, or all of them together less than one that is full."""
    total = sum((accounts.get(group, Account()) for group in groups), Account())
    if total.rows == 0 or total.tokens < row_length:
        left_out = f" ({documents.duplicates} duplicates were left out)" if documents.duplicates else ""
        raise UsageError(
            f"data.source: too little text: {total.documents} documents of {total.bytes} bytes make {total.tokens} "
            f"tokens and {row_length} are needed{left_out}; give more text, or lower data.sequence_length"
        )
    for group in groups:
        if accounts.get(group, Account()).rows == 0:
            name = documents.sources[group.source].name
            raise UsageError(f"data.source: no row is left of {name!r}; give more of it, or leave it out")


def figures_of_text(accounts: Sequence[SourceAccount], *, duplicates: int | None) -> dict[str, Any]:
    """What became of the text of all sources, in the form of `summary.json`."""
    sources = {
        source.name: {**vars(source.account), **trained([source]), "repeats": source.repeats} for source in accounts
    }
    total = sum((source.account for source in accounts), Account())
    return {**vars(total), **trained(accounts), "duplicates": duplicates, "sources": sources}


def trained(accounts: Sequence[SourceAccount]) -> dict[str, int]:
    """The rows of sources that were trained on, where that is known."""
    numbers = [source.trained_rows for source in accounts if source.trained_rows is not None]
    return {"trained_rows": sum(numbers)} if numbers else {}


def say_text(figures: dict[str, Any]) -> str:
    """What became of the text, with a line for each source if there are several."""
    lines = [say_account(figures)]
    if len(figures["sources"]) > 1:
        for name, source in figures["sources"].items():
            often = "" if source["repeats"] == 1 else f", {source['repeats']:.2f} times per epoch"
            lines.append(f"  {name}: {say_account(source)}{often}")
    return "\n".join(lines)


def say_account(figures: dict[str, Any]) -> str:
    """An account on one line."""
    counted = {"dropped": "dropped_tokens", "padding": "padding_tokens", "empty": "empty_documents"}
    counts = [f"{figures[key]:,} {word}" for word, key in counted.items() if figures[key]]
    if figures.get("duplicates"):
        counts.append(f"{figures['duplicates']:,} duplicates")
    if figures.get("duplicates", 0) is None:
        counts.append("duplicates not counted")
    main = f"{figures['documents']:,} documents, {figures['tokens']:,} tokens in {figures['rows']:,} rows"
    if "trained_rows" in figures:
        main += f", {figures['trained_rows']:,} of them trained on"
    return f"{main} ({', '.join(counts)})" if counts else main


def bits_per_byte(loss: float, held_out: HeldOut, *, objective: Objective) -> float | None:
    """loss · tokens / bytes / log 2 of a held-out loss in nats per token, which does not depend on the tokenizer.

    None where not every token is predicted from those before.
    """
    if objective.auto_class is not AutoModelForCausalLM:
        return None
    return loss * held_out.account.tokens / held_out.account.bytes / math.log(2)


def held_out_figures(
    loss: float | None, held_out: HeldOut, *, unigram_loss: float | None, objective: Objective
) -> dict[str, Any]:
    """What a held-out loss in nats per token (None: not finite) means, beside the loss of the unigram model, if known.

        perplexity = exp(loss)

    which is None where the loss is not of tokens alone.
    """
    account = held_out.account
    bits = None if loss is None else bits_per_byte(loss, held_out, objective=objective)
    has_perplexity = loss is not None and loss <= LARGEST_EXPONENT and objective.only_tokens
    return {
        "loss": loss,
        "per": "token" if objective.only_tokens else "token and sentence",
        "perplexity": math.exp(loss) if has_perplexity and loss is not None else None,
        "bits_per_byte": bits,
        "unigram_loss": unigram_loss if objective.only_tokens else None,
        "documents": account.documents,
        "tokens": account.tokens,
        "bytes": account.bytes,
    }


def say_held_out(figures: dict[str, Any]) -> str:
    """The held-out figures on one line."""
    loss, bits, unigram, perplexity = (figures[key] for key in ("loss", "bits_per_byte", "unigram_loss", "perplexity"))
    if loss is None:
        return "the loss is no finite number: lower training.learning_rate"
    said = [f"{loss:.3f} nats/{figures['per']}"]
    said += [] if bits is None else [f"{bits:.3f} bits/byte"]
    said += [] if perplexity is None else [f"perplexity {perplexity:.1f}"]
    beside = "" if unigram is None else f" (unigram model: {unigram:.3f} nats/token)"
    return ", ".join(said) + beside
