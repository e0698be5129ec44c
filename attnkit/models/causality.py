"""Whether a language model of transformers predicts each token from those before it, found by trying."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from attnkit.errors import UsageError
from attnkit.models.checks import num_positions

LENGTH = 16  # tokens of the text that is tried
NOTHING = 1e-5  # of a gradient beside another: of what is hidden it is 0, but for how some kernels sum


def check_causal(model: PreTrainedModel, *, named: str) -> None:
    """Raise `UsageError` for a model whose logits depend on the tokens that they are to predict: it would be trained
    and judged on answers that it sees. So is one whose loss asks each token for itself.

    The logits of the first half of a text may have no gradient at the inputs of its second half. A model that takes no
    plain text, or has no such gradient, is left to whoever gives it its rows.
    """
    length = min(num_positions(model.config) or LENGTH, LENGTH)
    ids = (7 * torch.arange(length, device=model.device) + 5) % model.config.get_text_config().vocab_size
    try:
        inputs, output = passed(model, ids[None])
        logits, half = output.logits[0].float(), length // 2
        (gradient,) = torch.autograd.grad(logits[:half].square().sum(), inputs)
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return
    gradient = gradient.reshape(length, -1)  # XLNet has the text first and the batch second
    before, after = (float(part.abs().max()) for part in (gradient[:half], gradient[half:]))
    if after > NOTHING * before:
        is_switched = not vars(model.config).get("is_decoder", True)
        switch = ', or set "is_decoder": true in its config.json' if is_switched else ""
        raise UsageError(
            f"{named}: {type(model).__name__} sees the tokens after the one that it predicts, as an encoder does, and "
            "would be judged on answers that it reads: give a causal model as model.path, or a task or objective for "
            f"encoders{switch}"
        )
    logits, loss = logits.detach(), float(output.loss.detach())
    error = max(1e-4, 4 * torch.finfo(output.logits.dtype).eps)
    shifted, same = (float(F.cross_entropy(it, labels)) for it, labels in ((logits[:-1], ids[1:]), (logits, ids)))
    if math.isclose(loss, same, rel_tol=error) and not math.isclose(loss, shifted, rel_tol=error):
        raise UsageError(
            f"{named}: the loss of {type(model).__name__} asks each token for itself, not for the next one: give "
            "another causal model as model.path"
        )


def passed(model: PreTrainedModel, input_ids: Tensor) -> tuple[Tensor, Any]:
    """The embeddings of a text and what the model says with the text as labels; the same each time."""
    seen: list[Tensor] = []

    def see(module: Any, args: Any, embedded: Tensor) -> Tensor:
        seen.append(embedded.detach().requires_grad_())
        return seen[-1]

    was_training, hook = model.training, model.get_input_embeddings().register_forward_hook(see)
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            output = model.eval()(
                input_ids=input_ids, attention_mask=torch.ones_like(input_ids), labels=input_ids, use_cache=False
            )
    finally:
        hook.remove()
        model.train(was_training)
    return seen[0], output
