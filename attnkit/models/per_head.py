"""How transformers divides parameters that an attention layer has once per head."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from transformers.distributed.parallel_utils import _use_local_dtensor_params
from transformers.distributed.tensor_parallel import TensorParallelLayer


class PerHead(TensorParallelLayer):
    """An attention layer whose scorer has parameters with heads first: each process has those of its own heads."""

    def shard_param(self, module: nn.Module, param: str, mesh: Any) -> None:
        whole = module._parameters[param]
        local = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
        module._parameters[param] = nn.Parameter(local, requires_grad=whole.requires_grad)

    @contextlib.contextmanager
    def context_around_forward(self, module: nn.Module, mesh: Any) -> Iterator[None]:
        with _use_local_dtensor_params(module.scorer):
            yield
