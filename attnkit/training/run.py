"""What belongs to a run beside its loop: start, counters, log lines, evaluations, checkpoints and result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import extract_model_from_parallel
from torch import nn

from attnkit.errors import UsageError, nearest
from attnkit.models.language import LanguageModel
from attnkit.training.checkpoint import Facts, checkpoint_path, load_checkpoint, newest_complete, prune, save_checkpoint
from attnkit.training.launch import check_num_processes, on_main
from attnkit.training.layers import freeze
from attnkit.training.optimizer import build_optimizer
from attnkit.training.progress import Progress
from attnkit.training.run_folder import CHECKPOINTS, check_output_folder, open_output_folder
from attnkit.training.settings import TrainingConfig
from attnkit.training.tracking import Tracker

Evaluate = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a training run ended."""

    steps: int
    tokens_seen: int
    seconds: float  # in training steps, all sessions of a resumed run together
    losses: list[tuple[int, float]]
    """(step, training loss) of each line that this session logged, in nats per label."""
    metrics: dict[str, float | None]
    """The last evaluation; null where it was not finite."""
    best_step: int | None
    best_value: float | None
    last_checkpoint: Path
    best_checkpoint: Path | None
    resumed_from: Path | None
    interrupted: bool
    """A signal ended the run before its time; the checkpoint is written, and the caller should exit with 0."""
    stopped_early: bool
    """`training.patience` ran out."""


