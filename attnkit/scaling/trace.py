"""A training step without values: what is alive when.

The model runs forward and backward on fake tensors, which have shapes, dtypes and lifetimes but
no memory; every storage is counted from its birth to its death. So dropout masks, recomputation, a backend's own
habits and a user's scorer are seen as they are. Whole models are not run: blocks of one kind add the same each, so two
and three of them give the line on which any number lies.
"""

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from attnkit.attention import Attention
from attnkit.attention.backends import eager_attention
from attnkit.attention.pairwise import inside_compiled_tile
from attnkit.models.blocks import FeedForward
from attnkit.models.language import LanguageModel, minimising
from attnkit.models.loss import TokenLoss
from attnkit.models.permutation import AttnKitForPermutationLM
from attnkit.scaling.choices import Logits, Recompute
from attnkit.scaling.measured import without_values
from attnkit.scaling.subject import Subject

SMALL, LARGER = 2, 3  # blocks of a stack in the two runs
SIDES = ("encoder", "decoder")
SCORES_NDIM = 4  # [B, H, Q, K]
TRACED_WHOLE = 4  # models of no more blocks are run as they are
REMEDY = (
    "another precision may be traced (experts need bf16, and sizes that are multiples of 8); its parameters and FLOPs "
    "can be counted"
)
WITH_TOKEN_LOSS = (
    "LMHeadModel",
    "ForCausalLM",
    "ForMaskedLM",
    "ForPreTraining",
    "ForConditionalGeneration",
    "Seq2SeqLM",
)


aten = torch.ops.aten


