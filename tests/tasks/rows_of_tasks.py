"""Good examples of every task, and files of them."""

import json
from pathlib import Path
from typing import Any


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


TURNS = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "text"}]
GOOD: dict[str, dict[str, Any]] = {
    "classification": {"text": "one text", "label": "x"},
    "multi_label": {"text": "one text", "label": ["x"]},
    "regression": {"text": "one text", "label": 0.5},
    "multiple_choice": {"text": "one text", "choices": ["a", "b"], "label": 1},
    "token_classification": {"text": ["one", "text"], "label": ["O", "B-x"]},
    "question_answering": {"text": "one text", "question": "?", "label": {"text": ["one"], "answer_start": [0]}},
    "sequence_to_sequence": {"text": "one text", "label": "x"},
    "instruction": {"messages": TURNS},
}
OPTIONS = {"instruction": {"messages_column": "messages"}}


def numbered(name: str, number: int) -> dict[str, Any]:
    """A good example of a task, unlike those of other numbers."""
    row = dict(GOOD[name])
    if name == "instruction":
        return {"messages": [{**TURNS[0], "content": f"ask {number}"}, TURNS[1]]}
    row["text"] = ["one", str(number)] if name == "token_classification" else f"one text {number}"
    return row | ({"label": "xy"[number % 2]} if name == "classification" else {})
