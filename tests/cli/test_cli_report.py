"""What a run says of its data and of itself: the manifest and the page."""

import html
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from command_line import Cli
from safetensors.torch import load_file

from attnkit.data.source_files import file_hash
from attnkit.errors import UsageError
from attnkit.recipes.manifest import check_same_files
from attnkit.recipes.report import table

TRAINING = ("--training.max_steps", "2", "--training.warmup_steps", "1")


class Reader(HTMLParser):
    """The text of a page, and whatever it would load from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.outside = "", [], []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        links = [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.outside += [link[:40] for link in links if not link.startswith("data:image/png;base64,")]


def check_page(folder: Path) -> Reader:
    page = Reader((folder / "report.html").read_text())
    assert page.outside == []
    assert not {"script", "link", "iframe"}.intersection(page.tags)
    assert "url(" not in page.text
    assert (folder / "config.yaml").read_text() in page.text
    summary = json.loads((folder / "summary.json").read_text())
    assert f"{summary['parameters']:,}" in page.text
    return page


def test_the_page_holds_all_of_a_pretrained_run(finished: Path) -> None:
    page = check_page(finished)
    assert page.tags.count("img") == 1
    for word in ("bits/byte", "nats/token", "packages.torch", "files.0.hash", " ▸ ", "Pretrained by attnkit"):
        assert word in page.text


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_run_that_stops_early_says_so_and_whose_model_is_saved(
    verb: str, cli: Cli, config: Path, finished: Path, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": f"{w} {n}", "label": w}) for n in range(20) for w in ("cat", "dog")]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    words = {
        "pretrain": ("--config", config),
        "finetune": ("--model.path", finished, "--data.source", tmp_path / "labels.jsonl", *TRAINING),
    }[verb]
    folder, stops = tmp_path / "run", ("--training.max_steps=40", "--training.eval_steps=1", "--training.patience=2")
    rate = ("--training.learning_rate=9", "--training.max_grad_norm=null", "--training.save_steps=50")
    code, said, errors = cli(verb, *words, *stops, *rate, "--training.output_dir", folder)
    assert (code, errors) == (0, [])
    stopped = json.loads((folder / "summary.json").read_text())["stopped_early"]
    reason = r"at step (\d+) of 40, as 2 evaluations in a row brought no better loss than that of step (\d+)"
    found = re.fullmatch(rf"{reason}; the saved model is that of step (\d+)", stopped)
    assert found is not None
    step, best, saved = map(int, found.groups())
    assert (step, saved) == (best + 2, best)
    assert any(re.fullmatch(f"stopped {reason}", line) for line in said)  # while it runs, and then in the summary
    assert any(re.fullmatch(f"stopped +{re.escape(stopped)}", line) for line in said)
    assert stopped in check_page(folder).text
    assert f"| stopped_early | {stopped} |" in (folder / "model" / "README.md").read_text()
    model, *checkpoints = [
        load_file(folder / path / "model.safetensors")
        for path in ("model", f"checkpoints/step-{best:06}", f"checkpoints/step-{step:06}")
    ]
    same = [all(torch.equal(model[name], weights[name]) for name in model) for weights in checkpoints]
    assert same == [True, False]


def test_what_is_said_on_the_page_is_text_and_no_tag() -> None:
    nasty = '</pre><script>alert("1")</script>&amp;'
    page = Reader(table({nasty: nasty, "rows": [{"a": nasty}], "nothing": None}))
    assert set(page.tags) == {"table", "tr", "td"}
    assert page.text.count(nasty) == 3
    assert html.escape(nasty) != nasty
    assert "nothing" not in page.text


def test_the_page_of_a_fine_tuned_run_and_its_manifest(cli: Cli, tmp_path: Path, finished: Path) -> None:
    lines = [json.dumps({"text": f"{w} {n} <b>&", "label": w}) for n in range(20) for w in ("cat", "dog")]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    words = ("--model.path", finished, "--data.source", tmp_path / "labels.jsonl", "--data.sequence_length", "16")
    folder = tmp_path / "run"
    code, _, errors = cli("finetune", *words, "--training.output_dir", folder, *TRAINING)
    assert (code, errors) == (0, [])
    page = check_page(folder)
    assert page.tags.count("img") == 2
    assert "Fine-tuned by attnkit" in page.text
    manifest = json.loads((folder / "data_manifest.json").read_text())
    [file] = manifest["files"]
    assert (file["path"], file["hash"]) == (str(tmp_path / "labels.jsonl"), file_hash(tmp_path / "labels.jsonl"))
    assert manifest["train"]["examples"] + manifest["held_out"]["examples"] == 40
    assert manifest["train"]["dropped"] == 0


def test_the_manifest_names_each_file_and_counts_each_token(finished: Path, text: Path) -> None:
    manifest = json.loads((finished / "data_manifest.json").read_text())
    [file] = manifest["files"]
    assert file == {
        "path": str(text),
        "bytes": text.stat().st_size,
        "modified": text.stat().st_mtime_ns,
        "hash": file_hash(text),
    }
    summary = json.loads((finished / "summary.json").read_text())
    assert manifest["train"] == summary["text"]
    [source] = manifest["train"]["sources"].values()
    assert source["tokens"] - source["dropped_tokens"] + source["padding_tokens"] == source["rows"] * 24
    assert manifest["train"]["documents"] + manifest["held_out"]["documents"] == 300
    size = manifest["train"]["bytes"] + manifest["held_out"]["bytes"]
    assert size == len(text.read_bytes()) - 299 * len("\n\n")


def test_a_streamed_run_counts_what_it_read(
    cli: Cli, config: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.data.rows.PORTION", 300)  # characters: each step reads on into other portions
    (tmp_path / "other.txt").write_text("Another cat sees another dog.\n\nIt runs away.")
    folder = tmp_path / "run"
    words = ("--data.streaming", "true", "--data.held_out_source", tmp_path / "other.txt", *TRAINING)
    words += ("--data.shuffle_buffer", "2")
    code, _, errors = cli("pretrain", "--config", config, *words, "--training.output_dir", folder)
    assert (code, errors) == (0, [])
    manifest = json.loads((folder / "data_manifest.json").read_text())
    assert [file["hash"] for file in manifest["files"]] == [None, None]
    assert manifest["train"]["rows"] >= 8
    assert manifest["held_out"]["documents"] == 2
    counted = json.loads((folder / "summary.json").read_text())["text"]
    (folder / "summary.json").unlink()
    assert cli("pretrain", "--config", config, *words, "--training.output_dir", folder, "--resume")[0] == 0
    assert json.loads((folder / "summary.json").read_text())["text"] == counted
    assert json.loads((folder / "data_manifest.json").read_text()) == manifest


def test_a_run_does_not_go_on_with_other_text(cli: Cli, config: Path, text: Path, tmp_path: Path) -> None:
    own = tmp_path / "text.txt"
    own.write_bytes(text.read_bytes())
    words = ("pretrain", "--config", config, "--data.source", own, "--training.output_dir", tmp_path / "run")
    assert cli(*words, *TRAINING)[0] == 0
    os.utime(own)  # touched, and still the same
    code, said, _ = cli(*words, "--training.max_steps", "3", "--training.weight_decay", "0.5", "--resume")
    assert code == 0
    assert "training.weight_decay was 0.1 and is 0.5" in "\n".join(said)
    written = {path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert max(written) == (tmp_path / "run" / "summary.json").stat().st_mtime_ns
    before = (tmp_path / "run" / "log.jsonl").read_bytes()
    own.write_bytes(text.read_bytes().replace(b"cat", b"cow"))
    code, _, [error] = cli(*words, "--training.max_steps", "4", "--resume")
    assert code == 2
    assert f"training.resume: {own} has changed since {tmp_path / 'run'} was begun: put the old text back" in error
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == before


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "data_manifest.json").write_text("[]")
    with pytest.raises(UsageError, match=r"data_manifest\.json: holds list and no mapping"):
        check_same_files(tmp_path, setting="training.resume", otherwise="start a new run")
