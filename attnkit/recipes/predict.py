"""A fine-tuned model on other examples: predictions where nothing is known, figures where the answers are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnkit.config.finetune_run import FinetuneRun
from attnkit.config.load import AlwaysGiven, load_saved
from attnkit.data.sources import DataConfig
from attnkit.errors import UsageError, first_line
from attnkit.files.saved import run_folder
from attnkit.recipes import manifest
from attnkit.recipes.inputs import absolute_data, check_same_split
from attnkit.recipes.judge import BatchConfig, judge, make_rows, say_figures, write_predictions
from attnkit.recipes.model import load_model, row_length
from attnkit.recipes.saved import refuse_several, tokenizer_of, verb_of
from attnkit.tasks import Example, Task, load_examples, make_task
from attnkit.tasks.examples import (
    ExamplesConfig,
    NewExamplesConfig,
    met_in_training,
    read_examples,
    setting_of,
    unknown,
)
from attnkit.training.evaluation import read_rows
from attnkit.training.launch import make_accelerator, on_main
from attnkit.training.run_folder import PREDICTIONS, nearest_existing, writing


@dataclass(kw_only=True)
class PredictRun(AlwaysGiven):
    """What is predicted. The keys of the run that made the model stand in for the defaults shown here, but for
    `data.source`, which has to be given."""

    path: str
    """The folder of a fine-tuned run, or of its model."""
    data: NewExamplesConfig = field(default_factory=NewExamplesConfig)
    training: BatchConfig = field(default_factory=BatchConfig)
    output: str | None = None
    """The file of predictions; without it `predictions/new.jsonl` in the run's folder. It must not be there yet."""
    imports: list[str] = field(default_factory=list)
    """Python files or modules that register parts; those of the run that made the model need not be named."""

    @staticmethod
    def always_given() -> tuple[str, ...]:
        return ("data.source",)


def predict(run: PredictRun) -> str:
    """Predict for every example of `data.source`, which needs no answers, and return what there is to say.

    Raises `UsageError` if there is no such model or file, or if an example cannot be read.
    """
    if run.data.source is None:
        raise UsageError("data.source: is not given: name the examples to predict for, --data.source FILE")
    finetuned, folder = finetuned_run(run.path, data=run.data, imports=run.imports)
    path = folder / PREDICTIONS / "new.jsonl" if run.output is None else Path(run.output)
    check_output(path)
    accelerator = make_accelerator()
    task = make_task(finetuned.task, finetuned.data)
    read = read_examples(run.data.source, task=task, data=finetuned.data, answers=False)
    if problems := [*kept_of_run(read.faults.lines(), data=finetuned.data)]:
        raise UsageError(*problems)
    examples = read.examples
    tokenizer, model = load_finetuned(run.path, task, accelerator=accelerator)
    length = row_length(finetuned.data.sequence_length, model.config)
    rows = make_rows(
        task,
        [task.unanswered(example) for example in examples],
        tokenizer=tokenizer,
        config=model.config,
        sequence_length=length,
        setting="data.source",
    )
    _, _, outcomes = read_rows(
        model,
        rows,
        collate=task.collator(tokenizer),
        batch_size=run.training.per_device_batch_size,
        accelerator=accelerator,
        outcomes=task.outcomes,
    )
    answers = task.answers(examples, rows=rows, outcomes=outcomes)
    on_main(accelerator, lambda: write_predictions(path, task, examples=examples, answers=answers, setting="output"))
    accelerator.end_training()
    notes = task.notes(rows, sequence_length=length)
    return "\n".join([f"predictions   {len(examples):,} in {path}", *(f"cut           {note}" for note in notes)])


def kept_of_run(problems: list[str], *, data: ExamplesConfig) -> Iterator[str]:
    """The problems; that a column to be kept is missing, with how to do without, as it may be the run that keeps it."""
    for problem in problems:
        is_kept = any(f"column {name!r}" in problem and "data.kept_columns" in problem for name in data.kept_columns)
        said = "; where it is not given, data.kept_columns is that of the run: --data.kept_columns '[]' leaves it out"
        yield problem + said * is_kept


def check_output(path: Path) -> None:
    """Raise `UsageError` for a file of predictions that is there already, or cannot be."""
    with writing(path, setting="output"):
        is_there, around = path.exists(), nearest_existing(path.parent)
    if is_there:
        raise UsageError(f"output: {path} is there already: choose another file by --output")
    if not around.is_dir():
        raise UsageError(f"output: {around} is a file, so that {path} cannot be: choose another file by --output")


