"""A tokenizer trained on the run's own text, or one loaded from a folder or the hub.

Special tokens, the same for every algorithm, at ids 0 to 5. One of them stands after every document of packed text, so
it ends a document and begins the next: it is `eos_token` and `bos_token` both, and both are seen in training.

    <|pad|>        pad_token
    <|unk|>        unk_token
    <|endoftext|>  eos_token, bos_token
    <|mask|>       mask_token
    <|cls|>        cls_token
    <|sep|>        sep_token

The same tokenizer serves causal and masked pretraining and classification. It adds nothing to a single text, since a
prompt that ended in a special token could not be gone on from; two texts get one `<|sep|>` between them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnkit.errors import UsageError, first_line
from attnkit.files.hub import require_repository, unreachable

SPECIAL_TOKENS = {
    "pad_token": "<|pad|>",
    "unk_token": "<|unk|>",
    "eos_token": "<|endoftext|>",
    "bos_token": "<|endoftext|>",
    "mask_token": "<|mask|>",
    "cls_token": "<|cls|>",
    "sep_token": "<|sep|>",
}
SPECIALS = list(dict.fromkeys(SPECIAL_TOKENS.values()))
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MIN_FREQUENCY = 2
"""Pieces that occur once in the training text are no units of the language."""


@dataclass(kw_only=True)
class TokenizerConfig:
    """Which tokenizer a run uses."""

    path: str | None = None
    """A folder or hub name to load; without it a tokenizer is trained on `data.source`."""
    algorithm: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    """What is trained: byte-level BPE (Sennrich 2016), WordPiece (Schuster 2012) or Unigram (Kudo 2018)."""
    vocab_size: int = 8192
    """Entries of the trained vocabulary, special tokens included."""


def train_tokenizer(
    texts: Iterable[str],
    tokenizer: TokenizerConfig,
    *,
    model_max_length: int = 512,
    extra_tokens: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly `vocab_size` entries for these texts; equal texts give an equal tokenizer.

    `bpe` and `unigram` work on bytes, so decode(encode(text)) == text for every text. `wordpiece` is BERT's: words and
    punctuation are split first, white space is lost, and characters that the texts lack become `<|unk|>`.

    `model_max_length`: tokens that the model takes, saved with the tokenizer for truncation. `extra_tokens`: special
    tokens that an objective needs, at the ids after those that every tokenizer has.

    `texts` may be read twice, so it is no iterator that is spent after once.

    Raises `UsageError` if the vocabulary is larger than the texts support, or too small for the special tokens and the
    alphabet.
    """
    if isinstance(texts, Iterator):
        raise ValueError("texts are read twice: give a list, or something else that can be iterated anew")
    train = {"bpe": _train_bpe, "wordpiece": _train_wordpiece, "unigram": _train_unigram}[tokenizer.algorithm]
    trained = train(texts, tokenizer.vocab_size, [*SPECIALS, *extra_tokens])
    size = trained.get_vocab_size()
    if size < tokenizer.vocab_size:
        raise UsageError(
            f"tokenizer.vocab_size: {tokenizer.vocab_size} is more than the text supports with {tokenizer.algorithm}, "
            f"which reached {size} entries; set tokenizer.vocab_size to {size} or less, or give more text"
        )
    separator = SPECIAL_TOKENS["sep_token"]
    trained.post_processor = processors.TemplateProcessing(
        single="$A", pair=f"$A {separator} $B:1", special_tokens=[(separator, trained.token_to_id(separator))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        extra_special_tokens=list(extra_tokens),
        **SPECIAL_TOKENS,
    )


def load_tokenizer(
    path: str | Path,
    *,
    named: str | None = None,
    remedy: str = "give a folder with tokenizer.json, or leave tokenizer.path out to train one",
) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder that `save_pretrained` wrote, or on the hub.

    `named` is what the errors call it, by default the setting `tokenizer.path`; `remedy` what they advise.

    Raises `UsageError` for a folder without a tokenizer, a damaged one, and a name that is not on the hub or for which
    the hub cannot be asked.
    """
    folder, named = Path(path).expanduser(), named or f"tokenizer.path: {path}"
    if folder.is_file():
        raise UsageError(f"{named} is a file; give its folder")
    if folder.is_dir():
        if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
            raise UsageError(f"{named} holds no tokenizer; {remedy}")
    else:
        require_repository(str(path), kind="model", remedy=remedy)
    try:
        return AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else str(path))
    except Exception as error:  # the library raises bare Exception for a damaged tokenizer.json
        if not folder.is_dir() and isinstance(error, OSError):
            raise unreachable(str(path), kind="model", remedy=remedy) from error
        raise UsageError(f"{named}: the tokenizer cannot be loaded ({first_line(error)}); {remedy}") from error


def _train_bpe(texts: Iterable[str], vocab_size: int, specials: list[str]) -> Tokenizer:
    """Byte-level BPE: the most frequent pair of pieces becomes a piece, again and again (Sennrich 2016)."""
    _check_alphabet(BYTES, vocab_size, specials, what="bytes")
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=specials,
        initial_alphabet=BYTES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_unigram(texts: Iterable[str], vocab_size: int, specials: list[str]) -> Tokenizer:
    """Byte-level Unigram: of many pieces, those stay that the likelihood of the text needs most (Kudo 2018)."""
    _check_alphabet(BYTES, vocab_size, specials, what="bytes")
    scratch = _byte_level(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=BYTES,
        unk_token=SPECIAL_TOKENS["unk_token"],
        show_progress=False,
    )
    scratch.train_from_iterator(texts, trainer)
    pieces = json.loads(scratch.to_str())["model"]["vocab"][len(specials) :]
    ordered = sorted(_settled(pieces), key=lambda item: (-item[1], item[0]))
    single = [item for item in ordered if len(item[0]) == 1]
    longer = [item for item in ordered if len(item[0]) > 1]
    # Cut, because the trainer goes on past a size that the bytes alone fill.
    vocab = [(token, 0.0) for token in specials] + single + longer[: vocab_size - len(specials) - len(single)]
    tokenizer = _byte_level(models.Unigram(vocab, unk_id=specials.index(SPECIAL_TOKENS["unk_token"])))
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _settled(pieces: list[tuple[str, float | None]]) -> list[tuple[str, float]]:
    """Pieces with scores that are equal for equal texts, which those of the trainer are not quite.

    It sums in an order that changes from run to run; and bytes that the text lacks get scores just above the lowest,
    1e-4 apart, in such an order. So all of those get the lowest one, and the others are rounded. Without any text there
    are no likelihoods and no scores.
    """
    scores = [round(score or 0.0, 6) for _, score in pieces]
    lowest = min(scores)
    near_lowest = lowest + 1e-4 * (len(BYTES) + 1)
    return [
        (piece, lowest if len(piece) == 1 and score < near_lowest else score)
        for (piece, _), score in zip(pieces, scores, strict=True)
    ]


def _byte_level(model: models.Model) -> Tokenizer:
    """A tokenizer whose model sees every byte as a character of its own, so nothing is unknown and nothing lost."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _train_wordpiece(texts: Iterable[str], vocab_size: int, specials: list[str]) -> Tokenizer:
    """WordPiece as BERT has it, cased: pieces inside a word begin with ## (Schuster 2012; Devlin 2019)."""
    scratch = _word_level(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    alphabet: set[str] = set()
    for text in texts:
        alphabet.update(scratch.normalizer.normalize_str(text))
    letters = [character for character in sorted(alphabet) if not character.isspace()]
    inner = [f"##{letter}" for letter in letters if _goes_on(letter, scratch)]
    _check_alphabet([*letters, *inner], vocab_size, specials, what="characters")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        # The trainer meets the inner letters in an order that changes from run to run, and breaks ties by it. Given as
        # special tokens they have fixed places; the tokenizer that is returned knows them as ordinary ones.
        special_tokens=[*specials, *inner],
        initial_alphabet=letters,
        show_progress=False,
    )
    scratch.train_from_iterator(texts, trainer)
    vocab = scratch.get_vocab(with_added_tokens=False)
    tokenizer = _word_level(models.WordPiece(vocab, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _word_level(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _goes_on(letter: str, tokenizer: Tokenizer) -> bool:
    """Whether a letter can stand inside a word: punctuation and Chinese characters are words of their own."""
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(f"a{letter}"))) == 1


def _check_alphabet(alphabet: list[str], vocab_size: int, specials: list[str], *, what: str) -> None:
    smallest = len(specials) + len(alphabet)
    if vocab_size < smallest:
        raise UsageError(
            f"tokenizer.vocab_size: {vocab_size} is too small for {len(specials)} special tokens and "
            f"{len(alphabet)} {what}; set it to {smallest} or more"
        )
