"""Streamed rows: the same from wherever they are read, all of the text in each epoch, in another order each time."""

from collections import Counter
from pathlib import Path

import pytest
from file_writers import write
from invented_text import sentences
from matching_models import make_objective, make_tokenizer
from transformers import PreTrainedTokenizerFast

from attnkit.data import Documents, PretrainDataConfig
from attnkit.data.streaming import StreamedRows
from attnkit.errors import UsageError
from attnkit.training.order import RowOrder, count_rows, take

FILES, LINES = 6, 4


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(sequence_length=30)


def stream(folder: Path, tokenizer: PreTrainedTokenizerFast, **settings: object) -> StreamedRows:
    """Rows of one document each, from several files of a few lines."""
    texts = list(dict.fromkeys(sentences(3 * FILES * LINES)))
    for number in range(FILES):
        lines = [text.strip() for text in texts[number * LINES : (number + 1) * LINES]]
        write(folder / f"{number}.txt", "\n".join(lines).encode())
    held_out = write(folder / "held_out.csv", b"text\nsomething else\n")
    data = PretrainDataConfig(
        **{
            "source": f"{folder}/*.txt",
            "documents": "line",
            "held_out_source": held_out,
            "packing": "one_document",
            "sequence_length": 200,
            "streaming": True,
            "shuffle_buffer": 4,
            **settings,
        }
    )
    return StreamedRows(Documents(data), tokenizer, objective=make_objective("causal", tokenizer, data=data))


def read(rows: StreamedRows, start: int, stop: int) -> list[tuple[int, ...]]:
    return [tuple(row["input_ids"]) for row in take(rows, list(range(start, stop)))]


def test_every_epoch_has_all_rows_in_another_order(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows, number = stream(tmp_path, tokenizer), FILES * LINES
    first, second = read(rows, 0, number), read(rows, number, 2 * number)
    assert len(set(first)) == number
    assert Counter(first) == Counter(second)
    assert first != second
    assert rows.account.documents == 2 * number
    assert Counter(read(stream(tmp_path, tokenizer, shuffle_buffer=1), 0, number)) == Counter(first)


@pytest.mark.parametrize("position", [1, 3, 4, 5, 19, 23, 24, 25, 40])
def test_rows_go_on_from_any_position(position: int, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    whole = read(stream(tmp_path, tokenizer), 0, 60)
    again = stream(tmp_path, tokenizer)
    assert read(again, position, 60) == whole[position:]
    assert read(again, 2, 9) == whole[2:9]  # back to before
    assert read(stream(tmp_path, tokenizer, seed=1), 0, 60) != whole


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_processes_share_the_batches_of_one(
    num_processes: int, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    whole, batches = read(stream(tmp_path, tokenizer), 0, 24), {}
    for process in range(num_processes):
        rows = stream(tmp_path, tokenizer)
        order = RowOrder(count_rows(rows), seed=0, batch_size=2, num_processes=num_processes, process=process)
        for (position, indices), _ in zip(order, range(12 // num_processes), strict=False):
            batches[position] = [tuple(row["input_ids"]) for row in take(rows, indices)]
    assert [row for position in sorted(batches) for row in batches[position]] == whole
    assert count_rows(rows) is None


def test_text_that_is_held_out_is_not_streamed(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = stream(tmp_path, tokenizer)
    text = tokenizer.decode(read(rows, 0, 1)[0], skip_special_tokens=True)
    held_out = write(tmp_path / "held_out.txt.csv", f'text\n"{text}"\n'.encode())
    others = read(stream(tmp_path, tokenizer, held_out_source=held_out), 0, 2 * (FILES * LINES - 1))
    assert Counter(others) == Counter(2 * [row for row in read(rows, 0, FILES * LINES) if row != read(rows, 0, 1)[0]])


def test_what_cannot_be_streamed_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    for match, settings in {
        "data.streaming: the text is read while .* set data.held_out_source": {"held_out_source": None},
        "data.streaming: prepared rows are in no need of it": {"prepared": "x"},
        "data.streaming: one source is streamed, and no mix": {"source": [{"source": "a"}]},
        "data.shuffle_buffer: 0 must be 1 or more": {"shuffle_buffer": 0},
    }.items():
        data = PretrainDataConfig(**{"streaming": True, "held_out_source": "b", **settings})
        assert len(data.problems()) == 1
        with pytest.raises(UsageError, match=match):
            make_objective("causal", tokenizer, data=data)
    assert not PretrainDataConfig().problems()
