"""Softmax attention on CPUs for mapped queries and keys, which may be wider or narrower than values.

`cpu_kernel_source` computes it, forward and backward, and is compiled when it is first needed. Where it
cannot be, torch's kernel computes the same, which takes equal widths only: the narrower tensors get zeros up to the
width of the others, as on other devices.

Shapes: B batch, H query heads, G key-value heads, Q queries, K keys, M mapped width, V value width.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnkit.attention.cpu_kernel_source import SOURCE
from attnkit.attention.scorers.maps import wants_formula

OPTIONS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared"]
PROCESSORS = {  # of those that torch tells apart: what a compiler makes for each, and the block that fits its registers
    "AVX2": ("-march=x86-64-v3", "-DVECTOR_BYTES=32", "-DVECTORS=2"),
    "AVX512": ("-march=x86-64-v4", "-DVECTOR_BYTES=64", "-DVECTORS=4"),
}
DTYPES = {torch.float32: "float32", torch.float64: "float64"}

logger = logging.getLogger(__name__)


def cpu_attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, *, scaling: float, causal: bool
) -> Tensor:
    """softmax(scaling · query · key) · value: [B, H, Q, M], [B, G, K, M] and [B, G, K, V] -> [B, Q, H, V].

    `allowed` broadcasts to [B, H, Q, K] and is True where query and key may meet; `causal` lets query i meet keys up to
    i. A query without keys gets zeros. There is a first derivative, no second one. Only for what `takes` says.
    """
    output: Tensor = CpuAttention.apply(query, key, value, allowed, scaling, causal)
    return output.transpose(1, 2)


def takes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    *,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    **_: float,
) -> bool:
    """Whether the kernel computes this: at least fp32, on a CPU, without a bias, dropout or anyone who follows the
    single operations, as a compiler, a transform or a counter does."""
    tensors = [query, key, value] if allowed is None else [query, key, value, allowed]
    return (
        position_bias is None
        and dropout == 0.0
        and not (wants_formula() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack())
        and all(type(tensor) is Tensor and tensor.is_cpu for tensor in tensors)
        and query.dtype in DTYPES
        and query.dtype == key.dtype == value.dtype
        and (allowed is None or allowed.dtype == torch.bool)
        and library() is not None
    )


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled kernel; None where there can be none, and why is logged."""
    processor, compiler = torch.backends.cpu.get_cpu_capability(), shutil.which(os.environ.get("CXX", "c++"))
    try:
        if processor in PROCESSORS and compiler:
            return ctypes.CDLL(str(compiled([compiler, *OPTIONS, *PROCESSORS[processor]])))
        reason = "no C++ compiler is installed" if compiler is None else f"it is written for {' and '.join(PROCESSORS)}"
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"{error}\n{error.stderr}" if isinstance(error, subprocess.CalledProcessError) else str(error)
    logger.warning("attention of mapped queries and keys takes longer, as it has no kernel of its own here: %s", reason)
    return None


def compiled(command: list[str]) -> Path:
    """The library that the command makes of the source, made once per user."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnkit"
    key = hashlib.sha256("\n".join([SOURCE, *command]).encode()).hexdigest()
    path = folder / f"cpu_kernel-{key[:16]}.so"
    seal = path.with_suffix(".sha256")
    if not (path.exists() and seal.exists() and seal.read_text() == digest(path)):  # loading half of one is fatal
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:  # another process may compile it at the same time
            made, source = Path(own) / path.name, Path(own) / "cpu_kernel.cpp"
            source.write_text(SOURCE, encoding="utf-8")
            subprocess.run([*command, str(source), "-o", str(made)], check=True, capture_output=True, text=True)
            sealed = made.with_suffix(".sha256")
            sealed.write_text(digest(made))
            made.replace(path)
            sealed.replace(seal)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


Strides = ctypes.c_int64 * 3


class Problem(ctypes.Structure):
    """Sizes, and strides of batch, head and token, as `struct Problem` in the source has them."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "groups", "queries", "keys", "width", "value_width")),
        *((name, ctypes.c_int64) for name in ("causal", "threads")),
        *((name, Strides) for name in ("query", "key", "value", "mask", "output")),
        *((name, Strides) for name in ("gain", "of_query", "of_key", "of_value")),
        ("scale", ctypes.c_double),
    ]


def strides(states: Tensor) -> Any:
    return Strides(*states.stride()[:3])


def whole_rows(states: Tensor) -> Tensor:
    """The states with one token's numbers side by side, as the kernel reads them."""
    return states if states.stride(-1) == 1 or states.shape[-1] == 1 else states.contiguous()


def call(direction: str, problem: Problem, *tensors: Tensor | None) -> None:
    """Run the kernel on its tensors, in the order of `struct Tensors` in the source."""
    kernel = library()
    assert kernel is not None, "takes() lets nothing pass where there is no kernel"
    dtype = next(DTYPES[tensor.dtype] for tensor in tensors if tensor is not None)
    pointers = (ctypes.c_void_p * 10)(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))
    kernel[f"{direction}_{dtype}"](ctypes.byref(problem), pointers)


class CpuAttention(torch.autograd.Function):
    """The kernel and its gradient, [B, H, Q, V]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scaling: float, causal: bool
    ) -> Tensor:
        query, key, value = (whole_rows(states) for states in (query, key, value))
        (batch, heads, queries, width), (groups, keys), value_width = query.shape, key.shape[1:3], value.shape[-1]
        output = value.new_empty(batch, queries, heads, value_width).transpose(1, 2)
        log_total = value.new_empty(batch, heads, queries)
        allowed = None if allowed is None else whole_rows(allowed.expand(batch, heads, queries, keys))
        ctx.problem = Problem(
            batch=batch,
            heads=heads,
            groups=groups,
            queries=queries,
            keys=keys,
            width=width,
            value_width=value_width,
            causal=causal,
            threads=torch.get_num_threads(),
            query=strides(query),
            key=strides(key),
            value=strides(value),
            mask=Strides() if allowed is None else strides(allowed),
            output=strides(output),
            scale=scaling,
        )
        call("forward", ctx.problem, query, key, value, allowed, output, log_total)
        ctx.save_for_backward(query, key, value, allowed, output, log_total)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gain: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: checkpointing gives them back only once
        query, key, value = saved[:3]
        gain, problem = whole_rows(gain), ctx.problem
        grads = of_query, of_key, of_value = [torch.empty_like(states) for states in (query, key, value)]
        problem.gain, problem.of_query = strides(gain), strides(of_query)
        problem.of_key, problem.of_value = strides(of_key), strides(of_value)
        call("backward", problem, *saved, gain, *grads)
        return *grads, None, None, None
