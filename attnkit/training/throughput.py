"""How much of what its devices can do at best a run makes use of."""

from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from attnkit.models.auto import AUTO_CLASSES
from attnkit.scaling.flops import count_flops
from attnkit.scaling.hardware import device_called
from attnkit.scaling.subject import HEADS
from attnkit.training.batches import MicroBatch, count_tokens
from attnkit.training.settings import TrainingConfig


class Utilization:
    """MFU = FLOPs of a token · tokens per second / (processes · peak FLOP/s of a device)

    with the FLOPs of the passes as `attnkit.scaling.count_flops` has them for the first batch of the run, activations
    computed anew left out (Chowdhery 2022, appendix B). It is known where the peak is (`training.peak_flops`, or a GPU
    of the catalogue) and all of an AttnKit model is trained.
    """

    def __init__(self, model: nn.Module, *, training: TrainingConfig, accelerator: Accelerator) -> None:
        self.model = model
        self.num_processes = accelerator.num_processes
        self.peak = training.peak_flops or known_peak(accelerator)
        self.flops_per_token: float | None = None

    def see(self, batch: MicroBatch) -> None:
        """Count the FLOPs of the run's first batch."""
        if self.peak is not None and self.flops_per_token is None:
            self.flops_per_token = flops_per_token(self.model, batch)

    def of(self, tokens_per_second: float) -> float | None:
        """The utilization at a speed of all processes together; None where it is not known."""
        if self.peak is None or not self.flops_per_token:
            return None
        return self.flops_per_token * tokens_per_second / (self.num_processes * self.peak)


def known_peak(accelerator: Accelerator) -> float | None:
    """FLOP/s of this process's GPU at the precision of its products; None for a device that is in no catalogue."""
    if accelerator.device.type != "cuda":
        return None
    device = device_called(torch.cuda.get_device_name(accelerator.device))
    exact = "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    precision = exact if accelerator.mixed_precision == "no" else accelerator.mixed_precision
    return None if device is None else device.peak.get(precision)


def flops_per_token(model: Any, batch: MicroBatch) -> float:
    """FLOPs of both passes over a batch for each token that the model reads; 0 where they are not known."""
    heads = [name for name, auto in HEADS.items() if type(model) is AUTO_CLASSES.get(auto, auto)]
    trained = all(parameter.requires_grad for parameter in model.parameters())
    if not heads or not trained:
        return 0.0
    ids, labels = batch.inputs["input_ids"], batch.inputs.get("labels")
    num_rows, length = ids.flatten(0, -2).shape
    work = count_flops(
        model.config,
        head=heads[0],
        seq_len=length,
        batch_size=num_rows,
        target_len=labels.shape[1] if labels is not None and model.config.is_encoder_decoder else None,
        predicted=max(1, round(batch.num_labels["labels"] / num_rows)),
    )
    return work.total / count_tokens(batch.inputs)
