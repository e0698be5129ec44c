"""Laws of every tokenizer algorithm: size, special tokens, determinism, saving; and loading from a folder."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented_text import ALGORITHMS, SMALLEST, sentences
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from attnkit.data import TokenizerConfig, load_tokenizer, train_tokenizer
from attnkit.data.tokenizer import SPECIAL_TOKENS
from attnkit.errors import UsageError

SAMPLES = ["", "Kalo mi\n", " two  spaces \t", "unseen Ω 日本語 \x00 \u2028 \x85\r\n", "<|endoftext|> in text"]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def train(algorithm: str, vocab_size: int, texts: list[str]) -> PreTrainedTokenizerFast:
    return train_tokenizer(texts, TokenizerConfig(algorithm=algorithm, vocab_size=vocab_size))


def as_saved(tokenizer: PreTrainedTokenizerFast) -> str:
    return tokenizer.backend_tokenizer.to_str()


@every_algorithm
def test_the_vocabulary_has_the_size_asked_for(algorithm: str, tokenizers: dict, texts: list[str]) -> None:
    tokenizer = tokenizers[algorithm]
    size = len(tokenizer)
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert len(train(algorithm, size - 1, texts)) == size - 1


@every_algorithm
def test_special_tokens_serve_every_objective_and_task(algorithm: str, tokenizers: dict) -> None:
    tokenizer = tokenizers[algorithm]
    assert tokenizer.special_tokens_map == SPECIAL_TOKENS
    assert sorted(tokenizer.all_special_ids) == list(range(len(set(SPECIAL_TOKENS.values()))))
    assert [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id] == [
        0,
        1,
        2,
        3,
    ]
    assert tokenizer.bos_token_id == tokenizer.eos_token_id
    assert tokenizer.model_max_length == 512
    for token, token_id in zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True):
        assert tokenizer(f"ka{token}")["input_ids"][-1] == token_id
        assert tokenizer.decode([token_id, token_id], skip_special_tokens=True) == ""


@every_algorithm
def test_one_text_stays_as_it_is_and_two_are_kept_apart(algorithm: str, tokenizers: dict) -> None:
    tokenizer = tokenizers[algorithm]
    first, second = (tokenizer(text)["input_ids"] for text in ("kalo", "mi vo"))
    assert not set(first) & set(tokenizer.all_special_ids)
    pair = tokenizer("kalo", "mi vo", return_token_type_ids=True)
    assert pair["input_ids"] == [*first, tokenizer.sep_token_id, *second]
    assert pair["token_type_ids"] == [0] * (len(first) + 1) + [1] * len(second)
    assert set(tokenizer("kalo", "mi vo")) == {"input_ids", "attention_mask"}


@every_algorithm
def test_equal_texts_give_an_equal_tokenizer(algorithm: str, tokenizers: dict, texts: list[str]) -> None:
    tokenizer = tokenizers[algorithm]
    for _ in range(5):
        assert as_saved(train(algorithm, len(tokenizer), tuple(texts))) == as_saved(tokenizer)


@every_algorithm
def test_a_saved_tokenizer_comes_back(algorithm: str, tokenizers: dict, tmp_path: Path) -> None:
    tokenizer = tokenizers[algorithm]
    tokenizer.save_pretrained(tmp_path)
    for loaded in (load_tokenizer(tmp_path), load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded.special_tokens_map == tokenizer.special_tokens_map
        assert loaded.model_max_length == tokenizer.model_max_length
        for text in SAMPLES:
            assert dict(loaded(text, text)) == dict(tokenizer(text, text))
            assert loaded.decode(loaded(text)["input_ids"]) == tokenizer.decode(tokenizer(text)["input_ids"])


@every_algorithm
def test_a_vocabulary_that_the_text_does_not_support_is_refused(algorithm: str, texts: list[str]) -> None:
    with pytest.raises(UsageError, match=r"more than the text supports with .*give more text") as error:
        train(algorithm, 50_000, texts)
    reached = int(re.search(r"reached (\d+) entries; set tokenizer.vocab_size to \1 or less", str(error.value))[1])
    assert len(train(algorithm, reached, texts)) == reached  # the remedy helps


@every_algorithm
def test_a_vocabulary_that_is_too_small_is_refused(algorithm: str, texts: list[str]) -> None:
    with pytest.raises(UsageError, match=r"tokenizer.vocab_size: 20 is too small for 6 special tokens and ") as error:
        train(algorithm, 20, texts)
    smallest = int(re.search(r"set it to (\d+) or more", str(error.value))[1])
    assert len(train(algorithm, smallest, texts)) == smallest
    with pytest.raises(UsageError, match="is too small"):
        train(algorithm, smallest - 1, texts)


@every_algorithm
def test_no_text_supports_no_vocabulary(algorithm: str) -> None:
    for nothing in ([], [""], ["  \n"]):
        with pytest.raises(UsageError, match="more than the text supports"):
            train(algorithm, 1000, nothing)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@given(text=st.text(), around=st.sampled_from(SAMPLES))
@settings(deadline=None)
def test_bytes_bring_every_text_back(algorithm: str, tokenizers: dict, text: str, around: str) -> None:
    tokenizer = tokenizers[algorithm]
    for it in (text, around + text + around, sentences(1, seed=len(text))[0] + text):
        token_ids = tokenizer(it)["input_ids"]
        assert tokenizer.decode(token_ids) == it
        assert tokenizer.unk_token_id not in token_ids


def test_words_and_characters_that_wordpiece_has_not_seen_are_unknown(tokenizers: dict) -> None:
    tokenizer = tokenizers["wordpiece"]
    assert tokenizer("Ω")["input_ids"] == [tokenizer.unk_token_id]
    assert tokenizer.decode(tokenizer("kalo  mi.\n")["input_ids"]) == "kalo mi."


def test_longest_input_of_the_model_is_saved(texts: list[str], tmp_path: Path) -> None:
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=SMALLEST), model_max_length=7)
    tokenizer.save_pretrained(tmp_path)
    assert len(load_tokenizer(tmp_path)("k" * 100, truncation=True)["input_ids"]) == 7


def test_what_holds_no_tokenizer_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "tokenizer.json").write_text(json.dumps({"model": 1}), encoding="utf-8")
    cases = {
        "empty": "empty holds no tokenizer; give a folder with tokenizer.json, or leave tokenizer.path out",
        "damaged": "damaged: the tokenizer cannot be loaded .*; give a folder",
        "good/tokenizer.json": "tokenizer.json is a file; give its folder",
        "none/at all": "none/at all.* is no file or folder here, and the hub cannot be reached|neither a file",
    }
    for path, match in cases.items():
        with pytest.raises(UsageError, match=match) as error:
            load_tokenizer(tmp_path / path)
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(UsageError, match="'org/tokenizer' is no file or folder here, and the hub cannot be reached"):
        load_tokenizer("org/tokenizer")
