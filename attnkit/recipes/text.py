"""The text of a run: documents, the tokenizer, and rows of token ids with their accounting."""

import math
from dataclasses import dataclass

from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from attnkit.data.packing import PackedText, pack
from attnkit.data.sources import DataConfig, Documents
from attnkit.data.statistics import unigram_loss
from attnkit.data.tokenizer import TokenizerConfig, load_tokenizer, train_tokenizer
from attnkit.training.launch import on_main

LARGEST_EXPONENT = 700  # of e, in double precision


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows to train on and rows held out, and how well a model of token frequencies alone predicts these."""

    train: PackedText
    held_out: PackedText
    unigram_loss: float  # nats per token


def get_tokenizer(
    documents: Documents, tokenizer: TokenizerConfig, *, accelerator: Accelerator
) -> PreTrainedTokenizerBase:
    """The tokenizer at `tokenizer.path`, or one trained on the documents to train on: once, by the main process."""
    if tokenizer.path is not None:
        return load_tokenizer(tokenizer.path)
    return on_main(accelerator, lambda: train_tokenizer(documents.train["text"], tokenizer))


def make_rows(documents: Documents, tokenizer: PreTrainedTokenizerBase, *, data: DataConfig) -> Rows:
    """Pack the documents into rows. Raises `UsageError` if there is not the text for one row."""
    train = pack(documents.train, tokenizer, sequence_length=data.sequence_length)
    held_out = pack(documents.held_out, tokenizer, sequence_length=data.sequence_length, min_tokens=2)
    loss = unigram_loss(train.rows, held_out.rows, vocab_size=len(tokenizer))
    return Rows(train=train, held_out=held_out, unigram_loss=loss)


def held_out_figures(
    loss: float | None, held_out: PackedText, *, unigram_loss: float | None, every_token: bool
) -> dict[str, float | int | None]:
    """What a held-out loss in nats per token (None: not finite) means, beside the loss of the unigram model, if known.

        perplexity = exp(loss),    bits per byte = loss · tokens / bytes / log 2

    Bits per byte does not depend on the tokenizer. It is None where not `every_token` is predicted from those before.
    """
    bits = None if loss is None or not every_token else loss * held_out.tokens / held_out.bytes / math.log(2)
    return {
        "loss": loss,
        "perplexity": None if loss is None or loss > LARGEST_EXPONENT else math.exp(loss),
        "bits_per_byte": bits,
        "unigram_loss": unigram_loss,
        "documents": held_out.documents,
        "tokens": held_out.tokens,
        "bytes": held_out.bytes,
    }


def say_held_out(figures: dict[str, float | int | None]) -> str:
    """The held-out figures on one line."""
    loss, bits = figures["loss"], figures["bits_per_byte"]
    if loss is None:
        return "the loss is no finite number: lower training.learning_rate"
    shown = "" if bits is None else f", {bits:.3f} bits/byte"
    unigram = figures["unigram_loss"]
    perplexity = math.inf if figures["perplexity"] is None else figures["perplexity"]
    beside = "" if unigram is None else f" (unigram model: {unigram:.3f} nats/token)"
    return f"{loss:.3f} nats/token{shown}, perplexity {perplexity:.1f}{beside}"
