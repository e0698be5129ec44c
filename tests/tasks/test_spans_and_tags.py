"""Answers in a text and tags of words are where they were, whatever the windows, the tokens and the cuts."""

import re
import string
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast, pipeline

from attnkit import AttnKitConfig, AttnKitForTokenClassification
from attnkit.data.tokenizer import TokenizerConfig, train_tokenizer
from attnkit.errors import UsageError
from attnkit.tasks import ExamplesConfig, TaskConfig, make_task
from attnkit.tasks.metrics_of_labels import MISSED
from attnkit.tasks.question_answering import NO_ANSWER
from attnkit.tasks.rows import Padding

WORDS = ["cat", "dogs", "ran", "42", "Ünï", "a", "house,", "(red)"]
PARTED = ["c.a.t.", "dog-house", "r?n"]  # by tokenizers that take full stops for words


def bert_like() -> PreTrainedTokenizerFast:
    """One token per character of a word, none of those without width, the special tokens of BERT around."""
    letters = sorted(set("".join(WORDS)))
    vocab = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters])}
    vocab |= {f"##{letter}": len(vocab) + number for number, letter in enumerate(letters)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace("\u200b", "")
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def trimmed() -> PreTrainedTokenizerFast:
    """A token per byte, of which those of spaces have no width, as RoBERTa's."""
    tokenizer = train_tokenizer(["none of these"] * 4, TokenizerConfig(vocab_size=262))
    ends = (tokenizer.sep_token, tokenizer.sep_token_id), (tokenizer.cls_token, tokenizer.cls_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return tokenizer


TOKENIZERS = {
    "trimmed": trimmed(),
    "bytes": train_tokenizer([" ".join(WORDS)] * 4, TokenizerConfig(vocab_size=285)),
    "letters": train_tokenizer(["none of these"] * 4, TokenizerConfig(vocab_size=262)),
    "wordpiece": bert_like(),
}


def qa(**options: Any) -> Any:
    return make_task(TaskConfig(name="question_answering", label_column="answers", options=options), ExamplesConfig())


def logits_at(row: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model would say that is sure of the labels of a row."""
    starts, ends = torch.zeros(len(row["input_ids"])), torch.zeros(len(row["input_ids"]))
    starts[row["start_positions"]], ends[row["end_positions"]] = 9.0, 9.0
    return starts, ends


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(sorted(TOKENIZERS)),
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=30),
    bounds=st.tuples(st.integers(0, 29), st.integers(1, 3)),
    stride=st.integers(0, 20),
    max_length=st.integers(38, 70),
)
def test_the_answer_comes_back_from_every_window_that_holds_it(
    kind: str, words: list[str], bounds: tuple[int, int], stride: int, max_length: int
) -> None:
    first = bounds[0] % len(words)
    answer = " ".join(words[first : first + bounds[1]])
    start = len(" ".join(words[:first])) + (first > 0)
    example = {"text": " ".join(words), "question": "cat ran", "answers": [(answer, start)]}
    task = qa(stride=stride, max_answer_tokens=1000)
    assert not list(task.check(example))
    try:
        rows = task.encode([example], TOKENIZERS[kind], max_length=max_length)
    except UsageError:
        return  # the windows would not move on, of which another test is
    held = 0
    for row in rows:
        spans = [span for span in row["spans"] if span is not None and span[0] < span[1]]
        holds = spans[0][0] <= start and spans[-1][1] >= start + len(answer)
        assert (row["start_positions"] != NO_ANSWER) == holds
        if holds:
            held += 1
            outcome = task.best_spans(row, *logits_at(row))
            assert task.best_answer(example["text"], [outcome])["prediction"] == answer
        assert all(one[1] >= two[0] - 1 for one, two in pairwise(spans))
    covered = {place for row in rows for span in row["spans"] if span is not None for place in range(*span)}
    assert {place for place, letter in enumerate(example["text"]) if letter != " "} <= covered
    if len(rows) == 1:
        assert held == 1
        outcomes = [task.best_spans(row, *logits_at(row)) for row in rows]
        assert task.answers([example], rows=rows, outcomes=outcomes)[0]["prediction"] == answer


@pytest.mark.parametrize("no_answer", [False, True])
def test_a_text_without_tokens_has_an_empty_answer(no_answer: bool) -> None:
    task = qa(no_answer=no_answer)
    examples = [{"text": "\u200b", "question": "a"}, {"text": "cat", "question": "a"}]
    rows = task.encode(examples, TOKENIZERS["wordpiece"], max_length=32)
    outcomes = [task.best_spans(row, *torch.zeros(2, len(row["input_ids"]))) for row in rows]
    nothing, something = task.answers(examples, rows=rows, outcomes=outcomes)
    assert nothing == {"prediction": "", "probability": 1.0, "num_best": [("", 1.0)]}
    assert something["prediction"]


def test_windows_have_to_move_on() -> None:
    example = {"text": " ".join(WORDS * 3), "question": "cat ran", "answers": [("cat", 0)]}
    with pytest.raises(UsageError, match=r"task\.options\.stride: 40 has to be less than the \d+ tokens"):
        qa(stride=40).encode([example], TOKENIZERS["wordpiece"], max_length=40)
    with pytest.raises(UsageError, match=r"task\.options\.stride: 0 has to be less than the 0 tokens"):
        qa().encode([example], TOKENIZERS["wordpiece"], max_length=9)


@pytest.mark.parametrize(("max_length", "stride"), [(24, 7), (64, 27), (400, 64)])
def test_without_a_stride_windows_of_any_size_move_on(max_length: int, stride: int) -> None:
    example = {"text": " ".join(WORDS * 30), "question": "cat ran", "answers": [("cat", 0)]}
    rows = qa().encode([example], TOKENIZERS["wordpiece"], max_length=max_length)
    first, second = (row["spans"] for row in rows[:2])
    assert len({span for span in first if span} & {span for span in second if span}) == stride


def test_no_answer_is_the_first_token_of_every_window() -> None:
    example = {"text": " ".join(WORDS), "question": "cat ran", "answers": []}
    task = qa(no_answer=True, stride=4)
    rows = task.encode([example], TOKENIZERS["wordpiece"], max_length=24)
    assert len(rows) > 1
    assert {(row["start_positions"], row["end_positions"]) for row in rows} == {(0, 0)}
    outcomes = [task.best_spans(row, *logits_at(row)) for row in rows]
    (answer,) = task.answers([example], rows=rows, outcomes=outcomes)
    assert answer["prediction"] == ""
    assert answer["probability"] > 0.5
    strict = qa(no_answer=True, stride=4, no_answer_threshold=100.0)
    assert strict.answers([example], rows=rows, outcomes=outcomes)[0]["prediction"] != ""
    assert next(qa().check(example)).before.startswith(
        "column 'answers': there is no answer; fill it in, or set task.options.no_answer true"
    )


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([("cat", 40)], "an answer lies outside the text: 3 characters from 40 of 11"),
        ([("cat", 1)], "the text has 'at ' where the answer is said to be 'cat'"),
        ([("dog", None)], "the text has the answer 'dog' 0 times; correct the answer or the text"),
        ([("a", None)], "the text has the answer 'a' 2 times; write it as {"),
        ([(" ", 3)], "an answer is only white space; remove it, and its answer_start"),
        ([("cat", 0), ("\n\t", None)], "an answer is only white space"),
    ],
)
def test_answers_that_are_not_there(answers: list, message: str) -> None:
    faults = qa().check({"text": "cat ran off", "question": "?", "answers": answers})
    assert message in " ".join("".join(fault) for fault in faults)


def official(said: str, golds: list[str], *, version: int) -> tuple[float, float]:
    """Exact match and F1 of one question, from what the evaluation scripts of SQuAD 1.1 and 2.0 say of themselves."""

    def bag(text: str) -> list[str]:
        letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", letters).split()

    if version == 2:
        golds = [gold for gold in golds if bag(gold)] or [""]
    pairs = [(bag(said), bag(gold)) for gold in golds]
    exact, f1 = max(float(one == two) for one, two in pairs), 0.0
    for one, two in pairs:
        common = sum((Counter(one) & Counter(two)).values())
        if version == 2 and not (one and two):
            f1 = max(f1, float(one == two))
        elif common:
            precision, recall = common / len(one), common / len(two)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return exact, f1


@settings(max_examples=300, deadline=None)
@given(
    said=st.lists(st.sampled_from(["a", "The", "cat", "cat.", "--", "ran"]), max_size=3).map(" ".join),
    golds=st.lists(st.sampled_from(["a", "the", "--", "cat", "the cat", "Cat ran!", "an a"]), max_size=3),
    version=st.sampled_from([1, 2]),
)
def test_figures_are_those_of_the_scripts_of_squad(said: str, golds: list[str], version: int) -> None:
    if version == 1 and not golds:
        return  # there every question has an answer
    task = qa(no_answer=version == 2)
    example = {"text": "-", "question": "?", "answers": [(gold, 0) for gold in golds]}
    figures = task.score([example], [{"prediction": said}])
    assert (figures["exact_match"], figures["answer_f1"]) == pytest.approx(official(said, golds, version=version))


def test_a_hint_of_padding_changes_no_loss() -> None:
    config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model, task = BertForQuestionAnswering(config).eval(), qa(stride=0)
    task.prepare_model(model, [])
    examples = [
        {"text": text, "question": "cat", "answers": [("cat", 0)]} for text in ("cat ran", "cat " + " ".join(WORDS))
    ]
    rows = task.encode(examples, TOKENIZERS["wordpiece"], max_length=60)
    pad = Padding(TOKENIZERS["wordpiece"])
    together, alone = model(**pad(rows)).loss, [model(**pad([row])).loss for row in rows]
    torch.testing.assert_close(together, sum(alone) / 2)


# ------------------------------------------------------------------------------------------------------------ tags


def tagging() -> Any:
    task = make_task(TaskConfig(name="token_classification"), ExamplesConfig())
    assert not list(task.learn([{"words": ["x", "y"], "tags": ["O", "B-X"]}]))
    return task


@settings(max_examples=50, deadline=None)
@given(
    kind=st.sampled_from(sorted(TOKENIZERS)),
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=12),
    max_length=st.integers(6, 40),
)
def test_the_first_token_of_each_word_has_its_tag(kind: str, words: list[str], max_length: int) -> None:
    task, tokenizer = tagging(), TOKENIZERS[kind]
    tags = ["B-X" if number % 2 else "O" for number in range(len(words))]
    (row,) = task.encode([{"words": words, "tags": tags}], tokenizer, max_length=max_length)
    assert len(row["input_ids"]) <= max_length
    labelled = {token: label for token, label in enumerate(row["labels"]) if label != -100}
    blank = {token for token, number in enumerate(row["input_ids"]) if tokenizer.decode([number]).isspace()}
    assert {labelled[token] for token in blank} <= {task.numbers()["O"]}
    others = set(labelled) - blank - set(row["first_tokens"].values())
    names = [tokenizer.decode([row["input_ids"][token]]) for token in others]
    # Bytes of a first character, or what is not said to go on with a word.
    assert all(not name.startswith("##") if kind == "wordpiece" else not name.isascii() for name in names)
    for word, token in row["first_tokens"].items():
        assert labelled[token] == task.numbers()[tags[word]]
        piece = tokenizer.decode([row["input_ids"][token]]).strip().removeprefix("##")
        assert words[word].startswith(piece) or not piece.isascii()
    assert row["missed"] == len(words) - len(row["first_tokens"])
    whole = tokenizer(" ".join(words))["input_ids"]
    assert row["cut"] == (len(whole) > max_length)
    if not row["cut"]:
        assert row["missed"] == 0
    outcomes = [{word: (tags[word], 0.9) for word in row["first_tokens"]}]
    (answer,) = task.answers([{"words": words, "tags": tags}], rows=[row], outcomes=outcomes)
    assert answer["prediction"].count(MISSED) == row["missed"]


# The warning of transformers, which the docs explain, goes for all tokenizers of bytes.
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@settings(max_examples=50, deadline=None)
@given(
    kind=st.sampled_from(sorted(TOKENIZERS)),
    tagged=st.lists(
        st.tuples(st.sampled_from([*WORDS, "7", "2024", *PARTED]), st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])),
        min_size=1,
        max_size=12,
    ),
)
def test_a_pipeline_finds_the_entities_that_were_learnt(kind: str, tagged: list[tuple[str, str]]) -> None:
    words, tags = map(list, zip(*tagged, strict=True))
    task = make_task(TaskConfig(name="token_classification"), ExamplesConfig())
    everything = {"words": list("abcde"), "tags": ["O", "B-X", "I-X", "B-Y", "I-Y"]}
    assert not list(task.learn([everything]))
    (row,) = task.encode([{"words": words, "tags": tags}], TOKENIZERS[kind], max_length=200)
    config = AttnKitConfig(vocab_size=300, hidden_size=8, num_attention_heads=1, num_hidden_layers=1)
    config.id2label, config.label2id = dict(enumerate(task.classes)), task.numbers()
    model = AttnKitForTokenClassification(config)
    # What is not trained says anything.
    said = [task.numbers()["B-Y"] if label == -100 else label for label in row["labels"]]

    def say(module: Any, args: Any, output: Any) -> Any:
        output.logits = 9.0 * torch.nn.functional.one_hot(torch.tensor([said]), len(task.classes)).float()
        return output

    model.register_forward_hook(say)
    ask = pipeline("token-classification", model=model, tokenizer=TOKENIZERS[kind], aggregation_strategy="first")
    text = " ".join(words)
    found = [(text[it["start"] : it["end"]].strip(), it["entity_group"]) for it in ask(text)]
    expected: list[tuple[list[str], str]] = []
    for number, (word, tag) in enumerate(tagged):
        if number and tag == f"I-{tags[number - 1][2:]}":
            expected[-1][0].append(word)
        elif tag != "O":
            expected.append(([word], tag[2:]))
    assert found == [(" ".join(them), group) for them, group in expected]


def test_words_that_were_cut_off_are_wrong_and_counted() -> None:
    task, example = tagging(), {"words": ["cat", "ran", "dogs"], "tags": ["B-X", "O", "B-X"]}
    rows = task.encode([example], TOKENIZERS["wordpiece"], max_length=8)
    assert task.notes(rows, sequence_length=8) == [
        "1 of 1 texts are longer than data.sequence_length: 8 and were cut",
        "1 words have no token in their row and count as wrong",
    ]
    answers = task.answers([example], rows=rows, outcomes=[{0: ("B-X", 1.0), 1: ("O", 1.0)}])
    figures = task.score([example], answers)
    assert figures["tag_accuracy"] == pytest.approx(2 / 3)
    assert figures["entity_recall"] == 0.5
    assert figures["entity_precision"] == 1.0


def test_no_tag_of_a_user_is_taken_for_a_word_that_was_cut_off() -> None:
    rows = [{"words": ["a", "b"], "tags": ["missed", "O"]}, {"words": ["a", "b"], "tags": ["None", "null"]}]
    task = make_task(TaskConfig(name="token_classification", metrics=["tag_accuracy"]), ExamplesConfig())
    assert not list(task.learn(rows))
    for example in rows:
        answers = task.answers([example], rows=[{}], outcomes=[{}])  # both words were cut off
        assert task.score([example], answers) == {"tag_accuracy": 0.0}
        assert answers[0]["prediction"] == [MISSED, MISSED]
    for nothing in ("", " "):
        with pytest.raises(UsageError, match=rf"task\.label_names: '{nothing}' is no name; give one"):
            make_task(TaskConfig(name="token_classification", label_names=["O", nothing]), ExamplesConfig())


def test_tags_that_name_no_entities() -> None:
    task = make_task(TaskConfig(name="token_classification"), ExamplesConfig())
    (problem,) = task.learn([{"words": ["x", "y"], "tags": ["NN", "VB"]}])
    assert problem.startswith("task.metrics: 'NN' is no BIO tag")
    task = make_task(TaskConfig(name="token_classification", metrics=["tag_accuracy"]), ExamplesConfig())
    assert not list(task.learn([{"words": ["x", "y"], "tags": ["NN", "VB"]}]))
    (fault,) = task.check({"words": ["x"], "tags": ["NN", "VB"]})
    assert "".join(fault) == "columns 'text' and 'label': there are 2 tags for 1 words; give one tag for each word"


def test_a_tokenizer_without_offsets_is_refused() -> None:
    class Slow:
        is_fast = False

    for name in ("token_classification", "question_answering", "instruction"):
        with pytest.raises(UsageError, match="which characters a token stands for"):
            make_task(TaskConfig(name=name), ExamplesConfig()).prepare_tokenizer(Slow())
