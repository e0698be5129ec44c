"""Which steps are not made: those whose gradient would spoil the weights."""

import math

from attnkit.training.progress import Progress
from attnkit.training.settings import TrainingConfig

MEMORY = 0.98  # decay of the mean of gradient norms
WARM_UP = 50  # steps before that mean says what is usual


def accepts(progress: Progress, *, loss: float, grad_norm: float, training: TrainingConfig, scaled: bool) -> bool:
    """Whether to make the step of a gradient, and take note of it in `progress`.

    Refused are a loss or a gradient norm that is not finite, and a norm of more than `training.spike_factor` times the
    usual, their moving mean. Gradients `scaled` for fp16 may overflow: the scaler skips their step and scales less.
    """
    is_finite = math.isfinite(loss) and (math.isfinite(grad_norm) or scaled)
    usual, accepted = progress.usual_grad_norm, progress.step - progress.skipped_steps
    is_spike = (
        training.spike_factor is not None and accepted >= WARM_UP and not grad_norm <= training.spike_factor * usual
    )
    if not is_finite or is_spike:
        progress.skipped_steps += 1
        progress.skipped_in_a_row += 1
        return False
    progress.skipped_in_a_row = 0
    progress.good_step = progress.step
    if math.isfinite(grad_norm):
        memory = min(MEMORY, accepted / (accepted + 1))  # at first the plain mean
        progress.usual_grad_norm = memory * usual + (1 - memory) * grad_norm
    return True
