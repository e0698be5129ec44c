"""What belongs to a run beside its loop: start, global batches, updates, evaluations, checkpoints and result."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import extract_model_from_parallel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnkit.errors import NotFiniteError, UsageError
from attnkit.models.language import minimising
from attnkit.models.loss import TokenLoss
from attnkit.training.average import WeightAverage
from attnkit.training.batches import MicroBatch, Window, micro_batches, next_window
from attnkit.training.checkpoint import (
    Contents,
    Facts,
    Savable,
    checkpoint_path,
    complete_steps,
    facts_of,
    load_checkpoint,
    newest_complete,
    point,
    prune,
    save_checkpoint,
)
from attnkit.training.environment import peak_memory, save_environment
from attnkit.training.equip import check, check_metric, equip, unequip
from attnkit.training.guard import accepts
from attnkit.training.interrupt import StopRequest
from attnkit.training.launch import dividing_layers, forget, num_readers, on_main
from attnkit.training.layers import freeze
from attnkit.training.optimizer import build_optimizer, clip_gradients, set_learning_rate
from attnkit.training.order import Mark, Remembers, TrainRows, rows_of_step
from attnkit.training.progress import Progress
from attnkit.training.randomness import FORWARD, reseed
from attnkit.training.result import TrainResult
from attnkit.training.run_folder import CHECKPOINTS, check_output_folder, open_output_folder
from attnkit.training.schedule import learning_rate
from attnkit.training.settings import TrainingConfig
from attnkit.training.shards import divide_layers, fill, gather, outcome_of, whole_optimizer, whole_weights
from attnkit.training.throughput import Utilization
from attnkit.training.tracking import Tracker

Evaluate = Callable[[nn.Module], dict[str, float]]


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
    tokenizer: PreTrainedTokenizerBase | None
    facts: Facts
    average: WeightAverage | None
    outcome: nn.Module  # what is given back: `model`, or where processes share it out a copy to be filled at the end
    rate_at: Callable[[int], float]
    utilization: Utilization
    progress: Progress = field(default_factory=Progress)
    losses: list[tuple[int, float]] = field(default_factory=list)
    resumed_from: Path | None = None
    interrupted: bool = False
    began: float = 0.0  # when the present step did
    checked_gradients: bool = False
    mark: Mark | None = None  # of the rows, where they have one: after what the steps made so far have read
    saved: bool = False  # so that there may be something to prune

    @classmethod
    def start(
        cls,
        model: nn.Module,
        rows: TrainRows,
        *,
        training: TrainingConfig,
        accelerator: Accelerator,
        tracker: Tracker,
        begin: Callable[[], None] | None,
        evaluate: Evaluate | None,
        metric_names: Sequence[str] | None,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> "Run":
        """Check all that can be, wrap the model, go back to a checkpoint if asked, and only then open the folder."""
        bare = extract_model_from_parallel(model, keep_torch_compile=False)
        check(bare, rows, training=training, accelerator=accelerator, metric_names=metric_names)
        freeze(bare, training.frozen_layers)
        place = {"resume": training.resume, "overwrite": training.overwrite}
        on_main(accelerator, lambda: check_output_folder(training.output_dir, **place))
        outcome = outcome_of(bare, accelerator)
        equip(bare.to(accelerator.device), training, mixed_precision=accelerator.mixed_precision)
        divide_layers(bare, dividing_layers(accelerator))
        wrapped, optimizer = accelerator.prepare(model, build_optimizer(bare, training))
        run = cls(
            model=bare,
            wrapped=wrapped,
            optimizer=optimizer,
            training=training,
            accelerator=accelerator,
            tracker=tracker,
            evaluate=evaluate,
            tokenizer=tokenizer,
            facts=facts_of(training, rows, num_processes=num_readers(accelerator)),
            average=None if training.ema_decay is None else WeightAverage(bare, training.ema_decay),
            outcome=outcome,
            rate_at=learning_rate(training),
            utilization=Utilization(bare, training=training, accelerator=accelerator),
        )
        run._go_back(rows)
        on_main(accelerator, lambda: run._open_folder(begin))
        tracker.start(step=run.progress.step, max_steps=training.num_steps)
        tracker.announce(run.plan())
        if training.warmup_steps >= training.num_steps:
            tracker.announce(
                f"training.warmup_steps: {training.warmup_steps} are not over after training.max_steps: "
                f"{training.num_steps}: the learning rate never reaches training.learning_rate"
            )
        return run

    def plan(self) -> str:
        """What is going to run, for people."""
        model, training, accelerator = self.model, self.training, self.accelerator
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        backend = f" on {model.config._attn_implementation}" if isinstance(model, PreTrainedModel) else ""
        rows = rows_of_step(training, num_processes=num_readers(accelerator))
        source = "" if self.facts.num_rows is None else f" out of {self.facts.num_rows:,}"
        return (
            f"{type(model).__name__}{backend}, {num_parameters:,} parameters; steps {self.progress.step:,} to "
            f"{training.num_steps:,}, each of {rows:,} rows{source}; {accelerator.num_processes} process"
            f"{'es' * (accelerator.num_processes > 1)} on {accelerator.device.type}; into {training.output_dir}"
        )

    @property
    def folder(self) -> Path:
        return Path(self.training.output_dir) / CHECKPOINTS

    @property
    def goes_on(self) -> bool:
        progress = self.progress
        return progress.step < self.training.num_steps and not (self.interrupted or progress.stopped_early)

    def _open_folder(self, begin: Callable[[], None] | None) -> None:
        """Write what the folder holds from the start, and delete the run that is to be overwritten."""
        if begin is not None:
            begin()
        open_output_folder(self.training.output_dir, overwrite=self.training.overwrite)
        save_environment(self.accelerator, self.training.output_dir)
        if self.resumed_from is not None:
            point(self.folder, self.progress)  # a kill may have come between the newest checkpoint and its link

    def _go_back(self, rows: TrainRows) -> None:
        """Load the checkpoint to go on from: the newest of this run, or the one at which it begins."""
        training = self.training
        path = on_main(self.accelerator, lambda: newest_complete(self.folder)) if training.resume else None
        if path is None and training.from_checkpoint is not None:
            path = Path(training.from_checkpoint)
        if path is None:
            if training.resume:
                self.tracker.note(f"no complete checkpoint in {self.folder}: starting at step 0")
            return
        self.progress = load_checkpoint(
            path,
            model=self.model,
            optimizer=self.optimizer.optimizer,
            average=self.average,
            scaler=self.accelerator.scaler,
            rows=rows,
            facts=self.facts,
        )
        is_new = path.parent != self.folder
        if self.progress.step + is_new > training.num_steps:
            few = "no more" if is_new else "less"
            raise UsageError(f"training.max_steps: {training.num_steps} is {few} than the step of {path}")
        if is_new:
            self.progress.begin_patience()  # that best one is in another folder
        self.progress.lose_patience(training.patience)
        self.resumed_from, self.saved = path, True
        self.tracker.note(f"going on from {path}")

    def minimising(self) -> AbstractContextManager[None]:
        """Let the model compute the loss of this run for a while."""
        loss = TokenLoss(label_smoothing=self.training.label_smoothing, z_loss=self.training.z_loss)
        return minimising(loss, self.model)

    def windows(
        self, rows: TrainRows, *, collate: Callable[[list[Any]], dict[str, Any]], stop: StopRequest
    ) -> Iterator[Window]:
        """What this process reads for each optimizer step, until the run is over or one of its processes is told to
        stop: then there is a checkpoint."""
        training, accelerator, progress = self.training, self.accelerator, self.progress
        reading = micro_batches(
            rows, collate=collate, training=training, accelerator=accelerator, first_row=progress.rows_seen
        )
        self._remember(rows)
        while self.goes_on:
            self.began = time.perf_counter()
            window = next_window(
                reading, training=training, accelerator=accelerator, stop=stop.asked, step=progress.step
            )
            if window.stops:
                self.interrupted = True
                self.save()
                return
            self._remember(rows)
            yield window

    def _remember(self, rows: TrainRows) -> None:
        """Note where the reading of rows is, where more than the position has to be known to go on from there."""
        if isinstance(rows, Remembers):
            self.mark = rows.mark()

    @contextmanager
    def passing(self, batch: MicroBatch, window: Window) -> Iterator[None]:
        """Around the passes of a micro batch: random numbers of its own, and gradients travel between processes once,
        with the last of the window."""
        reseed(self.training.seed, FORWARD, batch.position)
        if batch is window.batches[-1]:
            yield
        else:
            with self.accelerator.no_sync(self.wrapped):
                yield

    def update(self, window: Window) -> None:
        """Make the optimizer step of a window, unless its gradient is refused, and what is due after it."""
        training, accelerator, progress, optimizer = self.training, self.accelerator, self.progress, self.optimizer
        if not self.checked_gradients:
            self.name_unused_parameters()
        self.utilization.see(window.batches[0])
        accelerator.unscale_gradients()
        grad_norm = clip_gradients(self.model.parameters(), limit=training.max_grad_norm)
        loss, rate = window.loss(), self.rate_at(progress.step)
        scaled = accelerator.scaler is not None
        accepted = accepts(progress, loss=loss, grad_norm=grad_norm, training=training, scaled=scaled)
        if accepted:
            set_learning_rate(optimizer, rate)
            optimizer.step()
            if self.average is not None:
                self.average.update(progress.step)
        optimizer.zero_grad()
        progress.add_step(
            rows=len(window.batches) * training.per_device_batch_size * num_readers(accelerator),
            tokens=window.num_tokens,
            labels=window.num_labels,
            loss=loss,
            seconds=time.perf_counter() - self.began,
        )
        self.tracker.step(progress.step, loss)
        if not accepted:
            self._skip(loss=loss, grad_norm=grad_norm)
        elif self.saved:  # only now the newest is known to be worth more than those before it
            self._prune()
        self._after_step(learning_rate=rate, grad_norm=grad_norm)

    def _skip(self, *, loss: float, grad_norm: float) -> None:
        """Say that a step was not made, and stop where too many were not."""
        progress = self.progress
        said = f"the loss is {loss} and the norm of the gradient {grad_norm}"
        in_a_row, limit = progress.skipped_in_a_row, self.training.max_skipped_steps
        if in_a_row > limit or (progress.step == self.training.num_steps and not math.isfinite(loss)):
            raise NotFiniteError(
                f"step {progress.step}: {said}; {in_a_row} steps in a row were skipped (training.max_skipped_steps: "
                f"{limit}); {self._remedy()}"
            )
        self.tracker.note(f"step {progress.step}: {said}: skipped")

    def _remedy(self) -> str:
        """How to go on after a run that has come to nothing."""
        steps = on_main(self.accelerator, lambda: complete_steps(self.folder))
        good = [step for step in steps if step <= self.progress.good_step]
        newest = checkpoint_path(self.folder, good[-1]) if good else None
        kept = "no checkpoint is good" if newest is None else f"the last good checkpoint is {newest}"
        if good and good[-1] == steps[-1]:
            kept += ", from which --resume goes on"
        elif good:
            kept += ": begin there by --training.from_checkpoint, in another training.output_dir"
        return f"lower training.learning_rate or training.max_grad_norm, or lengthen training.warmup_steps; {kept}"

    def _after_step(self, *, learning_rate: float, grad_norm: float) -> None:
        """Log, evaluate and save where it is time to."""
        progress, training = self.progress, self.training
        if self._due(training.log_steps):
            figures = progress.take_log() | {"learning_rate": learning_rate, "grad_norm": grad_norm}
            figures["tokens_seen"] = progress.tokens_seen
            if self.facts.num_rows is not None:
                figures["epoch"] = progress.rows_seen / self.facts.num_rows
            figures |= {"seconds": progress.seconds, "skipped_steps": progress.skipped_steps}
            figures["memory"] = peak_memory(self.accelerator)
            mfu = self.utilization.of(figures["tokens_per_second"])
            figures |= {} if mfu is None else {"mfu": mfu}
            self.losses.append((progress.step, figures["loss"]))
            self.tracker.train(progress.step, figures)
        is_best = self.evaluate is not None and self._due(training.eval_steps) and self._evaluate(self.evaluate)
        # A step that was skipped has changed nothing but the position, and the weights may be what is wrong.
        counts = not progress.skipped_in_a_row or progress.step == training.num_steps
        if is_best or progress.stopped_early or (counts and self._due(training.save_steps)):
            self.save()

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step == self.training.num_steps

    def _evaluate(self, evaluate: Evaluate) -> bool:
        """Evaluate, the average of the weights where there is one, and return whether this is the best so far."""
        training, progress = self.training, self.progress
        with self._averaged():
            metrics = evaluate(self.model)
        check_metric(training, metrics)
        self.tracker.evaluation(progress.step, metrics)
        is_best = progress.add_evaluation(metrics, metric=training.best_metric, mode=training.best_mode)
        progress.lose_patience(training.patience)
        comes_to_nothing = progress.step == training.num_steps or (
            progress.stopped_early and progress.best_step is None
        )
        if comes_to_nothing and not math.isfinite(metrics.get("loss", 0.0)):
            raise NotFiniteError(f"step {progress.step}: the held-out loss is {metrics['loss']}; {self._remedy()}")
        if (reason := self._stop_reason()) is not None:
            self.tracker.stop(progress.step, metrics, best_step=progress.best_step, reason=reason)
        return is_best

    def _stop_reason(self) -> str | None:
        return self.progress.said_of_stop(metric=self.training.best_metric, max_steps=self.training.num_steps)

    def _averaged(self) -> AbstractContextManager[Any]:
        return ExitStack() if self.average is None else self.average.in_model()

    def save(self) -> None:
        """Write a checkpoint. Those that are no longer kept are deleted after the next step."""
        is_main = self.accelerator.is_main_process
        companions: list[Savable] = [] if self.tokenizer is None else [self.tokenizer]
        if isinstance(self.model, PreTrainedModel):
            config = deepcopy(self.model.config)
            config.architectures = [type(self.outcome).__name__]  # as `save_pretrained` of the model has it
            config.distributed_config = None
            config.dtype = self.model.dtype
            companions.append(config)
            companions += [self.model.generation_config] if self.model.can_generate() else []
        contents = Contents(
            weights=whole_weights(self.model, keep=is_main),
            average=None if self.average is None else gather(self.average.weights, keep=is_main),
            optimizer=whole_optimizer(self.optimizer.optimizer, keep=is_main),
            scaler=None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
            progress=self.progress,
            facts=self.facts,
            mark=self.mark,
            companions=companions,
        )
        on_main(self.accelerator, lambda: save_checkpoint(self.folder, contents))
        self.saved = True

    def _ended_well(self) -> bool:
        """Whether the newest checkpoint may stand for those before it: that of a run that is stopped, or whose loss is
        no number, may be of weights that come to nothing."""
        return not self.interrupted and self.progress.metrics.get("loss", 0.0) is not None

    def _prune(self) -> None:
        last, every, best = self.training.keep_last, self.training.keep_every, self.progress.best_step
        on_main(self.accelerator, lambda: prune(self.folder, keep_last=last, keep_every=every, best_step=best))
        self.saved = False

    def name_unused_parameters(self) -> None:
        """After the first backward: several processes cannot average the gradient of a parameter that has none.

        Raises `UsageError` with the names of such parameters; a single process says them and goes on.
        """
        self.checked_gradients = True
        unused = [name for name, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        if unused:
            said = f"{len(unused)} parameters take no part in the loss: {', '.join(unused)}"
            if self.accelerator.num_processes > 1:
                raise UsageError(f"{said}; remove them, freeze them (requires_grad_(False)) or use one process")
            self.tracker.note(f"{said}; they stay as they are")

    def finish(self) -> TrainResult:
        """Give the model its averaged weights, take the wrappers off it, and return how the run ended."""
        if self.saved and self._ended_well():
            self._prune()
        if self.average is not None:
            self.average.copy_to_model()
        self.accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        unequip(self.model, self.training)
        forget(self.accelerator)
        if self.outcome is not self.model:
            fill(self.outcome, whole_weights(self.model, keep=self.accelerator.is_main_process))
        progress, best = self.progress, self.progress.best_step
        return TrainResult(
            model=self.outcome,
            steps=progress.step,
            rows_seen=progress.rows_seen,
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
            stop_reason=self._stop_reason(),
        )
