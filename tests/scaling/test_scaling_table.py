"""The size table, and every job of `attnkit scale` with its mistakes."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import XLNetConfig, XLNetLMHeadModel

from attnkit import AttnKitConfig
from attnkit.cli import main
from attnkit.errors import UsageError
from attnkit.scaling.cli import JOBS, answer
from attnkit.scaling.memory import textbook_activations
from attnkit.scaling.render import Answer, as_csv, as_latex, as_markdown, draw_table, for_people, grid, legend
from attnkit.scaling.rows import ROWS, config_of
from attnkit.scaling.states import static_bytes
from attnkit.scaling.subject import read_subject
from attnkit.scaling.table import Line, counts_agree, size_table, xlnet_work
from attnkit.scaling.trace import Setting

SIZES = Path(__file__).parents[2] / "configs" / "sizes"

# What the sources of each row add up to, as the rows of the file cite them; empty where nothing was published.
with Path(__file__).with_name("size_table.csv").open(encoding="utf-8", newline="") as file:
    FIGURES = {figures["model"]: figures for figures in csv.DictReader(file)}

# How the figures are rounded there.
ROUNDED = {
    "error": "+.4%",
    "tokens": ".0f",
    "flops_6nd": ".4e",
    "flops_exact": ".4e",
    "flops_causal_useful": ".4e",
    "flops_hardware": ".4e",
    "published_flops": ".4e",
    "predicted_hours": ".1f",
    "table_hours": ".1f",
    "implied_mfu": ".4f",
}

# Where a source contradicts itself or another one.
NOTES = {
    "Transformer-Base": "65M and 213M cannot come from one vocabulary",
    "BERT-Large": "335.1M of the body, or the 336.2M",
    "XLNet-Large": "version 2 took 5.5 days at batch 8192",
    "RoBERTa": "the run of 100K steps on 16GB, not that of 500K steps on 160GB",
    "GPT-2": "their early counts were wrong",
    "Megatron-LM": "the trained model has 24",
    "Turing-NLG": "its padded vocabulary was not published",
    "GPT-3": "570GB of filtered text x 499/410",
}


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return size_table(with_memory=False)


def test_every_file_is_a_row_and_every_row_a_file() -> None:
    assert {row.name for row in ROWS} == {path.stem for path in SIZES.glob("*.yaml")}


def test_the_figures(lines: list[Line]) -> None:
    assert [line.model for line in lines] == list(FIGURES)
    for line, row in zip(lines, ROWS, strict=True):
        expected = FIGURES[line.model]
        assert (line.parameters, row.table_parameters) == (
            int(expected["parameters"]),
            float(expected["table_parameters"]),
        )
        for name, form in ROUNDED.items():
            if expected[name]:
                assert format(vars(line)[name], form) == expected[name], (line.model, name)
        assert (line.flops_exact is None) == (not expected["flops_exact"])
        assert NOTES.get(line.model, "") in " ".join(line.notes)


def test_the_memory_of_the_rows() -> None:
    for row in ROWS:
        expected, subject = FIGURES[row.label], read_subject(config_of(row))
        for precision, name in (("mixed", "states_16"), ("mixed_fp32_gradients", "states_18")):
            states = static_bytes(subject, precision=precision, optimizer="adamw", training=True)
            assert format(sum(vars(states).values()) / 2**30, ".2f") == expected[name], row.label
        subject.config.num_attention_heads = int(expected["trained_heads"])  # of Megatron-LM not those of its row
        if not subject.config.is_encoder_decoder:
            kinds = {"kept": ("eager", "none"), "fused": ("sdpa", "none"), "recomputed": ("eager", "full")}
            for name, (backend, recompute) in kinds.items():
                setting = Setting(seq_len=int(expected["seq_len"]), backend=backend, recompute=recompute)
                found = format(textbook_activations(subject, setting) / 2**30, ".3f")
                assert found == expected[f"textbook_{name}"], (row.label, name)


@pytest.mark.parametrize(("tokens", "memory", "targets"), [(12, 0, 3), (10, 6, 4)])
def test_the_row_of_xlnet_is_what_transformers_computes(tokens: int, memory: int, targets: int) -> None:
    model = XLNetLMHeadModel(XLNetConfig(n_layer=3, d_model=32, n_head=2, d_inner=48, vocab_size=60, mem_len=memory))
    inputs = {
        "input_ids": torch.zeros(1, tokens, dtype=torch.long),
        "perm_mask": torch.zeros(1, tokens, tokens),
        "target_mapping": torch.zeros(1, targets, tokens),
        "mems": [torch.zeros(memory, 1, 32) for _ in range(3)] if memory else None,
    }
    with FlopCounterMode(display=False) as counter:
        logits = model.train()(**inputs, use_mems=True).logits
        forward = counter.get_total_flops()
        logits.sum().backward()
    fields = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    config = AttnKitConfig(architecture="encoder", vocab_size=60, **fields)
    work = xlnet_work(config, tokens=tokens, memory=memory, targets=targets)
    assert (work.forward, work.total) == (forward, counter.get_total_flops())


@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "gpt-3"], ids=lambda row: row.name)
def test_formula_and_model_agree(row: object) -> None:
    assert counts_agree(row)


def test_every_format(lines: list[Line], tmp_path: Path) -> None:
    records = json.loads(Answer(figures=lines, text="").written("json"))
    assert [record["parameters"] for record in records] == [line.parameters for line in lines]
    assert [int(record["parameters"]) for record in csv.DictReader(io.StringIO(as_csv(lines)))] == [
        line.parameters for line in lines
    ]
    markdown, latex = (write(lines, mfu=0.3) for write in (as_markdown, as_latex))
    assert "174,604,259,328" in markdown
    assert r"\begin{tabular}" in latex
    assert "$\\sim$340M" in latex
    for text in (markdown, latex.replace("\\%", "%")):
        assert all(said in text for said in legend(0.3))
        assert "cannot come from one vocabulary" in text
    people = for_people(lines, mfu=0.3)
    assert "? 25" in people
    assert max(map(len, people.splitlines())) <= 80
    assert "cannot come from one vocabulary" in people
    draw_table(lines, tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes()[:4] == b"\x89PNG"


def test_names_stand_in_tables_and_pictures_as_they_are(lines: list[Line], tmp_path: Path) -> None:
    name = r"[red]a[/b] :smile: $\foo$"
    assert name in grid(["name", "size"], [[name, "1"]])
    draw_table([replace(lines[0], model=name)], tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes()[:4] == b"\x89PNG"


def test_the_jobs(tmp_path: Path) -> None:
    bert = str(SIZES / "bert-base.yaml")
    assert all(name in answer(["--help"]) for name in JOBS)
    for name in JOBS:
        assert f"usage: attnkit scale {name}" in answer([name, "--help"])
    assert "110,106,428" in answer(["count", bert])
    assert "109,482,240" in answer(["count", bert, "--head", "none"])
    assert "28,500,298,752" in answer(["flops", bert, "--seq_len", "128"])
    assert "textbook" in answer(["memory", bert, "--seq_len", "64", "--device", "V100"])
    assert "25.00%" in answer(["time", "--flops", "1.125e18", "--device", "V100", "--hours", "10"])
    output = tmp_path / "run.yaml"
    tiny = ["--parameters", "2e5", "--tokens", "1e6", "--vocab_size", "400", "--seq_len", "32", "--output", str(output)]
    assert f"attnkit pretrain --config {output}" in answer(["plan", *tiny])
    assert output.is_file()


@pytest.mark.parametrize(
    ("arguments", "figures"),
    [
        (["count", "bert-base"], {"total": 110_106_428, "active": 110_106_428, "body": 109_482_240}),
        (["flops", "bert-base", "--seq_len", "128"], {"forward": 28_500_298_752, "tokens": 128}),
        (["memory", "bert-base", "--seq_len", "8", "--device", "A100"], {}),
        (["time", "--flops", "1e18", "--device", "V100", "--hours", "10"], {"hours": 10, "num_devices": 1}),
        (["plan", "--parameters", "2e5", "--tokens", "1e6", "--vocab_size", "400", "--seq_len", "32"], {"seq_len": 32}),
        (["fit", "docs/scaling-sweep.csv"], {"outliers": []}),
        (["transfer", "gpt-2", "--base_hidden_size", "64", "--base_num_hidden_layers", "4"], {"init_std": 0.2}),
        (["audit"], None),
    ],
)
def test_every_job_answers_in_json(arguments: list[str], figures: dict | None) -> None:
    given = [str(SIZES / f"{it}.yaml") if it in ("bert-base", "gpt-2") else it for it in arguments]
    found = json.loads(answer([*given, "--format", "json"]))
    if figures is None:
        assert {"tool", "theirs", "ours", "ratio", "why"} <= found[0].keys()
    else:
        assert figures.items() <= found.items()
    if arguments[0] == "memory":
        assert sum(found["estimate"]["at_peak"].values()) == found["estimate"]["peak"]
        assert found["assumptions"]["layout"]["devices"] == 1
        assert found["fewest_devices"]["zero3"] == 1


def test_what_is_not_finite_is_null() -> None:
    answer = Answer(figures={"a": [float("inf"), float("nan"), 1.5]}, text="")
    assert json.loads(answer.written("json")) == {"a": [None, None, 1.5]}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tabel"], "unknown job 'tabel' of scale: did you mean 'table'"),
        (["table", "--format", "jason"], "unknown format 'jason': did you mean 'json'"),
        (["count", "nowhere.yaml", "--format", "csv"], "unknown format 'csv': "),
        (["count"], "scale count: the following arguments are required: CONFIG"),
        (["count", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["time", "--flops", "1e20", "--device", "H10", "--mfu", "0.3"], "unknown device 'H10'"),
        (["time", "--flops", "many", "--device", "H100"], "argument --flops: invalid float value: 'many'"),
        (["table", "--png", "no/such/folder.png"], "cannot be written"),
        (["fit", "docs/scaling-sweep.csv", "--png", "no/such/folder.png"], "cannot be written"),
        (
            ["fit", "nowhere", "--parameters", "inf", "--tokens", "1"],
            "parameters and tokens must be more than 0 and finite",
        ),
        (["plan", "--budget", "8xH100 24h", "--output", "no/such/folder.yaml"], "cannot be written"),
        (["fit", "nowhere", "--parameters", "3"], "give both --parameters and --tokens"),
    ],
)
def test_mistakes(arguments: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        answer(arguments)
    assert "\n" not in str(caught.value)


DOCUMENTED = [
    line.split("#")[0].split()[2:]
    for line in (SIZES.parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("attnkit scale") and "runs/" not in line  # a run of one's own
]
SLOW = ("table", "plan", "calibrate", "audit", "fit")


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[pytest.mark.slow] if words[0] in SLOW else [], id=words[0]) for words in DOCUMENTED],
)
def test_the_commands_of_the_documentation(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SIZES.parents[1])
    text = " ".join(words).replace("run.yaml", str(tmp_path / "run.yaml")).replace('"8xH100 24h"', "8xH100_24h")
    assert answer([word.replace("_24h", " 24h") for word in text.split()])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["table", "--png", ""], "'' names no file: give one that ends in .png"),
        (["plan", "--flops", "1e12", "--output", "/"], "'/' names no file: give one that ends in .yaml"),
        (["table", "--png", "it.foo"], "it.foo: has no ending .png: name it it.png"),
        (["plan", "--flops", "1e12", "--output", "it.txt"], "it.txt: has no ending .yaml: name it it.yaml"),
        (
            ["time", "--flops", "1e20", "--device", "A100", "--mfu", "0.4", "--hours", "1"],
            "give --mfu or --hours, not both",
        ),
        (["count", "a\nb"], "a word holds a line break: take it out"),
        (
            ["time", "--flops", "1e20", "--device", "A100", "--hours", "0"],
            "hours must be more than 0 and finite, not 0",
        ),
        (["flops", str(SIZES / "gpt-2.yaml"), "--target_len", "5"], "target_len 5: this model has one stack"),
    ],
)
def test_what_a_job_refuses(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", *arguments]) == 2
    said = capsys.readouterr()
    assert problem in said.err
    assert said.out == ""


def test_memory_and_flops_say_what_they_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    row = str(SIZES / "gpt-2.yaml")
    assert main(["scale", "memory", row, "--device", "A100", "--backend", "sdpa", "--seq_len", "64"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 x 64 tokens, head causal_lm, fp32 precision, backend sdpa, optimizer adamw" in said
    assert "margin, 10% for fragmentation" in said
    assert "runtime, what libraries take 1.00 GiB" in said
    assert main(["scale", "flops", row, "--past", "100", "--seq_len", "1"]) == 0
    assert "FLOPs of a forward pass after 100 tokens in the cache" in capsys.readouterr().out
