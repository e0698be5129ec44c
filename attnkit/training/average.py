"""A moving average of the weights, which often predicts better than any of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from attnkit.training.shards import share_out


class WeightAverage:
    """average ← d · average + (1 - d) · weights after each step t, with d = min(`decay`, (1 + t) / (10 + t)).

    The smaller d of the first steps lets go of the random weights at the start (Kingma 2015 corrects for them instead).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.weights = {name: p.detach().clone() for name, p in self.parameters.items()}

    def update(self, step: int) -> None:
        """Take the weights after optimizer step `step` in."""
        average = get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))
        for is_shared in (False, True):  # one kernel takes no others with those that processes share out
            names = [name for name, weight in self.weights.items() if isinstance(weight, DTensor) == is_shared]
            if names:
                average([self.weights[name] for name in names], [self.parameters[name] for name in names], None)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go back to an average of the same parameters."""
        for name, tensor in self.weights.items():
            tensor.copy_(share_out(weights[name], tensor))

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Give the model the average for good."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.weights[name])

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Give the model the average for a while."""
        before = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self.copy_to_model()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(before[name])