class Living(TorchDispatchMode):
    """Bytes of all storages that operations have made and that are still alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.known: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()
        self.picked: tuple[torch.Size, int] | None = None  # the shape of a mask, and how many of it are true
        self.inside = False  # whether an attention or feed-forward layer is running
        self.current = 0
        self.gradients = 0  # the part of it that are gradients of weights
        self.in_parts = 0  # the part of it that was made inside attention and feed-forward layers
        self.peak = Peak()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = self.pick(func, args) if self.is_picking(func, args) else func(*args, **(kwargs or {}))
        fused = inside_compiled_tile.get()
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and not (fused and leaf.ndim > SCORES_NDIM):
                self.meet(leaf)
        return out

    def is_picking(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether an operation picks what a mask without values says, of which it is known how much that is."""
        if self.picked is None or func not in (aten.index.Tensor, aten.nonzero.default):
            return False
        mask = args[0] if func is aten.nonzero.default else args[1][0]
        return mask is not None and mask.dtype == torch.bool and mask.shape == self.picked[0]

    def pick(self, func: Any, args: tuple[Any, ...]) -> Tensor:
        """What such an operation returns."""
        assert self.picked is not None
        shape, count = self.picked
        if func is aten.nonzero.default:
            return args[0].new_empty(count, len(shape), dtype=torch.long)
        return args[0].new_empty(count, *args[0].shape[len(shape) :])

    def meet(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it dies."""
        storage = tensor.untyped_storage()
        if storage in self.known:
            return
        size = storage.nbytes()
        self.known[storage] = self.inside
        self.current += size
        self.in_parts += size * self.inside
        if self.current > self.peak.total:
            self.peak = self.now()
        weakref.finalize(storage, self.leave, size, self.inside)

    def leave(self, size: int, inside: bool) -> None:
        self.current -= size
        self.in_parts -= size * inside

    def now(self) -> "Peak":
        """What is alive at this moment."""
        return Peak(total=self.current, gradients=self.gradients, in_parts=self.in_parts)

    def add_gradient(self, parameter: Tensor) -> None:
        """Note that a weight has got its gradient."""
        self.gradients += parameter.untyped_storage().nbytes()

    def take_peak(self) -> "Peak":
        """The most bytes since the last call."""
        peak, self.peak = self.peak, self.now()
        return peak


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Bytes alive at the worst moment of a phase."""

    total: int = 0
    gradients: int = 0
    in_parts: int = 0

    def move(self, start: "Peak", end: "Peak", factor: float) -> "Peak":
        """self + factor · (end - start)."""
        mine, first, last = vars(self), vars(start), vars(end)
        return Peak(**{name: mine[name] + round(factor * (last[name] - first[name])) for name in mine})


@dataclass(frozen=True, kw_only=True)
class Step:
    """Bytes of one training step. `peaks` are the most bytes alive in each of its phases, in the order of time."""

    weights: int
    buffers: int
    inputs: int
    activations: int  # what autograd keeps for backward at the end of forward, without weights
    in_parts: int  # the part of it that is made inside attention and feed-forward layers
    outputs: int  # logits that the caller holds and autograd does not
    peaks: dict[str, Peak]

    def move(self, start: "Step", end: "Step", factor: float) -> "Step":
        """self + factor · (end - start), in every figure."""
        mine, first, last = vars(self), vars(start), vars(end)
        line = {name: mine[name] + round(factor * (last[name] - first[name])) for name in mine if name != "peaks"}
        peaks = {
            name: peak.move(start.peaks[name], end.peaks[name], factor)
            for name, peak in self.peaks.items()
            if name in start.peaks and name in end.peaks
        }
        return Step(**line, peaks=peaks)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a model is trained, as far as memory depends on it."""

    seq_len: int
    batch_size: int = 1
    target_len: int = 0  # tokens of the decoder, where there are two stacks
    predicted: int = 0  # positions of a row with a label
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    backend: str = "eager"
    recompute: Recompute = "none"
    logits: Logits = "whole"
    training: bool = True


def trace_step(subject: Subject, setting: Setting) -> Step:
    """The step of the whole model, from runs of two and three blocks per stack."""
    config = subject.config
    stacks = ["num_hidden_layers"] + (["num_decoder_layers"] if has_decoder_count(config) else [])
    counts = {name: getattr(config, name) for name in stacks}
    if sum(counts.values()) <= TRACED_WHOLE or has_unlike_blocks(subject):
        return run_step(subject, setting)
    small = {name: min(SMALL, count) for name, count in counts.items()}
    base = run_step(with_layers(subject, small), setting)
    step = base
    for name, count in counts.items():
        if count > SMALL:
            larger = run_step(with_layers(subject, {**small, name: LARGER}), setting)
            step = step.move(base, larger, count - SMALL)
    return step


def has_unlike_blocks(subject: Subject) -> bool:
    """Whether the blocks of a stack differ, so that two and three of them say nothing of the others."""
    if subject.ours is not None:
        return bool(subject.ours.layer_scorers or subject.ours.layer_patterns)
    return any(
        len({tuple((name, it.shape) for name, it in block.named_parameters()) for block in blocks}) > 1
        for _, blocks in block_lists(subject.build_without_memory())
    )


def has_decoder_count(config: PreTrainedConfig) -> bool:
    return "num_decoder_layers" in config.to_dict() and config.to_dict()["num_decoder_layers"] is not None


def with_layers(subject: Subject, counts: dict[str, int]) -> Subject:
    """The same model with other numbers of blocks."""
    config = copy.deepcopy(subject.config)
    for name, count in counts.items():
        setattr(config, name, count)
    if "layer_types" in config.to_dict() and config.to_dict()["layer_types"]:
        config.layer_types = config.layer_types[: counts["num_hidden_layers"]]
    return Subject(config=config, head=subject.head)


def run_step(subject: Subject, setting: Setting) -> Step:
    """Run one step on fake tensors. Raises `UsageError` where a model needs values."""
    living, loss = Living(), TokenLoss() if setting.logits == "chunked" else None
    with (
        without_values(subject, tokens=setting.seq_len, remedy=REMEDY),
        living,
        torch.set_grad_enabled(setting.training),
    ):
        model = subject.build(backend=setting.backend, dtype=setting.dtype).train(setting.training)
        with minimising(loss, model):
            return Run(model, setting, living).step()


class Run:
    """One step of a fake model."""

    def __init__(self, model: PreTrainedModel, setting: Setting, living: Living) -> None:
        self.model = model
        self.setting = setting
        self.living = living
        self.peaks: dict[str, Peak] = {}
        self.phase = "forward"

    def step(self) -> Step:
        model, setting = self.model, self.setting
        if setting.recompute == "full":
            model.config.use_cache = False
            model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        weights = size_of(list(model.parameters()))
        buffers = size_of([buffer for buffer in model.buffers() if buffer.numel() > 1])
        inputs = self.inputs()
        given = size_of([value for value in inputs.values() if isinstance(value, Tensor)])
        return self.pass_through(inputs, weights=weights, buffers=buffers, given=given)

    def pass_through(self, inputs: dict[str, Any], *, weights: int, buffers: int, given: int) -> Step:
        static = self.living.current
        self.living.take_peak()
        saved: dict[int, int] = {}
        in_parts: dict[int, int] = {}
        own = {id_of(parameter) for parameter in self.model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                saved[storage._cdata] = storage.nbytes()
                if self.living.known.get(storage):
                    in_parts[storage._cdata] = storage.nbytes()
            return tensor

        autocast = nullcontext() if self.setting.autocast is None else torch.autocast("cpu", self.setting.autocast)
        with self.watched_blocks(), autocast, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = self.model(**inputs)
        tensors = [value for value in out.values() if isinstance(value, Tensor)]
        loss = out.loss if "loss" in out else torch.stack([value.sum() for value in tensors]).sum()
        results = [value for name, value in out.items() if isinstance(value, Tensor) and name != "loss"]
        held = {id_of(value): value.untyped_storage().nbytes() for value in results}
        outputs = sum(size for name, size in held.items() if name not in saved)
        activations = self.living.current - static - outputs
        if self.setting.training:
            del tensors, results
            loss.backward()
        self.end_phase("end")
        return Step(
            weights=weights,
            buffers=buffers,
            inputs=given,
            activations=activations,
            in_parts=sum(in_parts.values()),
            outputs=outputs,
            peaks=self.peaks,
        )

    def end_phase(self, following: str) -> None:
        self.peaks[self.phase] = self.living.take_peak()
        self.phase = following

    @contextmanager
    def watched_blocks(self) -> Iterator[None]:
        """Begin a phase where the gradient reaches the output of the last and of the first block of a stack."""
        handles = []
        for name, blocks in block_lists(self.model):
            for index in {0, len(blocks) - 1}:
                label = f"backward of {name}, " + ("first block" if index == 0 else "last block")
                handles.append(blocks[index].register_forward_hook(self.marker(label)))
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.living.add_gradient)
        for module in self.model.modules():
            if isinstance(module, Attention) and self.setting.recompute == "selective":
                handles.append(module.register_forward_pre_hook(recompute_scores, with_kwargs=True))
            if isinstance(module, Attention | FeedForward):
                handles.append(module.register_forward_pre_hook(lambda *_: self.enter(True)))
                handles.append(module.register_forward_hook(lambda *_: self.enter(False)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def enter(self, inside: bool) -> None:
        self.living.inside = inside

    def marker(self, label: str) -> Any:
        def mark(module: nn.Module, args: Any, out: Any) -> None:
            states = out[0] if isinstance(out, tuple) else out
            if states.requires_grad:
                states.register_hook(lambda gradient: self.end_phase(label))

        return mark

    def inputs(self) -> dict[str, Any]:
        """Token ids and labels for the loss that the head has."""
        setting, config = self.setting, self.model.config
        ids = torch.zeros(setting.batch_size, setting.seq_len, dtype=torch.long)
        inputs: dict[str, Any] = {"input_ids": ids}
        if "use_cache" in config.to_dict():
            inputs["use_cache"] = False
        name = type(self.model).__name__
        if isinstance(self.model, AttnKitForPermutationLM):
            inputs["target_mapping"] = torch.zeros(setting.batch_size, setting.predicted, setting.seq_len)
            inputs["labels"] = torch.zeros(setting.batch_size, setting.predicted, dtype=torch.long)
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.zeros(setting.batch_size, setting.target_len, dtype=torch.long)
        if name.endswith(WITH_TOKEN_LOSS):
            inputs["labels"] = inputs.get("decoder_input_ids", ids).clone()
        if setting.logits == "chunked":
            labels = inputs["labels"]
            assert isinstance(self.model, LanguageModel)
            most = labels.shape[1] - int(self.model.predicts_next)
            self.living.picked = labels.shape, len(labels) * min(setting.predicted, most)
        return inputs


def recompute_scores(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Let an attention layer compute its scores and weights once more in backward, in place of keeping them
    (Korthikanti 2022, section 5)."""
    backend = kwargs.get("backend", eager_attention)

    def attend(module: nn.Module, *tensors: Tensor | None, **options: Any) -> Any:
        chosen = partial(backend, module, **options)
        return checkpoint(chosen, *tensors, use_reentrant=False, preserve_rng_state=False)

    return args, kwargs | {"backend": attend}


def block_lists(model: PreTrainedModel) -> list[tuple[str, nn.ModuleList]]:
    """The lists of blocks, the encoder's before the decoder's."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    stacks = [(name, blocks) for name, blocks in lists if len({type(block) for block in blocks}) == 1]
    outer = [it for it in stacks if not any(it[0].startswith(f"{other[0]}.") for other in stacks if other is not it)]
    sides = [(next((side for side in SIDES if side in name), None), blocks) for name, blocks in outer]
    return [(side or ("body" if len(sides) == 1 else SIDES[0]), blocks) for side, blocks in sides]


def id_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def size_of(tensors: list[Tensor]) -> int:
    """Bytes of the storages of some tensors, each once."""
    return sum({id_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
