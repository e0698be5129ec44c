"""The settings of `training`, free of heavy imports."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

from attnkit.errors import batch_problems, nearest, seed_problems

Optimizer = Literal["adamw", "muon", "adafactor", "lion"]
Transfer = Literal["mup", "depth-mup", "completep"]
Schedule = Literal["cosine", "linear", "constant", "inverse_sqrt", "warmup_stable_decay"]
Precision = Literal["no", "bf16", "fp16"]
MAX_STEPS = 10**9
"""Of an optimizer: at a thousand steps a second they would take eleven days."""


@dataclass(kw_only=True)
class TrainingConfig:
    """How a model is trained, whatever it is trained for."""

    output_dir: str = "runs/attnkit"
    """Folder of the run: checkpoints, log, resolved config and the final model."""
    max_steps: int | None = None
    """Optimizer steps; null for 1000. Rows that are streamed have no end of their own: give it there."""
    per_device_batch_size: int = 16
    """Rows per process and forward pass."""
    gradient_accumulation_steps: int = 1
    """Forward passes per optimizer step."""
    initial_accumulation_steps: int = 1
    """Forward passes per optimizer step at the start, where there is a ramp."""
    ramp_steps: int = 0
    """Optimizer steps over which the passes per step grow from `initial_accumulation_steps` to
    `gradient_accumulation_steps`; 0 for no ramp."""
    optimizer: Optimizer = "adamw"
    """What makes an update of a gradient; `lion` of the extra `lion`."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    transfer: Transfer | None = None
    """Rule by which a learning rate that was tuned on a smaller model, the base, serves this one; null for none."""
    base_hidden_size: int | None = None
    """`transfer`: `model.hidden_size` of the base."""
    base_num_hidden_layers: int | None = None
    """`transfer`: `model.num_hidden_layers` of the base."""
    schedule: Schedule = "cosine"
    """How the learning rate moves after the warm-up. `cosine` and `linear` fall until `max_steps`, `inverse_sqrt` falls
    without an end, `constant` stays at the peak; `warmup_stable_decay` stays there too, and then falls by 1 - √progress
    over `decay_steps`."""
    warmup_steps: int = 100
    """Optimizer steps of linear warm-up from zero."""
    decay_steps: int | None = None
    """`warmup_stable_decay`: optimizer steps of the decay at the end; a fifth of `max_steps` without it."""
    min_learning_rate: float = 0.0
    """Learning rate at the end of the schedule; of `inverse_sqrt` the lowest after the warm-up; `constant` has none."""
    weight_decay: float = 0.1
    """Decoupled weight decay of the matrices (Loshchilov 2019); biases, norms and vectors have none."""
    adam_beta1: float = 0.9
    """`adamw`, also for what `muon` leaves to it: decay of the mean of gradients."""
    adam_beta2: float = 0.95
    """`adamw`, also for what `muon` leaves to it: decay of the mean of their squares."""
    adam_epsilon: float = 1e-8
    """`adamw`, also for what `muon` leaves to it: added to the root of that mean."""
    momentum: float = 0.95
    """`muon`: decay of the mean of gradients of hidden matrices."""
    label_smoothing: float = 0.0
    """Part of the target that goes to all tokens alike, in the training loss of language models (Szegedy 2016)."""
    z_loss: float = 0.0
    """Weight of log² Z in the training loss of language models (Chowdhery 2022)."""
    layer_decay: float = 1.0
    """The rate of each layer is that of the one after it times this (Howard 2018); 1 for one rate."""
    frozen_layers: int = 0
    """So many layers nearest to the input, and the embeddings, do not learn."""
    group_by_length: bool = False
    """Rows of one step have about the same length, so that little of a batch is padding."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; null for no clipping."""
    max_skipped_steps: int = 10
    """Optimizer steps in a row that may be skipped since the loss or the gradient is not finite; then the run stops."""
    spike_factor: float | None = None
    """Also skip steps whose gradient has more than so many times the usual norm; null to make them all the same."""
    ema_decay: float | None = None
    """Keep a moving average of the weights with this decay: it is what is evaluated and delivered; null for none."""
    mixed_precision: Precision | None = None
    """Precision of the passes; the weights are in fp32, whatever those of a saved model are; null for what the launcher
    says."""
    compile_backend: str | None = None
    """Compile the model with this backend of torch.compile, e.g. `inductor`; null for no compiling."""
    activation_checkpointing: bool = False
    """Compute activations anew in the backward pass instead of keeping them: less memory, a third more work."""
    eval_steps: int = 200
    """Optimizer steps between evaluations."""
    save_steps: int = 500
    """Optimizer steps between checkpoints."""
    keep_last: int = 2
    """Checkpoints that are kept, besides the best one."""
    keep_every: int | None = None
    """Also keep the checkpoints of every so many optimizer steps; null for none of them."""
    log_steps: int = 10
    """Optimizer steps between log lines."""
    peak_flops: float | None = None
    """FLOP/s of one device at best, of which the log says how much is used (`mfu`); null for that of a known GPU."""
    seed: int = 0
    """Seed of weights, data order, masks and dropout."""
    best_metric: str = "loss"
    """The metric of an evaluation that decides which checkpoint is the best."""
    best_mode: Literal["min", "max"] = "min"
    """Whether the best value of `best_metric` is the lowest or the highest."""
    patience: int | None = None
    """Stop after so many evaluations in a row without a new best; null to go on to `max_steps`."""
    num_processes: int | None = None
    """Processes that this run was planned for; the run stops if it has another number."""
    timeout: int = 3600  # seconds
    """How long a process waits for another, e.g. for the one that trains the tokenizer, before it gives up."""
    resume: bool = False
    """Go on from the newest complete checkpoint in `output_dir`."""
    from_checkpoint: str | None = None
    """Begin at this checkpoint of another run, `.../checkpoints/step-…`: with its optimizer, counters and position."""
    push_to_hub: str | None = None
    """Upload the trained model with its card to this repository of the hub, `owner/name`; null for no upload."""
    overwrite: bool = False
    """Delete the run that `output_dir` already holds."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line for each."""
        at_least_one = [
            "max_steps",
            "eval_steps",
            "save_steps",
            "keep_last",
            "log_steps",
            "decay_steps",
            "patience",
            "num_processes",
            "timeout",
            "base_hidden_size",
            "base_num_hidden_layers",
            "keep_every",
        ]
        batches = ["per_device_batch_size", "gradient_accumulation_steps", "initial_accumulation_steps"]
        positive = ["learning_rate", "adam_epsilon", "max_grad_norm", "spike_factor", "peak_flops"]
        not_negative = [
            "warmup_steps",
            "ramp_steps",
            "max_skipped_steps",
            "min_learning_rate",
            "weight_decay",
            "z_loss",
            "frozen_layers",
        ]
        rules: list[tuple[list[str], str, Callable[[float], bool]]] = [
            (at_least_one, "must be 1 or more", lambda value: value >= 1),
            (positive, "must be more than 0", lambda value: value > 0),
            (not_negative, "must be 0 or more", lambda value: value >= 0),
            (
                ["adam_beta1", "adam_beta2", "momentum", "label_smoothing", "ema_decay"],
                "must be at least 0 and less than 1",
                lambda value: 0 <= value < 1,
            ),
        ]
        rules.append((["layer_decay"], "must be more than 0 and at most 1", lambda value: 0 < value <= 1))
        values = vars(self)
        found = [
            f"training.{name}: {values[name]} {rule}"
            for names, rule, holds in rules
            for name in names
            if values[name] is not None and not holds(values[name])
        ]
        found += [problem for name in batches for problem in batch_problems(f"training.{name}", values[name])]
        if self.num_steps > MAX_STEPS:
            found.append(f"training.max_steps: {self.num_steps} must be at most {MAX_STEPS}")
        return found + self._unknown() + self._contradictions()

    def _unknown(self) -> list[str]:
        """A line for each setting that is none of the names it may be."""
        found = []
        names = {"optimizer": Optimizer, "schedule": Schedule, "transfer": Transfer, "mixed_precision": Precision}
        for name, kinds in names.items():
            value = vars(self)[name]
            if value is not None and value not in get_args(kinds):
                near = nearest(value, get_args(kinds))
                found.append(f"training.{name}: unknown {name.replace('_', ' ')} {value!r}: {near}")
        if self.best_mode not in ("min", "max"):
            found.append(f"training.best_mode: {self.best_mode!r} must be 'min' or 'max'")
        return found

    def _contradictions(self) -> list[str]:
        """A line for each setting that does not go with another."""
        found = []
        if len({self.transfer is None, self.base_hidden_size is None, self.base_num_hidden_layers is None}) == 2:
            found.append(
                "training.transfer, training.base_hidden_size and training.base_num_hidden_layers go together: give "
                "all or none"
            )
        if self.optimizer == "lion" and find_spec("lion_pytorch") is None:
            found.append(
                "training.optimizer: 'lion' needs the package 'lion-pytorch'; install the extra: pip install "
                "'attnkit[lion]'"
            )
        if self.transfer is not None and self.optimizer != "adamw":
            found.append(f"training.transfer: its rules are those of optimizer 'adamw', not {self.optimizer!r}")
        if self.min_learning_rate >= self.learning_rate > 0:
            found.append(
                f"training.min_learning_rate: {self.min_learning_rate} must be less than training.learning_rate: "
                f"{self.learning_rate}"
            )
        if self.schedule == "constant" and self.min_learning_rate > 0:
            found.append(
                f"training.min_learning_rate: {self.min_learning_rate} is never reached by schedule 'constant': leave "
                "it out, or choose another training.schedule"
            )
        if self.schedule == "warmup_stable_decay" and self.warmup_steps + self.num_decay_steps > self.num_steps:
            found.append(
                f"training.warmup_steps: {self.warmup_steps} and training.decay_steps: {self.num_decay_steps} are "
                f"together more than training.max_steps: {self.num_steps}"
            )
        found += seed_problems("training.seed", self.seed)
        if not self.output_dir.strip():
            found.append("training.output_dir: is empty: name a folder")
        if self.ramp_steps and self.initial_accumulation_steps > self.gradient_accumulation_steps:
            found.append(
                f"training.initial_accumulation_steps: {self.initial_accumulation_steps} is more than "
                f"training.gradient_accumulation_steps: {self.gradient_accumulation_steps}"
            )
        if self.resume and self.overwrite:
            found.append("training.resume and training.overwrite exclude each other: set one of them to false")
        return found

    @property
    def num_steps(self) -> int:
        """`max_steps`, or its default."""
        return 1000 if self.max_steps is None else self.max_steps

    @property
    def num_decay_steps(self) -> int:
        """`decay_steps`, or its default."""
        return self.num_steps // 5 if self.decay_steps is None else self.decay_steps
