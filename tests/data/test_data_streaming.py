"""Streamed rows: the same from wherever they are read, all of the text in each epoch, in another order each time."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_writers import write
from invented_text import sentences
from matching_models import make_objective, make_tokenizer
from transformers import PreTrainedTokenizerFast

from attnkit.data import Documents, ObjectiveConfig, PretrainDataConfig
from attnkit.data import rows as rows_module
from attnkit.data.objectives import objectives
from attnkit.data.packing import packings
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
    assert [account.documents for account in rows.accounts] == [2 * number]
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


def mix(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    *,
    name: str,
    packing: str,
    weights: tuple[float, ...],
    sequence_length: int = 30,
) -> StreamedRows:
    """A stream of several sources, each with words of its own; pairs of texts where the objective wants them."""
    target = objectives[name].target_column(ObjectiveConfig(name=name))
    names = ["text"] if target is None else ["text", target]
    entries = []
    for number, weight in enumerate(weights):
        lines = [f"{number}{turn} {text}".strip() for turn, text in enumerate(sentences(21 + 9 * number, seed=number))]
        table = [",".join(names), *(",".join([f'"{line}"'] * len(names)) for line in lines)]
        path = write(folder / f"{number}.csv", "\n".join(table).encode())
        entries.append({"source": path, "weight": weight})
    held_out = write(folder / "held_out.csv", f"{','.join(names)}\n{','.join(['else'] * len(names))}\n".encode())
    data = PretrainDataConfig(
        source=entries,
        held_out_source=held_out,
        packing=packing,
        sequence_length=sequence_length,
        streaming=True,
        shuffle_buffer=5,
    )
    objective = make_objective(name, tokenizer, data=data)
    return StreamedRows(Documents(data, target_column=target), tokenizer, objective=objective)


def values(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: np.asarray(value).tolist() for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("packing", packings)
@pytest.mark.parametrize("name", objectives)
def test_rows_go_on_from_a_mark_as_if_they_had_not_stopped(
    name: str, packing: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.data.rows.PORTION", 300)  # characters: several portions in each epoch
    rows, whole, marks = mix(tmp_path, tokenizer, name=name, packing=packing, weights=(3, 1.5)), [], []
    for position in range(150):
        rows.mark().save(tmp_path / f"{position}.arrow")
        marks.append(rows.accounts)
        whole += values(take(rows, [position]))
    again = mix(tmp_path, tokenizer, name=name, packing=packing, weights=(3, 1.5))
    for position in (0, 1, 7, 60, 149, 101):
        again.go_to(tmp_path / f"{position}.arrow")
        assert values(take(again, list(range(position, min(150, position + 60))))) == whole[position : position + 60]
        again.go_to(tmp_path / f"{position}.arrow")
        assert values(take(again, [min(149, position + 20)])) == [whole[min(149, position + 20)]]
    for position, accounts in enumerate(marks):
        again.go_to(tmp_path / f"{position}.arrow")
        assert again.accounts == accounts
    take(again, [149])
    assert again.accounts == rows.accounts != marks[90]
    again.go_to(tmp_path / "90.arrow")
    take(again, [149])
    assert again.accounts == rows.accounts


def test_what_stands_before_a_mark_is_not_tokenized_again(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.data.rows.PORTION", 50)
    rows = mix(tmp_path, tokenizer, name="causal", packing="concatenate", weights=(1,))
    take(rows, [3])
    rows.mark().save(tmp_path / "mark")
    before = rows.sources[0].place.documents
    assert before > 2
    portions, met = rows_module.portions, []
    monkeypatch.setattr(rows_module, "portions", lambda documents: (met.append(it) or it for it in portions(documents)))
    rows.go_to(tmp_path / "mark")
    take(rows, [rows.position])
    assert met[0][1][0][0].startswith(f"0{before} ")


def test_sources_have_their_shares_at_every_row(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    weights = (3, 1, 0.5)
    rows = mix(tmp_path, tokenizer, name="causal", packing="one_document", weights=weights, sequence_length=500)
    counts: Counter[str] = Counter()
    for position in range(300):
        [row] = take(rows, [position])
        counts[tokenizer.decode(row["input_ids"])[0]] += 1
        for number, weight in enumerate(weights):
            assert abs(counts[str(number)] - weight / sum(weights) * (position + 1)) <= 1
    assert rows.first(300) == [counts[str(number)] for number in range(3)]
    taken = [account.rows for account in rows.accounts]
    rows.start()
    assert rows.first(300) == [counts[str(number)] for number in range(3)]
    assert all(0 <= made - counts[str(number)] <= 40 for number, made in enumerate(taken))


def test_a_mark_of_other_rows_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    mix(tmp_path, tokenizer, name="causal", packing="best_fit", weights=(1, 2)).mark().save(tmp_path / "mark")
    for match, changes in {
        r"the weights of data.source was \[1, 2\] and is \[1, 3\]": {"packing": "best_fit", "weights": (1, 3)},
        "the kind of rows was BestFit and is OneDocument; set": {"packing": "one_document", "weights": (1, 2)},
    }.items():
        with pytest.raises(UsageError, match=match):
            mix(tmp_path, tokenizer, name="causal", **changes).go_to(tmp_path / "mark")


def test_a_source_without_a_row_is_named(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = mix(tmp_path, tokenizer, name="causal", packing="concatenate", weights=(1, 1e-6))
    (tmp_path / "1.csv").write_text("text\nelse\n")
    with pytest.raises(UsageError, match=r"every document of \S*1.csv is in data.held_out_source"):
        rows.check()


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
        "data.streaming: sources are mixed by their weights .* give a weight to each entry": {
            "source": [{"source": "a"}, "c"]
        },
        "data.shuffle_buffer: 0 must be 1 or more": {"shuffle_buffer": 0},
    }.items():
        data = PretrainDataConfig(**{"streaming": True, "held_out_source": "b", **settings})
        assert len(data.problems()) == 1
        with pytest.raises(UsageError, match=match):
            make_objective("causal", tokenizer, data=data)
    assert not PretrainDataConfig().problems()
