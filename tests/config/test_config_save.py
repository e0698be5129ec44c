"""The saved form of a run, and the help: every key with its meaning."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import attnkit
from attnkit.cli import VERBS
from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.help import help_text
from attnkit.config.load import load
from attnkit.config.runs import ModelConfig, PretrainRun, TokenizerRun, keys_of
from attnkit.config.save import save, to_text
from attnkit.config.source import read_settings
from attnkit.errors import UsageError
from attnkit.files import strict_yaml
from attnkit.files.saved import run_folder
from attnkit.models.foreign import FORMATS
from attnkit.training.settings import TrainingConfig

RUNS = [PretrainRun, FinetuneRun, TokenizerRun]
OF_VERBS = [vars(import_module(verb.run[0]))[verb.run[1]] for verb in VERBS.values()]
FAMILIES = {"model.scorer": "scorers", "model.normalizer": "normalizers", "model.pattern": "patterns"}
FAMILIES |= {"model.position": "positions", "objective.name": "objectives", "task.name": "tasks"}


@pytest.mark.parametrize("run_class", RUNS)
def test_a_saved_run_has_every_key_and_is_read_back(run_class: type, tmp_path: Path) -> None:
    run = load(run_class, ["--data.source", "[no, '3', on]", "--data.held_out_fraction", "1e-2"])
    path = tmp_path / "config.yaml"
    path.write_text(to_text(run), encoding="utf-8")
    _, lines = strict_yaml.read(path)
    assert keys_of(run_class).keys() <= lines.keys()
    assert load(run_class, ["--config", str(path)]) == run


def test_a_saved_run_neither_deletes_nor_continues(tmp_path: Path) -> None:
    run = PretrainRun(training=TrainingConfig(overwrite=True, seed=3))
    path = save(run, tmp_path)
    assert load(PretrainRun, ["--config", str(path)]).training == replace(run.training, overwrite=False)


def test_imports_of_a_saved_run_do_not_depend_on_its_folder(tmp_path: Path) -> None:
    (tmp_path / "my_import.py").write_text("")
    (tmp_path / "first.yaml").write_text("imports: [my_import.py]\n")
    run = load(PretrainRun, ["--config", str(tmp_path / "first.yaml")])
    (tmp_path / "run").mkdir()
    assert load(PretrainRun, ["--config", str(save(run, tmp_path / "run"))]) == run


def test_each_documented_key_stands_beneath_its_meaning() -> None:
    text = to_text(PretrainRun())
    assert "\n  # Peak learning rate.\n  learning_rate: 0.001\n" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_saved_run_is_found_from_its_model_and_its_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo"
    for folder in (run / "model", run / "checkpoints" / "step-000100"):
        folder.mkdir(parents=True)
    assert run_folder(run) is None
    save(PretrainRun(model=ModelConfig(scorer="dot")), run)
    for folder in (run, run / "model", run / "checkpoints" / "step-000100"):
        assert run_folder(folder) == run
    (run / "checkpoints" / "last").symlink_to("step-000100")
    assert run_folder(run / "checkpoints" / "last") == run
    for folder in (tmp_path, run / "tokenizer", run / "model" / "deeper"):
        assert run_folder(folder) is None
    (run / "config.json").write_text("{}")  # a model whose author keeps a config.yaml of some other kind beside it
    assert run_folder(run) is None


@pytest.mark.parametrize("run_class", OF_VERBS)
def test_help_lists_every_key(run_class: type) -> None:
    text = help_text(run_class.__module__, run_class.__qualname__, usage="attnkit verb", topic="all")
    listed = re.findall(r"^  --([\w.]+)  \(", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(keys_of(run_class))


@pytest.mark.parametrize("run_class", OF_VERBS)
def test_help_says_what_every_key_means(run_class: type) -> None:
    run = read_settings(run_class.__module__, run_class.__qualname__)
    silent = [name for name, setting in run.fields.items() if not setting.doc]
    for section, settings in run.sections.items():
        silent += [f"{section}.{name}" for name, setting in settings.fields.items() if not setting.doc]
    assert not silent


@pytest.mark.parametrize(("key", "family"), FAMILIES.items(), ids=list(FAMILIES))
def test_help_names_the_parts_of_a_registry(key: str, family: str) -> None:
    run_class = FinetuneRun if key == "task.name" else PretrainRun
    text = help_text(run_class.__module__, run_class.__qualname__, usage="attnkit verb", topic="all")
    said = re.search(rf"^  --{re.escape(key)}  \(.*\n((?: {{8}}.*\n)+)", text, flags=re.MULTILINE)[1]
    own = {
        name for name in getattr(attnkit, family) if getattr(attnkit, family)[name].__module__.startswith("attnkit.")
    }
    assert own
    assert own <= set(re.findall(r"\w+", said))


def test_help_gives_type_default_and_meaning() -> None:
    text = help_text("attnkit.config.runs", "PretrainRun", usage="attnkit pretrain", topic="all")
    assert "\n  --training.learning_rate  (number = 0.001)\n        Peak learning rate.\n" in text
    assert "\n  --model.scorer  (text = scaled_dot)\n        How a query scores a key" in text
    assert "\n  --model.head_dim  (int or null = null)\n" in text
    assert "\n  --data.source  (text or list of text or mapping = python-docs)\n" in text
    assert "\n  --imports  (list of text = [])\n" in text
    assert "  --training.schedule  (cosine or linear" in text


@pytest.mark.parametrize("run_class", OF_VERBS)
def test_help_without_a_topic_is_short_and_names_every_key(run_class: type) -> None:
    text = help_text(run_class.__module__, run_class.__qualname__, usage="attnkit verb")
    assert len(text.splitlines()) <= 70
    assert {name.rpartition(".")[2] for name in keys_of(run_class)} <= set(re.findall(r"\w+", text))


@pytest.mark.parametrize("topic", ["training", "training.transfer", "imports"])
def test_help_on_a_topic(topic: str) -> None:
    text = help_text("attnkit.config.runs", "PretrainRun", usage="attnkit pretrain", topic=topic)
    listed = re.findall(r"^  --([\w.]+)  \(", text, flags=re.MULTILINE)
    assert listed == [name for name in keys_of(PretrainRun) if name == topic or name.startswith(f"{topic}.")]


def test_help_on_what_is_no_topic() -> None:
    for topic, said in {"trainin": "did you mean 'training'", "model.scorr": "did you mean 'model.scorer'"}.items():
        with pytest.raises(UsageError, match=f"--help {topic}: no such section or key: {said}"):
            help_text("attnkit.config.runs", "PretrainRun", usage="attnkit pretrain", topic=topic)


def test_help_says_what_a_named_type_may_be_and_the_formats() -> None:
    text = help_text("attnkit.config.runs", "PretrainRun", usage="attnkit pretrain", topic="training.transfer")
    assert "(mup or depth-mup or completep or null = null)" in text
    for name in ("ImportRun", "ExportRun"):
        text = help_text("attnkit.recipes.exchange", name, usage="attnkit verb")
        assert FORMATS.keys() <= set(re.findall(r"\w+", text))
