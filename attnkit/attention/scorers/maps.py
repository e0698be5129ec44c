"""Maps of tokens in few passes over memory.

Each is a formula in plain operations and the same with its gradient by hand, which a CPU computes in about half the
passes. The formula is used where a compiler fuses it, under torch.func and in forward mode, and for a second gradient.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

NORM_EPSILON = 1e-6  # under the root: the gradient stays finite at the zero vector in every dtype


def with_length(states: Tensor, length: Tensor) -> Tensor:
    """length · x / ‖x‖ along the last dimension, at least in fp32 inside. The length broadcasts to [..., 1]."""
    wide = states.to(wide_dtype(states.dtype))
    if wants_formula():
        return length_formula(wide, length).to(states.dtype)
    result: Tensor = WithLength.apply(wide, length)
    return result.to(states.dtype)


def with_square(states: Tensor) -> Tensor:
    """[..., D] -> [x, ‖x‖²], [..., D + 1]."""
    result: Tensor = square_formula(states) if wants_formula() else WithSquare.apply(states)
    return result


def square_of(states: Tensor) -> Tensor:
    """‖x‖², [..., 1], at least in fp32."""
    if torch.is_grad_enabled() or wants_formula():
        wide = states.to(wide_dtype(states.dtype))
        return torch.linalg.vecdot(wide, wide)[..., None]
    return square_norm(states)


def with_column(states: Tensor, factor: Tensor, *, constant: float, copies: int) -> Tensor:
    """[..., D] -> factor · [x, constant, …], [..., D + copies]. The factor broadcasts to [..., 1]."""
    if wants_formula():
        return column_formula(states, factor, constant=constant, copies=copies)
    result: Tensor = WithColumn.apply(states, factor, constant, copies)
    return result


def in_parts(states: Tensor, dtype: torch.dtype, parts: tuple[int, ...]) -> Tensor:
    """Wide numbers as columns of `dtype`: part 0 is a number rounded, part 1 what that leaves, rounded, and so on."""
    if states.dtype == dtype:
        return states
    rounded = []
    for _ in range(max(parts) + 1):
        rounded.append(states.to(dtype))
        states = states - rounded[-1].to(states.dtype)
    return torch.cat([rounded[part] for part in parts], dim=-1)


def exact_pairs(dtype: torch.dtype) -> list[tuple[int, int]]:
    """Of which parts of two factors the product is made, so that it has the digits of fp32 or nearly."""
    num_parts = math.ceil(22 / (1 - math.log2(torch.finfo(dtype).eps)))  # 1 of fp32, 2 of fp16, 3 of bf16
    return [(first, second) for first in range(num_parts) for second in range(num_parts - first)]


def is_wide(dtype: torch.dtype) -> bool:
    return dtype.itemsize >= 4


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if is_wide(dtype) else torch.float32


def wants_formula() -> bool:
    if torch.compiler.is_compiling():
        return True
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def length_formula(states: Tensor, length: Tensor) -> Tensor:
    return states * (length * torch.rsqrt(torch.linalg.vecdot(states, states)[..., None] + NORM_EPSILON))


def square_formula(states: Tensor) -> Tensor:
    return torch.cat([states, torch.linalg.vecdot(states, states)[..., None]], dim=-1)


def column_formula(states: Tensor, factor: Tensor, *, constant: float, copies: int) -> Tensor:
    columns = (constant * factor).expand(*states.shape[:-1], copies)
    return torch.cat([states * factor, columns], dim=-1)


def gradient_of(formula: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor) -> tuple[Any, ...]:
    """The formula's own gradient, which has a gradient in turn."""
    inputs = tuple(tensor.view_as(tensor) for tensor in inputs)  # one may be computed from another: not followed
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(torch.autograd.grad(formula(*inputs), wanted, gradient, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)


def square_norm(states: Tensor) -> Tensor:
    """‖x‖², [..., 1], at least in fp32: of the ways to it the one without a temporary of every element. It has no
    gradient."""
    return torch.linalg.vector_norm(states, dim=-1, keepdim=True, dtype=wide_dtype(states.dtype)).square_()


class WithLength(Function):
    """`length_formula` with y = l x / ‖x‖ and its gradient (l / ‖x‖) (g - x̂ (x̂ · g))."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, length: Tensor) -> Tensor:
        inverse_norm = square_norm(states).add_(NORM_EPSILON).rsqrt_()
        ctx.save_for_backward(states, length, inverse_norm)
        return states * (length * inverse_norm)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        states, length, inverse_norm = ctx.saved_tensors
        if torch.is_grad_enabled():
            return gradient_of(length_formula, (states, length), gradient)
        if gradient.is_cpu and gradient.numel():
            return of_length(states, length, inverse_norm, gradient, wanted=ctx.needs_input_grad[1])
        along = torch.linalg.vecdot(gradient, states)[..., None] * inverse_norm
        factor = length * inverse_norm
        of_states = (gradient * factor).addcmul_(states, factor * along * inverse_norm, value=-1)
        return of_states, along.sum_to_size(length.shape).to(length.dtype) if ctx.needs_input_grad[1] else None


def of_length(
    states: Tensor, length: Tensor, inverse_norm: Tensor, gradient: Tensor, *, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `WithLength`, which are those of weight normalisation (Salimans 2016): torch has a kernel for it
    that reads and writes all numbers once."""
    order = sorted(range(states.ndim - 1), key=states.stride, reverse=True)  # as they lie in memory: no copies

    def rows(tensor: Tensor) -> Tensor:
        return tensor.permute(*order, -1).reshape(-1, tensor.shape[-1]).contiguous()

    lengths = length.to(states.dtype).expand_as(inverse_norm)
    of_rows, of_lengths = torch.ops.aten._weight_norm_interface_backward(
        rows(gradient), rows(states), rows(lengths), rows(inverse_norm.reciprocal()), 0
    )

    def shaped(result: Tensor, like: Tensor) -> Tensor:
        back = [order.index(dimension) for dimension in range(len(order))]
        return result.view(like.permute(*order, -1).shape).permute(*back, -1)

    if not wanted:
        return shaped(of_rows, states), None
    return shaped(of_rows, states), shaped(of_lengths, inverse_norm).sum_to_size(length.shape).to(length.dtype)


class WithColumn(Function):
    """`column_formula` with its gradients f g_x and Σ (g · [x, c, …]), without a copy that only gets a column."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, factor: Tensor, constant: float, copies: int) -> Tensor:
        ctx.save_for_backward(states, factor)
        ctx.constant = constant
        result = states.new_empty(*states.shape[:-1], states.shape[-1] + copies)
        torch.mul(states, factor, out=result[..., :-copies])
        result[..., -copies:] = constant * factor
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        states, factor = ctx.saved_tensors
        of_states, of_columns = gradient.split([states.shape[-1], gradient.shape[-1] - states.shape[-1]], dim=-1)
        along = torch.linalg.vecdot(of_states, states)[..., None] + ctx.constant * of_columns.sum(-1, keepdim=True)
        return of_states * factor, along.sum_to_size(factor.shape), None, None


class WithSquare(Function):
    """`square_formula` with its gradient g_x + 2 x g_square."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        ctx.save_for_backward(states)
        return torch.cat([states, square_norm(states)], dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors  # an input, so that this line has a gradient in turn
        return torch.addcmul(gradient[..., :-1], states, gradient[..., -1:], value=2)
