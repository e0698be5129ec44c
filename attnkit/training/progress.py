"""How far a run has come: all its counters, as a checkpoint stores them."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Progress:
    """The counters of a run. Equal on every process, and plain numbers, so that JSON keeps them exactly."""

    step: int = 0  # optimizer steps done
    rows_seen: int = 0  # by all processes: the position in the data
    tokens_seen: int = 0  # by all processes, padding not counted
    seconds: float = 0.0  # spent in training steps
    metrics: dict[str, float | None] = field(default_factory=dict)
    """What the last evaluation said; null where it was not a finite number."""
    best_step: int | None = None
    best_value: float | None = None
    evaluations_since_best: int = 0
    stopped_early: bool = False
    skipped_steps: int = 0  # whose gradient was refused
    skipped_in_a_row: int = 0  # up to now
    good_step: int = 0  # the newest step whose weights are known to give a finite loss
    usual_grad_norm: float = 0.0  # moving mean over the steps that were made

    # since the last line of the log
    logged_loss: float = 0.0  # summed over labels, nats
    logged_labels: int = 0
    logged_tokens: int = 0
    logged_seconds: float = 0.0

    def add_step(self, *, rows: int, tokens: int, labels: int, loss: float, seconds: float) -> None:
        """Count one optimizer step; `loss` is the mean over the `labels` of the global batch.

        A loss that is not finite is in no mean.
        """
        self.step += 1
        self.rows_seen += rows
        self.tokens_seen += tokens
        self.seconds += seconds
        if math.isfinite(loss):
            self.logged_loss += loss * labels
            self.logged_labels += labels
        self.logged_tokens += tokens
        self.logged_seconds += seconds

    def take_log(self) -> dict[str, float]:
        """The figures since the last line of the log, loss weighted by labels; starts the next line."""
        figures = {
            "loss": self.logged_loss / self.logged_labels if self.logged_labels else math.nan,
            "tokens_per_second": self.logged_tokens / max(self.logged_seconds, 1e-9),
        }
        self.logged_loss, self.logged_labels, self.logged_tokens, self.logged_seconds = 0.0, 0, 0, 0.0
        return figures

    def begin_patience(self) -> None:
        """Forget what was best, and how long ago that is."""
        self.best_step = self.best_value = None
        self.evaluations_since_best, self.stopped_early = 0, False

    def lose_patience(self, patience: int | None) -> None:
        """Stop after so many evaluations without a better one; with null, never."""
        self.stopped_early = patience is not None and self.evaluations_since_best >= patience

    def add_evaluation(self, metrics: dict[str, float], *, metric: str, mode: str) -> bool:
        """Keep the metrics of an evaluation and return whether it is the best so far. NaN is never the best, nor is any
        value beside a loss that is none."""
        self.metrics = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        value = metrics[metric]
        sign = {"min": -1.0, "max": 1.0}[mode]
        is_number = math.isfinite(value) and math.isfinite(metrics.get("loss", 0.0))
        if is_number and (self.best_value is None or sign * value > sign * self.best_value):
            self.best_step, self.best_value, self.evaluations_since_best = self.step, value, 0
            return True
        self.evaluations_since_best += 1
        return False

    def said_of_stop(self, *, metric: str, max_steps: int) -> str | None:
        """Why the run is over before its time, if it is, in words."""
        if not self.stopped_early:
            return None
        number = self.evaluations_since_best
        times = f"{number:,} evaluations in a row" if number > 1 else "an evaluation"
        than = "" if self.best_step is None else f" than that of step {self.best_step:,}"
        return f"at step {self.step:,} of {max_steps:,}, as {times} brought no better {metric}{than}"

    def state(self) -> dict[str, Any]:
        """The counters as a dictionary that JSON can hold."""
        return asdict(self)
