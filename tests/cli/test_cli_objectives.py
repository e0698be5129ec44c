"""Every objective through the command line: a matching tiny model is trained, saved, loaded and evaluated."""

import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from command_line import Cli, sentences
from transformers import AutoModelForCausalLM

from attnkit.data.objectives import ObjectiveConfig, objectives
from attnkit.data.packing import packings
from attnkit.data.sources import PretrainDataConfig
from attnkit.training.settings import Optimizer, Schedule

FLAGS = {
    "permuted": ["--model.two_stream", "true", "--model.position", "transformer_xl"],
    "next_sentence": ["--model.pooler", "true", "--model.type_vocab_size", "2"],
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    texts = sentences(200, seed=1)
    rows = [{"text": text, "target": text.upper()} for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", objectives)
def test_a_model_is_trained_for_every_objective(name: str, config: Path, pairs: Path, tmp_path: Path, cli: Cli) -> None:
    run = tmp_path / "run"
    arguments = ["--config", config, "--training.output_dir", run, "--objective.name", name, "--data.source", pairs]
    arguments += ["--model.architecture", objectives[name].architectures[0], *FLAGS.get(name, [])]
    code, said, errors = cli("pretrain", *arguments, "--training.max_steps", "2", "--training.save_steps", "2")
    assert (code, errors) == (0, [])
    summary = json.loads((run / "summary.json").read_text())
    assert summary["text"]["rows"] > 0
    assert any("documents" in line and "rows" in line for line in said)
    code, said, _ = cli("evaluate", run)
    assert code == 0
    assert f"{summary['held_out']['loss']:.3f} nats" in said[1]
    code, said, errors = cli("generate", run, "--prompt", "The cat", "--max_new_tokens", "5", "--temperature", "0")
    if objectives[name].architectures[0] == "encoder":
        assert (code, len(errors)) == (2, 1)
        assert errors[0].endswith(f"model {run}: an encoder writes nothing; `attnkit evaluate {run}` says its loss")
    else:
        assert (code, errors) == (0, [])
        assert " ".join(said).startswith("The cat") == (objectives[name].architectures[0] == "decoder")


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("permuted", [], "set two_stream true"),
        ("next_sentence", [], "set pooler true"),
        ("next_sentence", ["--model.pooler=true"], "model.type_vocab_size: 0 is too small"),
        (
            "sequence_to_sequence",
            ["--objective.target_column=en"],
            "has no column 'en' .*name it with objective.target",
        ),
        ("denoising", ["--data.document_mask=true"], "data.document_mask: objective.name 'denoising' keeps no row"),
        ("denoising", ["--tokenizer.path={tokenizer}"], "'denoising' needs 1 sentinels .* lacks <extra_id_0>"),
        ("causal", ["--data.packing=best"], "unknown packing 'best': did you mean 'best_fit'"),
        ("causal", ["--objective.mask_rate=2"], "objective.mask_rate: got 2.0; it has to lie above 0"),
    ],
)
def test_what_an_objective_lacks_is_said_before_anything_is_written(
    name: str, flags: list[str], message: str, config: Path, pairs: Path, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    flags = [flag.format(tokenizer=finished / "tokenizer") for flag in flags]
    architecture = objectives[name].architectures[0]
    code, _, errors = cli(
        *("pretrain", "--config", config, "--training.output_dir", tmp_path / "run", "--objective.name", name),
        *("--data.source", pairs, "--model.architecture", architecture, *flags),
    )
    assert (code, len(errors)) == (2, 1)
    assert re.search(message, errors[0])
    assert not (tmp_path / "run").exists()


def test_held_out_text_without_a_row_names_its_setting(config: Path, text: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "held.txt").write_text("a")
    flags = ["--config", config, "--objective.name=next_sentence", "--model.architecture=encoder"]
    flags += [*FLAGS["next_sentence"], "--data.held_out_source", tmp_path / "held.txt"]
    for way in (["pretrain"], ["prepare", "--data.prepared", tmp_path / "rows"], ["pretrain", "--data.streaming=true"]):
        code, _, errors = cli(way[0], *flags, *way[1:], "--training.output_dir", tmp_path / "run")
        assert (code, len(errors)) == (2, 1)
        assert "data.held_out_source: the documents held out make no row to evaluate on" in errors[0]


def test_a_mix_of_sources_is_counted_source_by_source(
    config: Path, text: Path, pairs: Path, tmp_path: Path, cli: Cli
) -> None:
    mixed = tmp_path / "mix.yaml"
    mixed.write_text(f"data:\n  source:\n    - {{source: {text}, weight: 1}}\n    - {{source: {pairs}, weight: 3}}\n")
    run = tmp_path / "run"
    arguments = ("--config", config, "--config", mixed, "--training.output_dir", run, "--training.max_steps", "2")
    code, said, errors = cli("pretrain", *arguments, "--data.packing", "best_fit", "--data.document_mask", "true")
    assert (code, errors) == (0, [])
    sources = json.loads((run / "summary.json").read_text())["text"]["sources"]
    first, second = (sources[str(path)] for path in (text, pairs))
    assert second["rows"] * second["repeats"] == pytest.approx(3 * first["rows"] * first["repeats"], rel=0.05)
    assert min(first["repeats"], second["repeats"]) == 1
    assert any(f"{pairs}: " in line for line in said)
    assert any("times per epoch" in line for line in said)
    flag = f"[{{source: {text}, weight: 1}}, {pairs}]"
    code, _, errors = cli("pretrain", *arguments, "--overwrite", "--data.source", flag)
    assert (code, len(errors)) == (2, 1)
    assert "data.source: only some entries have a weight" in errors[0]


def test_a_streamed_run_is_resumed_with_the_next_row(
    config: Path, text: Path, pairs: Path, tmp_path: Path, cli: Cli
) -> None:
    mixed = f"[{{source: {text}, weight: 3}}, {{source: {pairs}, weight: 1, text_column: target}}]"
    common = ("pretrain", "--config", config, "--data.streaming", "true", "--data.held_out_source", pairs)
    common = (*common, "--data.source", mixed)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    code, said, _ = cli(*common, "--training.output_dir", whole)
    assert code == 0
    assert any(re.search(r"rows, 24 of them trained on \(.*duplicates not counted\)", line) for line in said)
    assert any(re.search(rf"{text}: .* rows, 18 of them trained on", line) for line in said)
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "model")
    shutil.rmtree(cut / "checkpoints" / "step-000006")
    code, _, errors = cli(*common, "--training.output_dir", cut, "--resume")
    assert (code, errors) == (0, [])
    models = [AutoModelForCausalLM.from_pretrained(run / "model").state_dict() for run in (whole, cut)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    manifests = [json.loads((run / "data_manifest.json").read_text()) for run in (whole, cut)]
    assert manifests[0]["train"] == manifests[1]["train"]
    assert all(source["tokens"] > 0 for source in manifests[0]["train"]["sources"].values())
    assert [source["trained_rows"] for source in manifests[0]["train"]["sources"].values()] == [18, 6]
    assert (manifests[0]["train"]["trained_rows"], manifests[0]["train"]["duplicates"]) == (24, None)
    code, _, errors = cli(
        "pretrain", "--config", config, "--data.streaming", "true", "--training.output_dir", tmp_path / "no"
    )
    assert (code, len(errors)) == (2, 1)
    assert "data.streaming: the text is read while the run goes on" in errors[0]


def test_a_stream_does_not_end_by_a_default(text: Path, pairs: Path, tmp_path: Path, cli: Cli) -> None:
    code, _, errors = cli(
        *("pretrain", "--data.source", text, "--data.streaming", "true", "--data.held_out_source", pairs),
        *("--training.output_dir", tmp_path / "run"),
    )
    assert (code, len(errors)) == (2, 1)
    assert "training.max_steps: rows that are streamed have no end: give --training.max_steps N" in errors[0]
    assert not (tmp_path / "run").exists()


def test_the_page_of_pretraining_names_what_there_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pretraining.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `architecture: ([\w-]+)`", page, flags=re.MULTILINE)
    assert dict(rows) == {name: each.architectures[0] for name, each in objectives.items()}
    denoising = {"objective": ObjectiveConfig(name="denoising"), "data": PretrainDataConfig(sequence_length=64)}
    assert f"({objectives['denoising'].row_length(**denoising)} tokens for one of 64" in page
    for name in (*get_args(Optimizer), *get_args(Schedule), *packings):
        assert f"`{name}`" in page
