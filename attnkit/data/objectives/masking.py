"""Which tokens are hidden from a model, and what it sees in their place.

Shapes: N tokens of a row, V vocabulary.
"""

from collections.abc import Callable

import torch
from tokenizers.models import BPE, WordPiece
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attnkit.data.objectives.base import IGNORED, ObjectiveConfig, needed

BEGINS_WORD = ("Ġ", "Ċ", "ĉ", "č", "▁")
"""How byte-level tokenizers and those of SentencePiece mark a piece that begins a word."""


class TextTokens:
    """Which tokens of a vocabulary stand for text: all but special tokens, and the unknown token too."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        vocabulary = tokenizer.get_vocab()
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self.ids = torch.tensor(sorted(set(vocabulary.values()) - special))
        self.is_text = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)  # [V]
        self.is_text[self.ids] = True
        goes_on = mark_of_going_on(tokenizer)
        self.begins_word = torch.ones_like(self.is_text)  # [V]
        for token, token_id in vocabulary.items():
            begins = not token.startswith(goes_on) if goes_on else token.startswith(BEGINS_WORD)
            self.begins_word[token_id] = begins or not self.is_text[token_id]

    def __call__(self, tokens: Tensor) -> Tensor:
        """[N] -> places [M] of the tokens that stand for text. Raises `ValueError` where there is none."""
        places = self.is_text[tokens].nonzero().squeeze(1)
        if len(places) == 0:
            raise ValueError("a row of special tokens has none that could be predicted")
        return places

    def words(self, tokens: Tensor) -> Tensor:
        """A row [N] -> the number of the word that each token is part of, [N]; words end at special tokens."""
        return self.begins_word[tokens].cumsum(0) - int(self.begins_word[tokens[0]])


def mark_of_going_on(tokenizer: PreTrainedTokenizerBase) -> str:
    """What a piece begins with that goes on with a word, `##` of WordPiece; "" where those that begin one are marked.

    The vocabulary does not tell: one of texts with headings may hold `##` as a word.
    """
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        model = tokenizer.backend_tokenizer.model
        return (model.continuing_subword_prefix or "") if isinstance(model, BPE | WordPiece) else ""
    pieces = tokenizer.get_vocab()
    return "##" if sum(it.startswith("##") for it in pieces) > sum(it.startswith(BEGINS_WORD) for it in pieces) else ""


class Masker:
    """Hides text tokens as BERT does (Devlin 2019, section 3.1).

    Of the tokens, `mask_rate` are chosen, one by one, by words or by spans; if none is, one token or word at random. Of
    the chosen, `mask_token_rate` become the mask token, `random_token_rate` a random token, and the others stay.
    Special tokens, but for the unknown one, are neither chosen nor put in at random.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig) -> None:
        self.objective = objective
        self.mask_token_id = needed(tokenizer.mask_token_id, "mask_token", objective)
        self.text = TextTokens(tokenizer)
        units: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "token": self.choose_tokens,
            "word": self.choose_words,
            "span": self.choose_spans,
        }
        self.choose = units[objective.mask_unit]

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of a row [N] -> what the model sees [N], and its labels [N]."""
        places = self.text(tokens)
        chosen = self.choose(tokens, places)
        places = places[chosen]
        kind = torch.rand(len(places))
        replaced = tokens[places]
        is_random = kind >= 1 - self.objective.random_token_rate
        drawn = self.text.ids[torch.randint(len(self.text.ids), (len(places),))]
        replaced = torch.where(is_random, drawn, replaced)
        replaced = torch.where(kind < self.objective.mask_token_rate, self.mask_token_id, replaced)
        inputs, labels = tokens.clone(), torch.full_like(tokens, IGNORED)
        inputs[places], labels[places] = replaced, tokens[places]
        return inputs, labels

    def choose_tokens(self, _: Tensor, places: Tensor) -> Tensor:
        """Each token by itself; a row [N] and the places [M] of its text -> [M]."""
        return some_of(len(places), self.objective.mask_rate)

    def choose_words(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Each word by itself, with all of its tokens."""
        _, words = self.text.words(tokens)[places].unique_consecutive(return_inverse=True)
        return some_of(int(words[-1]) + 1, self.objective.mask_rate)[words]

    def choose_spans(self, _: Tensor, places: Tensor) -> Tensor:
        """Spans."""
        num_tokens = len(places)
        number = num_noise(num_tokens, self.objective.mask_rate)
        return random_spans(num_tokens, number, span_length=self.objective.span_length)


def some_of(number: int, rate: float) -> Tensor:
    """Of so many, each by itself at this rate, and one where it would be none; [number]."""
    chosen = torch.rand(number) < rate
    if not chosen.any():
        chosen[torch.randint(number, ())] = True
    return chosen


def num_noise(num_tokens: int, rate: float) -> int:
    """The tokens that are hidden where `rate` of them are: at least one, and of several never all."""
    return min(max(1, round(num_tokens * rate)), max(1, num_tokens - 1))


def num_spans(num_noise_tokens: int, span_length: float) -> int:
    """The spans that hidden tokens make."""
    return max(1, round(num_noise_tokens / span_length))


def random_spans(num_tokens: int, num_noise_tokens: int, *, span_length: float) -> Tensor:
    """Which of the tokens are hidden, [num_tokens]: `num_spans` spans, each apart from the next.

    Numbers are those of Raffel 2020, section 3.1.4, whose last span always ends the row; here any place may be
    hidden, those next to an end of the row less often.
    """
    num_noise_tokens = min(num_noise_tokens, max(1, num_tokens - 1))
    num_seen = num_tokens - num_noise_tokens
    number = min(num_spans(num_noise_tokens, span_length), num_seen + 1)
    seen = random_parts(num_seen + 2, number + 1)  # before, between and after the spans
    seen[[0, -1]] -= 1  # where there may be none
    lengths = torch.stack([seen[:-1], random_parts(num_noise_tokens, number)], dim=1).flatten()
    lengths = torch.cat([lengths, seen[-1:]])
    return (torch.arange(len(lengths)) % 2 == 1).repeat_interleave(lengths)


def random_parts(total: int, number: int) -> Tensor:
    """`number` lengths of at least 1 that add up to `total`, all such lists equally likely."""
    cuts = torch.randperm(total - 1)[: number - 1].sort().values + 1
    return torch.diff(cuts, prepend=torch.tensor([0]), append=torch.tensor([total]))
