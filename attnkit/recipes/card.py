"""The card of a fine-tuned model: what it was made of and how good it is, for whoever finds its folder."""

from pathlib import Path
from typing import Any

from attnkit.training.run_folder import writing


def write_card(folder: Path, summary: dict[str, Any]) -> None:
    """Write `README.md` beside a model, from the summary of its run."""
    started, examples = summary["started_from"] or "random weights", summary["examples"]
    rows = [
        f"| {split.replace('_', '-')} | {name} | {value:.4f} | {interval_of(summary, split, name)} |"
        for split in ("held_out", "test")
        if split in summary
        for name, value in summary[split].items()
    ]
    counts = ", ".join(f"{count:,} {split.replace('_', '-')}" for split, count in examples.items())
    notes = [f"- {split.replace('_', '-')}: {note}" for split, said in summary["notes"].items() for note in said]
    lines = [
        "---",
        "library_name: transformers",
        f"tags: [attnkit, {summary['task']}]",
        "---",
        "",
        f"# {summary['task']}: {summary['predicts']}",
        "",
        f"A {summary['model_type']} of {summary['parameters']:,} parameters, fine-tuned by attnkit from {started}.",
        f"Examples: {counts}. Training: {summary['steps']:,} steps, {summary['tokens_seen']:,} tokens.",
        "",
        "| split | metric | figure | 95% interval |",
        "|---|---|---|---|",
        *rows,
        "",
        *notes,
        "",
        "Loading it takes `import attnkit` first." if summary["model_type"] == "attnkit" else "",
    ]
    with writing(folder):
        (folder / "README.md").write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


def interval_of(summary: dict[str, Any], split: str, name: str) -> str:
    """The interval of a figure, where it has one."""
    low, high = summary["intervals"][split].get(name, (None, None))
    return "" if low is None else f"{low:.4f} – {high:.4f}"