@dataclass(kw_only=True)
class Run:
    """A run in progress. Its methods are called by all processes together."""

    model: nn.Module  # bare: what is evaluated and saved is never a wrapper
    wrapped: nn.Module  # what is trained: `model` in the wrappers of Accelerate
    optimizer: AcceleratedOptimizer
    training: TrainingConfig
    accelerator: Accelerator
    tracker: Tracker
    evaluate: Evaluate | None
    facts: Facts
    progress: Progress = field(default_factory=Progress)
    losses: list[tuple[int, float]] = field(default_factory=list)
    resumed_from: Path | None = None
    interrupted: bool = False

    @classmethod
    def start(
        cls,
        model: nn.Module,
        num_rows: int,
        *,
        training: TrainingConfig,
        accelerator: Accelerator,
        tracker: Tracker,
        evaluate: Evaluate | None,
    ) -> "Run":
        """Check all that can be checked, open the output folder, wrap the model, go back to a checkpoint if asked."""
        problems = training.problems()
        if problems:
            raise UsageError("; ".join(problems))
        if num_rows == 0:
            raise UsageError("there is no row to train on: give more text or examples")
        if accelerator.gradient_accumulation_steps != 1:
            raise ValueError("the accelerator divides gradients itself: make it with training.launch.make_accelerator")
        check_num_processes(accelerator, training.num_processes)
        bare = extract_model_from_parallel(model, keep_torch_compile=False)
        check_loss(bare, training)
        freeze(bare, training.frozen_layers)

        def open_folder() -> None:
            check_output_folder(training.output_dir, resume=training.resume, overwrite=training.overwrite)
            open_output_folder(training.output_dir, overwrite=training.overwrite)

        on_main(accelerator, open_folder)
        bare.to(accelerator.device).train()
        wrapped, optimizer = accelerator.prepare(model, build_optimizer(bare, training))
        run = cls(
            model=bare,
            wrapped=wrapped,
            optimizer=optimizer,
            training=training,
            accelerator=accelerator,
            tracker=tracker,
            evaluate=evaluate,
            facts=Facts(seed=training.seed, num_rows=num_rows),
        )
        if training.resume:
            run._resume()
        tracker.start(step=run.progress.step, max_steps=training.max_steps)
        return run

    @property
    def folder(self) -> Path:
        return Path(self.training.output_dir) / CHECKPOINTS

    @property
    def goes_on(self) -> bool:
        progress = self.progress
        return progress.step < self.training.max_steps and not (self.interrupted or progress.stopped_early)

    def _resume(self) -> None:
        path = on_main(self.accelerator, lambda: newest_complete(self.folder))
        if path is None:
            self.tracker.note(f"no complete checkpoint in {self.folder}: starting at step 0")
            return
        self.progress = load_checkpoint(
            path, model=self.model, optimizer=self.optimizer, scaler=self.accelerator.scaler, facts=self.facts
        )
        if self.progress.step > self.training.max_steps:
            raise UsageError(f"training.max_steps: {self.training.max_steps} is less than the step of {path}")
        self.resumed_from = path
        self.tracker.note(f"going on from {path}")

    def after_step(self, *, learning_rate: float, grad_norm: float) -> None:
        """Log, evaluate and save where it is time to."""
        progress, training = self.progress, self.training
        if self._due(training.log_steps):
            figures = progress.take_log()
            figures |= {"learning_rate": learning_rate, "grad_norm": grad_norm, "tokens_seen": progress.tokens_seen}
            figures |= {"epoch": progress.rows_seen / self.facts.num_rows, "seconds": progress.seconds}
            self.losses.append((progress.step, figures["loss"]))
            self.tracker.train(progress.step, figures)
        is_best = self.evaluate is not None and self._due(training.eval_steps) and self._evaluate(self.evaluate)
        if is_best or progress.stopped_early or self._due(training.save_steps):
            self.save()

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step == self.training.max_steps

    def _evaluate(self, evaluate: Evaluate) -> bool:
        """Evaluate and return whether this is the best so far."""
        metrics, training, progress = evaluate(self.model), self.training, self.progress
        if training.best_metric not in metrics:
            known = nearest(training.best_metric, metrics)
            raise UsageError(f"training.best_metric: this run has no metric {training.best_metric!r}: {known}")
        self.tracker.evaluation(progress.step, metrics)
        is_best = progress.add_evaluation(metrics, metric=training.best_metric, mode=training.best_mode)
        progress.stopped_early = training.patience is not None and progress.evaluations_since_best >= training.patience
        return is_best

    def save(self) -> None:
        """Write a checkpoint and delete those that are no longer kept."""
        on_main(self.accelerator, self._save)

    def _save(self) -> None:
        scaler, progress = self.accelerator.scaler, self.progress
        save_checkpoint(
            self.folder, model=self.model, optimizer=self.optimizer, scaler=scaler, progress=progress, facts=self.facts
        )
        prune(self.folder, keep_last=self.training.keep_last, best_step=progress.best_step)

    def name_unused_parameters(self) -> None:
        """After the first backward: several processes cannot average the gradient of a parameter that has none.

        Raises `UsageError` with the names of such parameters; a single process says them and goes on.
        """
        unused = [name for name, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        if unused:
            said = f"{len(unused)} parameters take no part in the loss: {', '.join(unused)}"
            if self.accelerator.num_processes > 1:
                raise UsageError(f"{said}; remove them, freeze them (requires_grad_(False)) or use one process")
            self.tracker.note(f"{said}; they stay as they are")

    def finish(self) -> TrainResult:
        """Take the wrappers off the model and return how the run ended."""
        self.accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        self.accelerator.free_memory()
        progress = self.progress
        best = progress.best_step
        return TrainResult(
            steps=progress.step,
            tokens_seen=progress.tokens_seen,
            seconds=progress.seconds,
            losses=self.losses,
            metrics=progress.metrics,
            best_step=best,
            best_value=progress.best_value,
            last_checkpoint=checkpoint_path(self.folder, progress.step),
            best_checkpoint=None if best is None else checkpoint_path(self.folder, best),
            resumed_from=self.resumed_from,
            interrupted=self.interrupted,
            stopped_early=progress.stopped_early,
        )


def check_loss(model: nn.Module, training: TrainingConfig) -> None:
    """Raise `UsageError` if a model that computes its loss itself is asked for more than that."""
    asked = [name for name in ("label_smoothing", "z_loss") if vars(training)[name]]
    if asked and not isinstance(model, LanguageModel):
        raise UsageError(
            f"training.{asked[0]}: a {type(model).__name__} computes its own loss; set it to 0, or train a language "
            "model of attnkit"
        )