def evaluate_finetuned(path: str, *, data: DataConfig, batch_size: int, imports: Sequence[str]) -> str:
    """The figures of a fine-tuned model on the held-out examples of its run, and on its test examples.

    Of a `data.source` that is not the run's own, all examples count. Raises `UsageError` where it is not known any more
    what was held out.
    """
    accelerator = make_accelerator()
    finetuned, folder = finetuned_run(path, data=data, imports=imports)
    finetuned = replace(finetuned, data=replace(finetuned.data, kept_columns=[]))  # nothing is written
    task = make_task(finetuned.task, finetuned.data)
    own = load_saved(FinetuneRun, folder, imports=imports)
    is_own = absolute_data(data).source == absolute_data(own.data).source
    split_notes: list[str] = []
    if is_own:
        check_own_split(own.data, finetuned.data, folder=folder)
    examples = load_examples(task, finetuned.data, notes=split_notes) if is_own else {}
    tokenizer, model = load_finetuned(path, task, accelerator=accelerator)
    if not is_own:
        read = read_examples(data.source, task=task, data=finetuned.data)
        if problems := [*read.faults.lines(), *unknown(read.examples, task=task)]:
            raise UsageError(*problems)
        examples["given"] = read.examples
        split_notes += trained_on(own, folder, given=examples["given"])
    length = row_length(finetuned.data.sequence_length, model.config)
    lines = []
    for split, name in {"held_out": "held-out", "test": "test", "given": "all"}.items():
        if split in examples:
            rows = make_rows(
                task,
                examples[split],
                tokenizer=tokenizer,
                config=model.config,
                sequence_length=length,
                setting=setting_of(split, finetuned.data),
            )
            judged = judge(
                model,
                task,
                examples=examples[split],
                rows=rows,
                tokenizer=tokenizer,
                batch_size=batch_size,
                accelerator=accelerator,
            )
            intervals = task.intervals(judged.examples, judged.answers)
            lines.append(f"{name:<14}{say_figures(judged.figures, intervals, baseline={}, guess='')}")
            lines += [f"{'':<14}{note}" for note in task.notes(rows, sequence_length=length)]
            lines.append(f"{'examples':<14}{len(examples[split]):,}")
    accelerator.end_training()
    if is_own:
        said = "what the run held out of its own examples, as it was trained on the others; a copy is measured whole"
        lines.append(f"{'measured':<14}{said}")
    return "\n".join(lines + [f"{'split':<14}{note}" for note in split_notes])


def check_own_split(own: ExamplesConfig, data: ExamplesConfig, *, folder: Path) -> None:
    """Raise `UsageError` where settings or files are no longer those by which a run held out its examples."""
    manifest.check_same_files(folder, setting="data.source", otherwise="give another data.source")
    if data.held_out_source is None:
        if own.held_out_source is not None:
            raise UsageError(
                "data.held_out_source: null would hold out examples that the run was trained on: leave it out, or give "
                "another file"
            )
        check_same_split(own, data)


def trained_on(run: FinetuneRun, folder: Path, *, given: list[Example]) -> list[str]:
    """How many of the examples a run was trained on, in a line where there are any, or that it is not known."""
    task = make_task(run.task, run.data)
    try:
        manifest.check_same_files(folder, setting="data.source", otherwise="give another data.source")
        train = load_examples(task, run.data)["train"]
    except UsageError as error:
        return [f"whether some of these were trained on is not known ({first_line(error)})"]
    return list(met_in_training({"train": train, "given": given}, task=task))


def finetuned_run(path: str, *, data: DataConfig, imports: Sequence[str]) -> tuple[FinetuneRun, Path]:
    """The run that made a model, with the keys of `data` that were given now, and its folder."""
    folder = run_folder(path)
    if folder is None:
        refuse_several(path)
    if folder is None or verb_of(folder) != "finetune":
        raise UsageError(f"{path}: is no fine-tuned run: there is no config.yaml with a task; give the folder of one")
    run = load_saved(FinetuneRun, folder, imports=imports)
    shared = {it.name for it in fields(data)} & {it.name for it in fields(ExamplesConfig)}
    given = {name: vars(data)[name] for name in shared}
    return replace(run, data=replace(run.data, **given)), folder


def load_finetuned(
    path: str, task: Task, *, accelerator: Accelerator
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """The tokenizer and the model of a fine-tuned run; the task learns from the model what it was trained on."""
    tokenizer = tokenizer_of(path)
    task.prepare_tokenizer(tokenizer)
    model = load_model(path, auto_class=task.auto_class).to(accelerator.device).eval()
    task.restore(model.config)
    task.prepare_model(model, [])
    return tokenizer, model
