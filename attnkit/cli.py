"""The command line: one verb per job. Nothing heavy is imported before a verb is done, so that `--help` is quick."""

import errno
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from attnkit.config.help import help_text
from attnkit.errors import UsageError, nearest
from attnkit.training.interrupt import Stopped, raise_on_signal

USAGE_ERROR, INTERRUPTED = 2, 130  # exit codes
PATIENCE = 60  # seconds in which the main process may say what is wrong before another one does

FLAGS = "[--config FILE]... [--section.key VALUE]... [--print_config]"


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One job: the class whose keys are its flags, and the recipe that takes such a run."""

    summary: str
    usage: str
    run: tuple[str, str]
    """Module and class of the run."""
    recipe: tuple[str, str]
    """Module and function of the recipe, which returns what there is to say."""
    trains: bool = False
    """A signal stops it with exit code 0: a run can go on where it was."""
    words: tuple[str, ...] = ()
    """Keys that the words between the flags set; all of them have to be given, and the last may be a list."""


VERBS = {
    "tokenizer": Verb(
        summary="train a tokenizer on text and save it",
        usage=FLAGS,
        run=("attnkit.config.runs", "TokenizerRun"),
        recipe=("attnkit.recipes.tokenizer", "make_tokenizer"),
    ),
    "prepare": Verb(
        summary="tokenize and pack text once, for any number of pretraining runs",
        usage=f"{FLAGS} --data.prepared FOLDER",
        run=("attnkit.config.runs", "PretrainRun"),
        recipe=("attnkit.recipes.prepare", "prepare"),
    ),
    "pretrain": Verb(
        summary="train a model on text, from random weights or from a saved model",
        usage=f"{FLAGS} [--resume | --overwrite]",
        trains=True,
        run=("attnkit.config.runs", "PretrainRun"),
        recipe=("attnkit.recipes.pretrain", "pretrain"),
    ),
    "finetune": Verb(
        summary="train a saved model for a task",
        usage=f"{FLAGS} [--resume | --overwrite]",
        trains=True,
        run=("attnkit.config.finetune_run", "FinetuneRun"),
        recipe=("attnkit.recipes.finetune", "finetune"),
    ),
    "generate": Verb(
        summary="continue a text with a model",
        usage="RUN_OR_MODEL [--prompt TEXT] [--key VALUE]...",
        run=("attnkit.recipes.generate", "GenerateRun"),
        recipe=("attnkit.recipes.generate", "generate"),
        words=("path",),
    ),
    "evaluate": Verb(
        summary="measure a pretrained model on held-out text, or a fine-tuned one on held-out examples",
        usage="RUN_OR_MODEL [--section.key VALUE]...",
        run=("attnkit.recipes.evaluate", "EvaluateRun"),
        recipe=("attnkit.recipes.evaluate", "evaluate"),
        words=("path",),
    ),
    "predict": Verb(
        summary="let a fine-tuned model answer new examples",
        usage="RUN [--data.source FILE] [--output FILE] [--section.key VALUE]...",
        run=("attnkit.recipes.predict", "PredictRun"),
        recipe=("attnkit.recipes.predict", "predict"),
        words=("path",),
    ),
    "import": Verb(
        summary="make a model of a checkpoint of transformers",
        usage="SOURCE TARGET [--scorer NAME] [--layers '[0, 1]']",
        run=("attnkit.recipes.exchange", "ImportRun"),
        recipe=("attnkit.recipes.exchange", "import_checkpoint"),
        words=("source", "target"),
    ),
    "export": Verb(
        summary="write a model for transformers alone: as its own class, or with our code",
        usage="RUN_OR_MODEL TARGET (--format NAME | --remote-code)",
        run=("attnkit.recipes.exchange", "ExportRun"),
        recipe=("attnkit.recipes.exchange", "export_checkpoint"),
        words=("path", "target"),
    ),
    "summary": Verb(
        summary="show what finished runs have reached",
        usage="RUN_OR_FOLDER_OF_RUNS...",
        run=("attnkit.recipes.summary", "SummaryRun"),
        recipe=("attnkit.recipes.summary", "summarize_runs"),
        words=("path",),
    ),
}

# A verb with jobs and flags of its own: what it does, and the module and function that take all words after it.
OTHERS = {"scale": ("say what a configuration costs, before any of it is spent", ("attnkit.scaling.cli", "answer"))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say and return the exit code: 0, 2 for a mistake of the user, 130 for Ctrl-C, but 0 for a
    signal that stops a training run."""
    try:
        said = answer(list(sys.argv[1:] if arguments is None else arguments))
    except UsageError as error:
        complain(error)
        return USAGE_ERROR
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        complain(UsageError(f"{error.filename}: {error.strerror}: give another path"))
        return USAGE_ERROR
    except Exception as error:  # code of the user's own may raise whatever it likes
        fault = import_module("attnkit.files.imports").fault_of_own_code(error)
        if fault is None:
            raise
        complain(fault)
        return USAGE_ERROR
    except Stopped as stopped:
        said = f"stopped by {stopped} outside of training: nothing is lost, and the same command starts or goes on"
    except KeyboardInterrupt:
        return INTERRUPTED
    if said and is_main_process():
        speak(said)
    return 0


