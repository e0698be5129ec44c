"""Files of labelled text → rows, labels and metrics; and every mistake in them, refused in one line."""

import json
from dataclasses import dataclass
from pathlib import Path

import datasets
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import attnkit
import attnkit.tasks.metrics  # a submodule, which hides no registry
from attnkit.errors import UsageError
from attnkit.recipes.judge import Judged, judge, plot_report
from attnkit.tasks import Classification, Example, ExamplesConfig, Task, TaskConfig, load_examples, make_task
from attnkit.tasks.examples import PLACE
from attnkit.training.launch import make_accelerator

WORDS = ["good", "bad", "film", "plot", "fine", "NA", "null", "007", "the", "a"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    specials = ["<pad>", "<unk>", "<cls>", "<sep>"]
    words = {word: number for number, word in enumerate([*specials, *WORDS])}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single="<cls> $A <sep>", pair="<cls> $A <sep> $B:1 <sep>:1", special_tokens=[("<cls>", 2), ("<sep>", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", cls_token="<cls>", sep_token="<sep>"
    )


def write_csv(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_jsonl(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@dataclass
class Made:
    task: Task
    train: list[Example]
    held_out: list[Example]


def make(
    source: str | list[str], held_out: str | None = None, *, task: TaskConfig | None = None, **data: object
) -> Made:
    config = ExamplesConfig(source=source, held_out_source=held_out, **data)
    made = make_task(task or TaskConfig(), config)
    examples = load_examples(made, config)
    return Made(task=made, train=examples["train"], held_out=examples["held_out"])


def column(examples: list[Example], role: str) -> list:
    return [example[role] for example in examples]


REVIEWS = ("text,label", "good film,pos", "fine film,pos", "bad film,neg", "bad plot,neg")


def test_the_registry_is_read_through_the_package() -> None:
    assert attnkit.tasks["classification"] is Classification
    assert "classification" in attnkit.tasks
    assert "classification" in list(attnkit.tasks)
    assert len(attnkit.tasks) == len(list(attnkit.tasks))
    with pytest.raises(UsageError, match="unknown task 'clasification': did you mean 'classification'"):
        attnkit.tasks["clasification"]


def test_labels_come_from_the_training_rows(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", *REVIEWS)
    held_out = write_csv(tmp_path / "held_out.csv", "text,label", "good plot,pos")
    task = make(train, held_out)
    assert task.task.head_config()["id2label"] == {0: "neg", 1: "pos"}
    assert task.task.head_config()["label2id"] == {"neg": 0, "pos": 1}
    config = BertConfig(**task.task.head_config())
    assert config.num_labels == 2


def test_text_stays_text(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    source = write_csv(tmp_path / "a.csv", "text,label", "NA,007", "null,NA", "007,null", "the film,007")
    task = make(source, source)
    assert task.task.names() == ["007", "NA", "null"]
    assert column(task.train, "text") == ["NA", "null", "007", "the film"]
    rows = task.task.encode(task.train, tokenizer, max_length=16)
    assert tokenizer.decode(rows[2]["input_ids"]) == "<cls> 007 <sep>"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_whole_numbers_are_labels_in_their_order(tmp_path: Path, kind: str) -> None:
    rows = [{"text": f"film {number}", "label": number} for number in (10, 9, 2, 10)]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write_jsonl(path, *rows)
    else:
        datasets.Dataset.from_list(rows).to_parquet(path)
    assert make(str(path), str(path)).task.names() == ["2", "9", "10"]


def test_columns_have_the_names_that_are_given(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", "id,stars,review", "1,5,good", "2,1,bad")
    task = make(source, source, task=TaskConfig(label_column="stars"), text_column="review")
    rows = [{"text": "good", "label": "5"}, {"text": "bad", "label": "1"}]
    assert task.train == [{PLACE: f"{source}:{line}", **row} for line, row in enumerate(rows, start=2)]


def test_a_pair_is_read_in_one_row(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    source = write_csv(tmp_path / "a.csv", "text,other,label", "good,the film,yes", "bad,a plot,no")
    task = make(source, source, task=TaskConfig(text_pair_column="other"))
    rows = task.task.encode(task.train, tokenizer, max_length=16)
    assert tokenizer.decode(rows[0]["input_ids"]) == "<cls> good <sep> the film <sep>"
    tokenizer.model_input_names.append("token_type_ids")
    rows = task.task.encode(task.train, tokenizer, max_length=16)
    assert rows[0]["token_type_ids"] == [0, 0, 0, 1, 1, 1]


def test_rows_are_cut_and_batches_padded_to_their_longest(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    source = write_csv(tmp_path / "a.csv", "text,label", "good " * 20 + ",pos", "bad film,neg", "bad,neg")
    task = make(source, source)
    rows = task.task.encode(task.train, tokenizer, max_length=8)
    assert [len(row["input_ids"]) for row in rows] == [8, 4, 3]
    assert [row["cut"] for row in rows] == [True, False, False]
    batch = task.task.collator(tokenizer)(rows[1:])
    assert batch["input_ids"].shape == (2, 4)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["labels"].tolist() == [0, 0]


def test_the_default_split_is_stratified_and_shares_no_text(tmp_path: Path) -> None:
    lines = [f"film {number},{'pos' if number % 2 else 'neg'}" for number in range(40)]
    task = make(write_csv(tmp_path / "a.csv", "text,label", *lines, *lines), held_out_fraction=0.25)
    assert (len(task.train), len(task.held_out)) == (60, 20)
    assert not set(column(task.train, "text")) & set(column(task.held_out, "text"))
    assert sorted(column(task.held_out, "label")) == ["neg"] * 10 + ["pos"] * 10


def test_the_baseline_is_the_majority_of_the_training_rows(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", *REVIEWS, "fine plot,pos")
    held_out = write_csv(tmp_path / "held_out.csv", "text,label", "good,pos", "bad,neg", "a bad film,neg")
    made = make(train, held_out)
    metrics = made.task.baseline(made.train, made.held_out)
    assert metrics == {"accuracy": pytest.approx(1 / 3), "macro_f1": pytest.approx(0.25)}


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_the_score_counts_each_held_out_row_once(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> None:
    task = make(*[write_csv(tmp_path / "a.csv", *REVIEWS, "good plot,pos", "the plot,neg", "a film,pos")] * 2)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            **task.task.head_config(),
        )
    ).eval()
    rows = task.task.encode(task.held_out, tokenizer, max_length=8)
    judged = judge(
        model,
        task.task,
        examples=task.held_out,
        rows=rows,
        tokenizer=tokenizer,
        batch_size=batch_size,
        accelerator=make_accelerator(),
    )
    alone = [model(**task.task.collator(tokenizer)([row])).logits.argmax().item() for row in rows]
    right = [said == row["labels"] for said, row in zip(alone, rows, strict=True)]
    assert judged.figures["accuracy"] == sum(right) / len(rows)
    assert judged.figures.keys() == {"loss", "accuracy", "macro_f1"}


@pytest.mark.parametrize(
    "names", [[r"$\foo$", "a$b$c_", "$x^$"], ["x" * 300, "a\nb", "\t\x07"], ["你好", "ש\u202e", "\x00\uffff"]]
)
def test_every_name_of_a_class_can_be_drawn(names: list[str], tmp_path: Path) -> None:
    examples = [{"text": "a", "label": name} for name in names]
    task = make_task(TaskConfig(), ExamplesConfig())
    assert not list(task.learn(examples))
    answers = [{"prediction": name} for name in names]
    judged = Judged(examples=examples, answers=answers, figures=task.score(examples, answers))
    plot_report(tmp_path / "report.png", task, judged)
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"


def test_python_docs_have_labels_of_their_own() -> None:
    task = make("python-docs", held_out_fraction=0.15)
    assert len(task.task.names()) > 10
    assert not set(column(task.train, "text")) & set(column(task.held_out, "text"))
    assert task.task.baseline(task.train, task.held_out)["accuracy"] < 0.25
    with pytest.raises(UsageError, match=r"task\.label_column: python-docs has the columns 'text' and 'label'"):
        make("python-docs", task=TaskConfig(label_column="package"))


# ------------------------------------------------------------------------------------------------------- mistakes


def test_unseen_labels_are_listed(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", *REVIEWS)
    held_out = write_csv(tmp_path / "held_out.csv", "text,label", "x,pos", "y,neutral", "z,mixed")
    with pytest.raises(
        UsageError, match=r"held_out\.csv:3, .*held_out\.csv:4: column 'label' holds 'neutral', 'mixed', which no train"
    ):
        make(train, held_out)


def test_one_class_is_too_few(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", "text,label", "good,pos", "fine,pos")
    with pytest.raises(UsageError, match=r"every row of 'label' is 'pos'; .* two classes or more"):
        make(source)


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        (
            {"label_column": "stars"},
            {},
            r"no column 'stars' \(columns: 'text', 'label'\); name it with task.label_column",
        ),
        ({}, {"text_column": "body"}, r"no column 'body' \(columns: 'text', 'label'\); name it with data.text_column"),
        ({"text_pair_column": "b"}, {}, r"no column 'b' .*name it with task.text_pair_column"),
        ({"label_column": "text"}, {}, r"data.text_column and task.label_column name the same column, 'text'"),
    ],
)
def test_missing_columns(tmp_path: Path, task: dict, data: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(write_csv(tmp_path / "a.csv", *REVIEWS), task=TaskConfig(**task), **data)


def test_empty_rows_are_counted_and_named(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", *REVIEWS, ",pos", '"  ",neg', "a film,")
    with pytest.raises(UsageError) as raised:
        make(source)
    lines = str(raised.value).splitlines()
    assert lines[0].endswith("a.csv:7: column 'text' holds no text; fill in or remove the row")
    assert lines[1].endswith("a.csv:8: column 'label' holds no text; fill in or remove the row")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    with pytest.raises(UsageError, match=r"a\.csv: is empty"):
        make(str(tmp_path / "a.csv"))
    with pytest.raises(UsageError, match=r"b\.csv: holds no rows"):
        make(write_csv(tmp_path / "b.csv", "text,label"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": None, "label": "a"}, "column 'text' is null"),
        ({"text": 7, "label": "a"}, "column 'text' holds int, not text"),
        ({"text": "x", "label": None}, "column 'label' is null"),
        ({"text": "x", "label": 0.5}, "column 'label' holds 0.5, numbers with a decimal point; a label is text or"),
        ({"text": "x", "label": ["a"]}, "column 'label' holds list, not text"),
        ({"text": "x"}, "no column 'label'"),
    ],
)
def test_values_that_are_no_text(tmp_path: Path, row: dict, message: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", {"text": "good", "label": "b"}, row)
    with pytest.raises(UsageError, match=rf"a\.jsonl:2: .*{message}"):
        make(source)


def test_too_few_texts_to_hold_any_out(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", "text,label", "good,pos", "bad,neg")
    with pytest.raises(UsageError, match=r"none can be held out; give data\.held_out_source"):
        make(source)
    with pytest.raises(UsageError, match=r"data\.held_out_fraction: got 1\.5"):
        make(source, held_out_fraction=1.5)


def test_plain_text_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"a\.txt: plain text has no columns, so none named 'label'"):
        make(str(tmp_path / "a.txt"))
