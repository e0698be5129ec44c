"""What a training run gives back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a training run ended."""

    model: Any
    """The trained one; one that was shared out is whole on the main process, and without weights on all others."""
    steps: int
    rows_seen: int
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
    stop_reason: str | None
    """Where and why it did, in words."""