def speak(text: str) -> None:
    """Print what there is to say; a reader who has seen enough, such as `head`, may close the pipe."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains of it when it ends


def answer(arguments: list[str]) -> str:
    """What the command line has to say to some arguments, after the job is done."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        return overview()
    if name == "--version":
        return f"attnkit {version('attnkit')}"
    asks = "-h" in rest or "--help" in rest
    if name in OTHERS:
        if rest and not asks:
            quieten_transformers()
        return str(part(*OTHERS[name][1])(rest))
    if name not in VERBS:
        raise UsageError(f"unknown verb {name!r}: {nearest(name, [*VERBS, *OTHERS])}")
    verb = VERBS[name]
    if asks:
        return help_text(*verb.run, usage=f"attnkit {name} {verb.usage}", topic=topic_of(rest))
    return do(name, verb, rest)


def topic_of(arguments: list[str]) -> str:
    """What help is asked for: the word after the flag, if there is one."""
    flag = next(index for index, word in enumerate(arguments) if word in ("-h", "--help"))
    return "".join(word for word in arguments[flag + 1 : flag + 2] if not word.startswith("-"))


def do(name: str, verb: Verb, arguments: list[str]) -> str:
    """Load the run of a verb and hand it to its recipe."""
    with raise_on_signal() if verb.trains else nullcontext():
        return do_job(name, verb, arguments)


def do_job(name: str, verb: Verb, arguments: list[str]) -> str:
    """The same, whatever signals do."""
    quieten_libraries()
    loading, flags = import_module("attnkit.config.load"), import_module("attnkit.config.flags")
    print_config = "--print_config" in arguments
    arguments = [word for word in arguments if word != "--print_config"]
    run_class = part(*verb.run)
    given = {key for key, _ in flags.split(run_class, arguments, words=verb.words)[1]}
    if missing := [word for word in verb.words if word not in given]:
        raise UsageError(f"{name} needs {' and '.join(missing)}: attnkit {name} {verb.usage}")
    run = loading.load(run_class, arguments, words=verb.words)
    if print_config:
        return str(import_module("attnkit.config.save").to_text(run).rstrip("\n"))
    return str(part(*verb.recipe)(run))


def quieten_libraries() -> None:
    """Keep progress bars and reports of what we depend on out of what we say."""
    quieten_transformers()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # which takes no import


def quieten_transformers() -> None:
    """The same of transformers alone, for what reads no data."""
    logging = import_module("transformers.utils.logging")
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def part(module: str, name: str) -> Any:
    """A class or function by the module that holds it."""
    return vars(import_module(module))[name]


def overview() -> str:
    """The help of the command itself."""
    summaries = {name: verb.summary for name, verb in VERBS.items()}
    summaries |= {name: summary for name, (summary, _) in OTHERS.items()}
    verbs = "\n".join(f"  {name:<12}{summary}" for name, summary in summaries.items())
    return (
        "usage: attnkit VERB [--help] ...\n\n"
        "Transformers whose attention score is a part you can swap.\n\n"
        f"{verbs}\n\n"
        "  --version   the version of attnkit\n"
        "  --help      this text; after a verb, what the verb can be told"
    )


def is_main_process() -> bool:
    """Whether this is the process of a launch that speaks to the user."""
    return os.environ.get("RANK", "0") == "0"


def complain(error: UsageError) -> None:
    """Say what is wrong, once per launch, with a line for each problem.

    All processes meet most mistakes, and the launcher ends all when one ends: so the others give the main process time
    to say it, and speak only of what it did not meet.
    """
    if not is_main_process():
        time.sleep(PATIENCE)
    for line in str(error).splitlines():
        print(f"attnkit: error: {line}", file=sys.stderr, flush=True)
