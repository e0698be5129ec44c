"""The loss of predicted tokens straight from hidden states: the logits of all tokens never exist at once. And what
teaches the draws of a stochastic normalizer, which is a part of every loss.

Shapes: T tokens that are predicted, H hidden size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers.loss.loss_utils import fixed_cross_entropy

from attnkit.attention.normalizers import Stochastic

IGNORED = -100
"""The label of a token that is not predicted."""
MIN_CHUNK = 256  # tokens: fewer make narrow products, which are slow


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """What is minimised for a token with label y and log Z = log Σ_v exp(logit_v):

        (1 - s) · (-log p(y)) + s · mean_v(-log p(v)) + z · log² Z

    s is the label smoothing (Szegedy 2016, section 7), z the weight of the z-loss, which keeps logits from drifting
    (Chowdhery 2022, section 5).
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0

    def of_logits(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The definition: logits [T, V], labels [T] -> the sum over tokens, and -log p(y) [T] without a gradient."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_p = torch.log_softmax(logits, dim=-1)
        nll = -log_p.gather(1, labels[:, None])[:, 0]
        loss = (1 - self.label_smoothing) * nll - self.label_smoothing * log_p.mean(-1)
        loss = loss + self.z_loss * torch.logsumexp(logits, dim=-1).square()
        return loss.sum(), nll.detach()

    @torch.compiler.disable  # how many tokens are predicted differs between batches; products are most of it
    def of_states(
        self, states: Tensor, labels: Tensor, *, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same of states [T, H] and an output embedding [V, H] with a bias [V], chunk by chunk."""
        return ChunkedLoss.apply(states, weight, bias, labels, self, torch.is_grad_enabled())


class ChunkedLoss(torch.autograd.Function):
    """`TokenLoss` over chunks of tokens, with the gradients made beside the loss: nothing is computed twice, and what
    is kept for the backward pass is as large as the inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        loss: TokenLoss,
        needs_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        sums = torch.promote_types(dtype, torch.float32)
        inputs, matrix, vector = states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        nll = torch.empty(len(states), dtype=sums, device=states.device)
        total = torch.zeros((), dtype=sums, device=states.device)
        gradients: list[Tensor] = []
        if needs_gradient:
            gradients = [torch.empty_like(inputs), torch.zeros_like(weight, dtype=sums)]
            gradients += [] if bias is None else [torch.zeros_like(bias, dtype=sums)]
        # A chunk's logits are about as large as the states of all tokens.
        chunk = max(MIN_CHUNK, inputs.numel() // len(weight))
        with torch.autocast(device, enabled=False):
            for start in range(0, len(states), chunk):
                part = slice(start, start + chunk)
                logits, label = F.linear(inputs[part], matrix, vector), labels[part, None]
                log_p = torch.log_softmax(logits, dim=-1, dtype=sums)
                picked = log_p.gather(1, label)
                log_z = logits.gather(1, label) - picked
                nll[part] = -picked[:, 0]
                total -= (1 - loss.label_smoothing) * picked.sum() - loss.z_loss * log_z.square().sum()
                if loss.label_smoothing:
                    total -= loss.label_smoothing * log_p.mean(-1).sum()
                if needs_gradient:
                    add_gradients(gradients, loss, inputs[part], matrix, label, log_p=log_p, log_z=log_z, start=start)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [tensor.dtype for tensor in (states, weight, bias) if tensor is not None]
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # In place, as the gradient of an output embedding is large; a second backward pass is refused by autograd.
        scaled = [saved.mul_(gradient).to(dtype) for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
        return (*scaled, *[None] * (6 - len(scaled)))


def add_gradients(
    gradients: list[Tensor],
    loss: TokenLoss,
    states: Tensor,
    weight: Tensor,
    label: Tensor,
    *,
    log_p: Tensor,
    log_z: Tensor,
    start: int,
) -> None:
    """Add a chunk's part to the gradients of states, weight and, where there is one, bias; `log_p` is used up.

    d loss / d logits = p · (1 + 2 z log Z) - s / V - (1 - s) · onehot(y)
    """
    by_logits = log_p.exp_()
    if loss.z_loss:
        by_logits.mul_(1 + 2 * loss.z_loss * log_z)
    if loss.label_smoothing:
        by_logits.sub_(loss.label_smoothing / len(weight))
    by_logits.scatter_add_(1, label, torch.full_like(log_z, loss.label_smoothing - 1, dtype=by_logits.dtype))
    by_states, by_weight, *by_bias = gradients
    for each in by_bias:
        each += by_logits.sum(0)
    by_logits = by_logits.to(states.dtype)
    torch.mm(by_logits, weight, out=by_states[start : start + len(states)])
    if by_weight.dtype == states.dtype:
        by_weight.addmm_(by_logits.T, states)
    else:
        by_weight += by_logits.T @ states


def label_loss(logits: Tensor, labels: Tensor, *, num_items_in_batch: Tensor | int | None = None, **_: Any) -> Tensor:
    """The mean of -log p(label) over the labels that are not -100, or their sum over `num_items_in_batch`, in fp32 at
    least: logits [..., V] and labels [...]. It is given what transformers' own losses are, which round fp64 to fp32."""
    flat = logits.reshape(-1, logits.shape[-1])
    precise = flat.to(torch.promote_types(flat.dtype, torch.float32))
    return fixed_cross_entropy(precise, labels.reshape(-1).to(flat.device), num_items_in_batch, IGNORED)


def loss_with_policy(
    loss: Callable[..., Tensor], draws: list[Stochastic], shifted: bool, *args: Any, **kwargs: Any
) -> Tensor:
    """The loss of a batch, and for each drawing normalizer its policy loss from the loss of each row. Where labels are
    `shifted`, the first of a row is not predicted."""

    def of_row(value: Any, row: int) -> Any:
        return value[row : row + 1] if isinstance(value, Tensor) and value.ndim else value

    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim]
    batch_size = len(given[0])
    per_row = {name: value for name, value in kwargs.items() if name != "num_items_in_batch"}
    with torch.no_grad():
        row_losses = [
            loss(
                *(of_row(value, row) for value in args), **{name: of_row(value, row) for name, value in per_row.items()}
            )
            for row in range(batch_size)
        ]
    tokens = next((value for value in given if not value.is_floating_point() and value.ndim == 2), None)
    if tokens is None:
        number = torch.ones_like(row_losses[0]).expand(batch_size)
    else:
        number = (tokens[:, int(shifted) :] != IGNORED).sum(-1)
    return loss(*args, **kwargs) + policy_loss(
        draws, torch.stack(row_losses), number=number, total=kwargs.get("num_items_in_batch")
    )


def policy_loss(
    draws: list[Stochastic], row_loss: Tensor, *, number: Tensor, total: Tensor | int | None = None
) -> Tensor:
    """The losses of all drawing normalizers from the loss [B] of each row, the number [B] of its labels, and the total
    in the batch where this is a part of it. A row without labels has no finite loss."""
    share = number / (number.sum().clamp(min=1) if total is None else total)
    share = share.to(row_loss)
    return sum((draw.policy_loss(row_loss, share) for draw in draws), start=torch.zeros_like(row_loss[0]))
