"""From files and flags to a run, and every mistake on the way."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path

import pytest

from attnkit import AttnKitConfig
from attnkit.attention import scorers
from attnkit.cli import VERBS
from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.load import load
from attnkit.config.runs import ModelConfig, PretrainRun, keys_of, may_be_empty
from attnkit.config.values import allows
from attnkit.errors import UsageError
from attnkit.recipes.evaluate import EvaluateRun

Write = Callable[[str], Path]
OF_VERBS = [vars(import_module(module))[name] for module, name in dict.fromkeys(verb.run for verb in VERBS.values())]

SCORER = '''
from attnkit.attention import Scorer, scorers


@scorers.register("{name}")
class Mine(Scorer):
    """score(q, k) = q · k"""
'''


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems_of(*arguments: str | Path) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load(PretrainRun, [str(argument) for argument in arguments])
    return str(caught.value).splitlines()


def test_without_arguments_a_run_has_the_defaults() -> None:
    run = load(PretrainRun, [])
    defaults = PretrainRun()
    assert (run.data, run.training, run.imports) == (defaults.data, defaults.training, [])


def test_flags_win_over_files_and_later_files_over_earlier(write: Write) -> None:
    first = write("training: {max_steps: 1, seed: 1, log_steps: 1}\n", "first.yaml")
    second = write("training: {max_steps: 2, seed: 2}\n", "second.yaml")
    training = load(PretrainRun, ["--training.max_steps=3", "--config", str(first), "--config", str(second)]).training
    assert (training.max_steps, training.seed, training.log_steps) == (3, 2, 1)


def test_the_traps_of_yaml_are_none(write: Write) -> None:
    path = write("training: {learning_rate: 3e-4, output_dir: off}\ndata: {source: no, text_column: on}\n")
    run = load(PretrainRun, ["--config", str(path)])
    assert run.training.learning_rate == 3e-4
    assert (run.training.output_dir, run.data.source, run.data.text_column) == ("off", "no", "on")


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["--training.learning_rate", "3e-4"], "training.learning_rate", 3e-4),
        (["--training.learning_rate", "1"], "training.learning_rate", 1.0),
        (["--training.output_dir", "2024"], "training.output_dir", "2024"),
        (["--training.max_grad_norm", "null"], "training.max_grad_norm", None),
        (["--training.resume", "true"], "training.resume", True),
        (["--training.resume"], "training.resume", True),
        (["--resume", "--training.seed", "3"], "training.resume", True),
        (["--overwrite"], "training.overwrite", True),
        (["--training.overwrite=false"], "training.overwrite", False),
        (["--data.source", "no"], "data.source", "no"),
        (["--data.source", "[a.txt, b.txt]"], "data.source", ["a.txt", "b.txt"]),
        (["--model.eos_token_id", "[1, 2]"], "model.eos_token_id", [1, 2]),
        (["--model.vocab_size", "1_000"], "model.vocab_size", 1000),
        (["--model.scorer_options", "null"], "model.scorer_options", None),
        (['--model.position_options={"base": 100.0}'], "model.position_options", {"base": 100.0}),
        (["--model.position_options.base", "1e2"], "model.position_options", {"base": 100.0}),
        (["--imports", "json"], "imports", ["json"]),
        (["--imports", "json", "--imports+", "ast", "--imports+=[re, abc]"], "imports", ["json", "ast", "re", "abc"]),
    ],
)
def test_flags(arguments: list[str], key: str, value: object) -> None:
    section, _, name = key.rpartition(".")
    run = load(PretrainRun, arguments)
    assert vars(vars(run)[section] if section else run)[name] == value


def test_a_flag_changes_one_option_of_a_mapping(write: Write) -> None:
    path = write("model: {position: none, scorer: static, scorer_options: {form: low_rank, rank: 4}}\n")
    run = load(PretrainRun, ["--config", str(path), "--model.scorer_options.rank", "2"])
    assert run.model.scorer_options == {"form": "low_rank", "rank": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {hiden_size: 3}", r"run\.yaml:1: unknown key 'model\.hiden_size': did you mean 'hidden_size'"),
        ("modle: {}", r"run\.yaml:1: unknown key 'modle': did you mean 'model'.*\(allowed: data, imports, model,"),
        ("learning_rate: 1", r"run\.yaml:1: unknown key 'learning_rate': did you mean 'training\.learning_rate'\?"),
        ("data: {max_steps: 1}", r"unknown key 'data\.max_steps': did you mean 'training\.max_steps'\?"),
        ("training: {log_steps: 1.5}", r"run\.yaml:1: training\.log_steps: expected int, got 1\.5"),
        ("training: {log_steps: 1e3}", r"training\.log_steps: expected int, got 1000\.0"),
        ("training: {log_steps: true}", r"training\.log_steps: expected int, got True"),
        ("training:\n  log_steps:\n", r"run\.yaml:2: training\.log_steps: expected int, got null"),
        ("training: {log_steps: ten}", r"training\.log_steps: expected int, got 'ten'"),
        ("training: {log_steps: {a: 1}}", r"training\.log_steps: expected int, got \{'a': 1\}"),
        ("training: {learning_rate: fast}", r"training\.learning_rate: expected number, got 'fast'"),
        ("training: {learning_rate: .nan}", r"training\.learning_rate: expected a finite number, got nan"),
        ("training: {resume: 1}", r"training\.resume: expected true or false, got 1"),
        ("training: {output_dir: 2024}", r"training\.output_dir: expected text, got 2024"),
        ("training: {schedule: cosin}", r"training\.schedule: unknown name 'cosin': did you mean 'cosine'\?"),
        ("training: {schedule: 3}", r"training\.schedule: expected 'cosine' or .*, got 3"),
        ("data: {source: 3}", r"data\.source: expected text or list of \(text or mapping\), got 3"),
        ("data: {source: [a, 3]}", r"data\.source: expected text or list of \(text or mapping\), got \['a', 3\]"),
        ("model: {scorer_options: 3}", r"model\.scorer_options: expected mapping or null, got 3"),
        ("model: 3", r"run\.yaml:1: model: expected its keys, got 3"),
        ("model: [a]", r"run\.yaml:1: model: expected its keys, got \['a'\]"),
        ("imports: 3", r"imports: expected list of \(text\), got 3"),
        ("model:\n  scorer: gausian", r"run\.yaml:2: model\.scorer: unknown scorer 'gausian': did you mean 'gaussian'"),
        ("model: {position: rop}", r"run\.yaml:1: model\.position: unknown position 'rop': did you mean 'rope'"),
        (
            "model: {scorer: dot, scorer_options: {a: 1}}",
            r"run\.yaml:1: model\.scorer_options: Dot takes no option 'a'",
        ),
        ("model: {hidden_size: 0}", r"run\.yaml:1: model\.hidden_size: .*at least 1"),
        ("model: {architecture: decoderr}", r"model\.architecture: unknown name 'decoderr': did you mean 'decoder'"),
        ("training: {max_steps: -1}", r"run\.yaml:1: training\.max_steps: -1 must be 1 or more"),
        ("training: {log_steps: '3'}", r"run\.yaml:1: training\.log_steps: expected int, got '3'"),
        ("model: {norm_eps: '1'}", r"run\.yaml:1: model\.norm_eps: expected number or null, got '1'"),
        ("model: {eos_token_id: ['1']}", r"run\.yaml:1: model\.eos_token_id: expected int or list of \(int\) or null"),
        (
            "model: {scorer_options: {1: 2}}",
            r"run\.yaml:1: model\.scorer_options: expected mapping or null, got \{1: 2\}",
        ),
        ("model: {layer_scorers: [{1: {}}]}", r"run\.yaml:1: model\.layer_scorers: expected list of"),
        ("model: {hidden_size: 33}", r"run\.yaml:1: model\.hidden_size: 33 is no multiple of num_attention_heads 4"),
        (
            "model: {hidden_dropout: 1}",
            r"run\.yaml:1: model\.hidden_dropout: must be at least 0 and less than 1, not 1\.0$",
        ),
        ('data: {text_column: "a\\0b"}', r"run\.yaml:1: data\.text_column: 'a\\x00b' holds a null character"),
        ("training: {output_dir: ''}", r"run\.yaml:1: training\.output_dir: is empty: give a value, or leave"),
        ("training: {seed: -1}", r"run\.yaml:1: training\.seed: -1 must be at least 0 and at most 4294967295"),
        (
            "training: {seed: 9223372036854775808}",
            r"run\.yaml:1: training\.seed: 9223372036854775808 must be at least 0",
        ),
        ("data: {seed: -1}", r"run\.yaml:1: data\.seed: -1 must be at least 0 and at most 4294967295"),
        ("data: {seed: 4294967296}", r"run\.yaml:1: data\.seed: 4294967296 must be at least 0 and at most"),
        ("tracking: {trackers: [wandbo]}", r"run\.yaml:1: tracking\.trackers: unknown tracker 'wandbo'"),
    ],
)
def test_mistakes_in_a_file_name_its_line_and_key(write: Write, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(PretrainRun, ["--config", str(write(text))])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/demo"], r"command line: 'runs/demo' belongs to no flag: write --section\.key value"),
        (["--training.max_steps"], r"command line: --training\.max_steps needs a value"),
        (["--training.max_steps", "--resume"], r"command line: --training\.max_steps needs a value"),
        (["--training.log_steps", "x"], r"command line: training\.log_steps: expected int, got 'x'"),
        (["--training.max_stps", "3"], r"command line: unknown key 'training\.max_stps': did you mean 'max_steps'"),
        (["--max_steps", "3"], r"command line: unknown key 'max_steps': did you mean 'training\.max_steps'"),
        (["--trainig.seed", "3"], r"command line: unknown section 'trainig': did you mean 'training'"),
        (["--training", "3"], r"command line: --training is a section: give its keys, --training\.key value"),
        (
            ["--model.layer_scorers", "3"],
            r"model\.layer_scorers: expected list of \(text or mapping\) or null, got \[3\]",
        ),
        (["--model.scorer", "gausian"], r"command line: model\.scorer: unknown scorer 'gausian'"),
        (["--config", "none.yaml"], r"none\.yaml: no such file"),
        (["--resume", "--overwrite"], r"training\.resume.*training\.overwrite exclude each other"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(PretrainRun, arguments)


TEXTS = [
    (run_class, name)
    for run_class in OF_VERBS
    for name, hint in keys_of(run_class).items()
    if allows(hint, str) and name not in may_be_empty(run_class)
]


def words_of(run_class: type) -> list[str]:
    """What has to be given of a run."""
    return [f"--{it.name}=x" for it in fields(run_class) if it.default is MISSING and it.default_factory is MISSING]


@pytest.mark.parametrize("run_class", OF_VERBS)
def test_no_text_is_empty_but_where_that_is_the_default(run_class: type) -> None:
    empty = [name for of, name in TEXTS if of is run_class]
    with pytest.raises(UsageError) as caught:
        load(run_class, [*words_of(run_class), *(f"--{name}= " for name in empty)])
    said = [f"command line: {name}: is empty: give a value, or leave it out" for name in empty]
    assert str(caught.value).splitlines()[: len(said)] == said


def test_no_number_is_beyond_all_measure() -> None:
    for name, hint in keys_of(PretrainRun).items():
        if allows(hint, int) or allows(hint, float):
            number = "1e300" if allows(hint, float) else str(10**23)
            with pytest.raises(UsageError, match=f"command line: {name}: "):
                load(PretrainRun, [f"--{name}={number}"])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("training.max_steps", 10**10, "must be at most 1000000000"),
        ("training.per_device_batch_size", 10**7, "must be 1 or more, and at most 1048576"),
        ("training.gradient_accumulation_steps", 10**7, "must be 1 or more, and at most 1048576"),
        ("grid.batch_sizes", 0, "must be 1 or more, and at most 1048576"),
        ("grid.seeds", -1, "must be at least 0 and at most 4294967295"),
        ("grid.learning_rates", -1, "must be more than 0"),
    ],
)
def test_sizes_that_no_machine_has(key: str, value: int, said: str) -> None:
    with pytest.raises(UsageError, match=rf"^command line: {key}: {value}(\.0)? {said}$"):
        load(FinetuneRun, [f"--{key}={value}"])


def test_all_problems_are_reported_at_once(write: Write) -> None:
    path = write(
        "model:\n  scorer: gausian\ndata:\n  sequence_lenght: 3\ntraining:\n  max_steps: x\n  seed: y\n"
        "imports: [none.py]\n"
    )
    found = problems_of("--config", path, "--config", "none.yaml", "--tracking.progress", "3", "--what", "3")
    places = [line.partition(": ")[0] for line in found]
    assert places == [f"{path}:{line}" for line in (4, 6, 7)] + ["none.yaml", *["command line"] * 2, f"{path}:8"]


def test_each_problem_of_a_model_has_its_place(write: Write) -> None:
    path = write("model:\n  scorer: gausian\n  position: rop\n")
    assert [line.partition(": ")[0] for line in problems_of("--config", path)] == [f"{path}:2", f"{path}:3"]


def test_a_wrong_model_is_reported_with_problems_elsewhere(write: Write) -> None:
    path = write("model: {scorer: gausian}\ntraining: {log_steps: x}\n")
    assert len(problems_of("--config", path)) == 2


def test_the_model_section_says_what_the_model_will_be() -> None:
    model = load(PretrainRun, ["--model.hidden_size", "64", "--model.num_attention_heads", "2"]).model
    config = AttnKitConfig(hidden_size=64, num_attention_heads=2)
    assert (model.head_dim, model.intermediate_size) == (config.head_dim, config.intermediate_size)
    assert (model.vocab_size, model.pad_token_id) == (None, None)  # the tokenizer will say


def test_with_a_saved_model_the_section_holds_changes_only() -> None:
    model = load(PretrainRun, ["--model.path", "somewhere", "--model.hidden_dropout", "0.1"]).model
    assert model == ModelConfig(path="somewhere", hidden_dropout=0.1)


def test_keys_are_the_fields_of_the_config_and_the_settings() -> None:
    keys = keys_of(FinetuneRun)
    assert {"model.path", "model.scorer", "task.name", "training.learning_rate", "imports"} <= keys.keys()
    assert "objective.name" not in keys
    assert "model.architectures" not in keys  # a field of transformers, not of ours


def test_keys_of_a_saved_run_stand_in_for_defaults(write: Write) -> None:
    saved = write("task: {name: classification}\ndata: {text_column: body}\n", "config.yaml")
    run = load(EvaluateRun, ["--data.seed", "3", str(saved.parent)], words=("path",))
    assert (run.path, run.data.text_column, run.data.seed) == (str(saved.parent), "body", 3)


def test_a_registered_scorer_of_a_file_works_by_name(write: Write, tmp_path: Path) -> None:
    name = "mine_by_file"
    write(SCORER.format(name=name), f"{name}.py")
    path = write(f"imports: [{name}.py]\nmodel: {{scorer: {name}}}\n")
    run = load(PretrainRun, ["--config", str(path)])
    try:
        assert run.imports == [str(tmp_path / f"{name}.py")]
        assert load(PretrainRun, ["--config", str(path)]) == run  # importing it twice does no harm
        assert run.model.scorer == name
    finally:
        del scorers[name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 +\n", r"run\.yaml:1: imports: .*broken_part\.py:1: invalid syntax"),
        ("\n\nraise RuntimeError('no luck')\n", r"run\.yaml:1: imports: .*broken_part\.py:3: RuntimeError: no luck"),
        ("\nimport sys\nsys.exit(3)\n", r"run\.yaml:1: imports: .*broken_part\.py:3: SystemExit: 3"),
        ("exit()\n", r"run\.yaml:1: imports: .*broken_part\.py:1: SystemExit: None"),
        ("raise RuntimeError('two\\nlines')\n", r"broken_part\.py:1: RuntimeError: two lines$"),
        ("import json\njson.loads('')\n", r"broken_part\.py:2: JSONDecodeError: "),
        ("import no_such_module\n", r"imports: .*broken_part\.py.*No module named 'no_such_module'"),
    ],
)
def test_faults_of_an_imported_file_are_named_with_their_line(write: Write, content: str, message: str) -> None:
    write(content, "broken_part.py")
    with pytest.raises(UsageError, match=message):
        load(PretrainRun, ["--config", str(write("imports: [broken_part.py]\n"))])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("none.py", r"imports: .*none\.py: no such file: put it back, or give its new place as --imports FILE"),
        ("''", r"imports: is empty: give a value, or leave it out"),
        ("..", r"imports: '\.\.' is the name of no module"),
        ("a/b", r"imports: 'a/b' is the name of no module"),
        ("no_such_module", r"imports: no_such_module: No module named .*: name an installed module or a file"),
        ("argparse.py", r"imports: .*argparse\.py: a module named 'argparse' is loaded already: rename the file"),
    ],
)
def test_imports_that_cannot_be(write: Write, entry: str, message: str) -> None:
    write("", "argparse.py")
    with pytest.raises(UsageError, match=message):
        load(PretrainRun, ["--config", str(write(f"imports: [{entry}]\n"))])


def test_texts_in_a_mapping_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("task: {options: {prefix: 'summarize: ', other: '007', more: 'null'}}\n", encoding="utf-8")
    assert load(FinetuneRun, ["--config", str(path)]).task.options == {
        "prefix": "summarize: ",
        "other": "007",
        "more": "null",
    }


def test_a_value_that_stands_for_a_list_is_added_whole() -> None:
    run = load(PretrainRun, ["--data.source", "one.txt", "--data.source+", "two.txt", "--data.source+", "[three.txt]"])
    assert run.data.source == ["one.txt", "two.txt", "three.txt"]
