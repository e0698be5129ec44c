"""Measure a few real training steps on this machine, predict a longer run from them, run it, and report the error."""

import math
import statistics
import time
from dataclasses import dataclass

import torch
from scipy.stats import t

from attnkit.errors import UsageError, check_count
from attnkit.models.checks import common_backend
from attnkit.scaling.flops import count_flops
from attnkit.scaling.hardware import measure_cpu
from attnkit.scaling.subject import Config, Subject, read_subject

MOST_STEPS = 10**6
WARM_UP = 2  # steps that are not measured: caches are cold and kernels not chosen


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured, what it predicted, and what came true."""

    seconds_per_step: float
    """The median of the measured steps."""
    flops_per_step: int
    mfu: float
    """Of the rate that this machine's matrix products reach."""
    tokens_per_second: float
    predicted_seconds: float
    unsure_seconds: float
    """Half of the 95% interval of the prediction, from how unlike the measured steps are."""
    measured_seconds: float | None
    """The longer run; None where it was not run."""

    @property
    def error(self) -> float | None:
        """How far the prediction is from what came true, as a part of it."""
        return None if self.measured_seconds is None else self.predicted_seconds / self.measured_seconds - 1


def calibrate(
    config: Config,
    *,
    seq_len: int,
    batch_size: int = 8,
    steps: int = 5,
    longer_steps: int = 20,
    check: bool = True,
    head: str | None = None,
) -> Calibration:
    """Train on random tokens for some steps with AdamW on the CPU, in the backend that the model chooses.

    prediction = median seconds of a step · longer_steps, ± t · s · longer_steps · √(1/steps + 1/longer_steps), s the
    standard deviation of a step: it knows nothing of a machine that gets busier or warmer afterwards. With `check` the
    longer run is made too. Raises `UsageError` for fewer than 3 steps, which have no median worth the name, and for
    models without a loss over tokens.
    """
    check_count("steps", steps, least=3, most=MOST_STEPS)
    check_count("longer_steps", longer_steps, most=MOST_STEPS)
    subject = read_subject(config, head=head)
    if subject.head not in ("causal_lm", "masked_lm", "seq2seq_lm"):
        raise UsageError(f"a model with head {subject.head!r} has no loss over tokens to train on")
    flops = count_flops(subject.config, head=subject.head, seq_len=seq_len, batch_size=batch_size)
    step = Step(subject, seq_len=seq_len, batch_size=batch_size)
    measured = [step.seconds() for _ in range(WARM_UP + steps)][WARM_UP:]
    each = statistics.median(measured)
    longer = sum(step.seconds() for _ in range(longer_steps)) if check else None
    return Calibration(
        seconds_per_step=each,
        flops_per_step=flops.total,
        mfu=flops.total / each / measure_cpu().peak_of("fp32"),
        tokens_per_second=flops.tokens / each,
        predicted_seconds=each * longer_steps,
        unsure_seconds=unsure(measured, longer_steps=longer_steps),
        measured_seconds=longer,
    )


def unsure(measured: list[float], *, longer_steps: int) -> float:
    """Half of the 95% interval of the seconds of a longer run."""
    far = float(t.ppf(0.975, len(measured) - 1))
    return far * statistics.stdev(measured) * longer_steps * math.sqrt(1 / len(measured) + 1 / longer_steps)


class Step:
    """A training step that can be timed."""

    def __init__(self, subject: Subject, *, seq_len: int, batch_size: int) -> None:
        backend = "sdpa" if subject.ours is None else common_backend(subject.ours)
        self.model = subject.build(backend=backend).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.shape = (batch_size, seq_len)

    def seconds(self) -> float:
        """Make one step on new random tokens, and say how long it took."""
        ids = torch.randint(self.model.config.vocab_size, self.shape)
        inputs = {"decoder_input_ids": ids} if self.model.config.is_encoder_decoder else {}
        start = time.perf_counter()
        self.model(input_ids=ids, labels=ids, **inputs).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start
