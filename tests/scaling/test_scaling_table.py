"""The size table, and every job of `attnkit scale` with its mistakes."""

import csv
import io
import json
from pathlib import Path

import pytest

from attnkit.errors import UsageError
from attnkit.scaling.cli import JOBS, answer
from attnkit.scaling.render import FORMATS, draw_table, for_people
from attnkit.scaling.rows import ROWS
from attnkit.scaling.table import Line, counts_agree, size_table

SIZES = Path(__file__).parents[2] / "configs" / "sizes"

# Parameters, FLOPs by 6ND and exact, hours at 30% MFU, MFU of the table's time: what the sources of each row add up to.
FIGURES = {
    "Transformer-Base": (63_045_632, 9.46e17, 9.52e17, 10.4, 0.260),
    "Transformer-Large": (214_171_648, 9.64e18, 9.68e18, 105.7, 0.377),
    "BERT-Base": (110_106_428, 2.81e19, 2.38e19, None, None),
    "BERT-Large": (336_226_108, 8.59e19, 8.16e19, None, None),
    "XLNet-Large": (360_300_800, 1.13e21, 1.84e21, 27.0, 0.135),
    "RoBERTa": (355_412_057, 8.94e20, 8.43e20, 6.1, 0.076),
    "GPT-2": (1_557_611_200, None, None, None, None),
    "Megatron-LM": (8_317_040_640, 7.85e21, 8.27e21, 119.7, 0.166),
    "Turing-NLG": (17_180_859_136, 1.62e22, 1.68e22, 487.5, None),
    "GPT-3": (174_604_259_328, 3.14e23, 3.23e23, None, None),
}


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return size_table(with_memory=False)


def test_every_file_is_a_row_and_every_row_a_file() -> None:
    assert {row.name for row in ROWS} == {path.stem for path in SIZES.glob("*.yaml")}


def test_the_figures(lines: list[Line]) -> None:
    assert [line.model for line in lines] == list(FIGURES)
    for line in lines:
        parameters, *others = FIGURES[line.model]
        assert line.parameters == parameters
        found = (line.flops_6nd, line.flops_exact, line.predicted_hours, line.implied_mfu)
        for value, expected in zip(found, others, strict=True):
            assert value == (None if expected is None else pytest.approx(expected, rel=7e-3)), line.model
    hardware = {line.model: line.flops_hardware for line in lines}
    assert hardware["Megatron-LM"] == pytest.approx(1.098e22, rel=1e-3)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "gpt-3"], ids=lambda row: row.name)
def test_formula_and_model_agree(row: object) -> None:
    assert counts_agree(row)


def test_every_format(lines: list[Line], tmp_path: Path) -> None:
    texts = {name: write(lines) for name, write in FORMATS.items()}
    records = json.loads(texts["json"])
    assert [record["parameters"] for record in records] == [line.parameters for line in lines]
    assert [int(record["parameters"]) for record in csv.DictReader(io.StringIO(texts["csv"]))] == [
        line.parameters for line in lines
    ]
    assert "174,604,259,328" in texts["markdown"]
    assert r"\begin{tabular}" in texts["latex"]
    assert "$\\sim$340M" in texts["latex"]
    people = for_people(lines, mfu=0.3)
    assert "? 25" in people
    assert "cannot come from one vocabulary" in people
    draw_table(lines, tmp_path / "table.png")
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
    ("arguments", "problem"),
    [
        (["tabel"], "unknown job 'tabel' of scale: did you mean 'table'"),
        (["table", "--format", "jason"], "unknown format 'jason': did you mean 'json'"),
        (["count"], "scale count: the following arguments are required: CONFIG"),
        (["count", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["time", "--flops", "1e20", "--device", "H10", "--mfu", "0.3"], "unknown device 'H10'"),
        (["time", "--flops", "many", "--device", "H100"], "argument --flops: invalid float value: 'many'"),
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
