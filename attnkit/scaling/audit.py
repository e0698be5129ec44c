"""What other tools would answer about a model, from formulas of our own, and why it differs.

Nothing of those tools is run or copied here: each answer restates what their published code computes, for a decoder.

Symbols: B batch, s tokens, L layers, d hidden size, f inner width, V vocabulary, N parameters.
"""

from dataclasses import dataclass

from attnkit.errors import UsageError
from attnkit.models.checks import obstacles
from attnkit.scaling.choices import Recompute
from attnkit.scaling.flops import FlopCount, count_flops
from attnkit.scaling.memory import MemoryEstimate, estimate_memory
from attnkit.scaling.parameters import ParameterCount, parameters_by_component
from attnkit.scaling.subject import Config, FilledConfig, read_subject

SMALLEST_GPT_2 = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "hidden_act": "gelu_new",
    "position": "learned",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One tool's answer beside ours."""

    tool: str
    question: str
    theirs: float | None
    """None where the tool gives no answer."""
    ours: float
    why: str

    @property
    def ratio(self) -> float | None:
        """Theirs over ours."""
        return None if self.theirs is None else self.theirs / self.ours


def audit(config: Config, *, seq_len: int | None = None, batch_size: int = 1) -> list[Finding]:
    """The findings for one decoder. Raises `UsageError` for a config that is none, because the tools know no others."""
    subject = read_subject(config)
    found = subject.ours
    if found is None or found.architecture != "decoder":
        raise UsageError("the audit compares decoders of attnkit: the other tools know no other models")
    tokens = found.max_position_embeddings if seq_len is None else seq_len
    parameters = parameters_by_component(found)
    flops = count_flops(found, seq_len=tokens, batch_size=batch_size)
    return [
        *flop_findings(found, parameters, flops, tokens=tokens, batch_size=batch_size),
        *parameter_findings(found, parameters),
        *state_findings(parameters),
        *activation_findings(found, tokens=tokens, batch_size=batch_size),
    ]


def flop_findings(
    config: FilledConfig, parameters: ParameterCount, flops: FlopCount, *, tokens: int, batch_size: int
) -> list[Finding]:
    """Training FLOPs of a batch."""
    head, training = flops.components["head"], "training FLOPs of a batch"
    pairs = ("attention.scores", "attention.values")
    attention = sum(flops.components[name].total for name in pairs if name in flops.components)
    without_embeddings = parameters.total - sum(
        count for name, count in parameters.components.items() if name.startswith("embeddings")
    )
    causal = count_flops(config, seq_len=tokens, batch_size=batch_size, convention="causal_useful").total
    return [
        Finding(
            tool="EleutherAI/cookbook calc_transformer_flops",
            question=training,
            theirs=float(flops.total - 2 * head.forward),
            ours=float(flops.total),
            why="counts the logits' product once, in forward, and not in backward",
        ),
        Finding(
            tool="calflops",
            question=training,
            theirs=float(flops.total - attention),
            ours=float(flops.total),
            why="sees modules, and the two products of attention belong to none",
        ),
        Finding(
            tool="torch FlopCounterMode on CPU, SDPA",
            question=training,
            theirs=float(flops.total - attention),
            ours=float(flops.total),
            why="has no formula for the CPU's fused attention and counts 0 for it",
        ),
        Finding(
            tool="transformers floating_point_ops",
            question=training,
            theirs=6.0 * tokens * batch_size * without_embeddings,
            ours=float(flops.total),
            why="6·N·D without any embedding: a tied output embedding multiplies, but is left out, and so is attention",
        ),
        Finding(
            tool="the convention 'causal_useful'",
            question=training,
            theirs=float(causal),
            ours=float(flops.total),
            why="not a fault: half of the pairs of a causal model are computed by eager attention and thrown away",
        ),
    ]


def parameter_findings(config: FilledConfig, parameters: ParameterCount) -> list[Finding]:
    """Parameters."""
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tables = config.vocab_size * width
    biases = layers * (4 * width + inner + width) if config.attention_bias and config.mlp_bias else 0
    return [
        Finding(
            tool="EleutherAI/cookbook calc_transformer_params",
            question="parameters",
            theirs=float(parameters.total + (tables if config.tie_word_embeddings else 0)),
            ours=float(parameters.total),
            why="always counts an output embedding of its own",
        ),
        Finding(
            tool="Megatron-LM theoretical_memory_usage",
            question="parameters",
            theirs=float(parameters.total - biases),
            ours=float(parameters.total),
            why="leaves out the biases of all linear layers",
        ),
    ]


def state_findings(parameters: ParameterCount) -> list[Finding]:
    """Bytes of weights, gradients and optimizer."""
    total = parameters.total
    question = "bytes of states, mixed precision with Adam"
    return [
        Finding(
            tool="accelerate estimate-memory (bf16)",
            question=question,
            theirs=8.0 * total,
            ours=16.0 * total,
            why="four times the bf16 weights: there is no fp32 master copy, and both moments are in bf16",
        ),
        Finding(
            tool="EleutherAI/cookbook calc_transformer_mem (ZeRO-3, 8 ranks)",
            question="bytes of weights per rank",
            theirs=2.0 * total / 8 / 8,
            ours=2.0 * total / 8,
            why="divides the weights by the ranks twice",
        ),
        Finding(
            tool="DeepSpeed estimate_zero*_model_states",
            question=question,
            theirs=None,
            ours=16.0 * total,
            why="sums storages by their place in memory, which meta tensors do not have, and knows no ZeRO-1",
        ),
    ]


def activation_findings(config: FilledConfig, *, tokens: int, batch_size: int) -> list[Finding]:
    """Bytes that autograd keeps."""

    def estimate(*, recompute: Recompute = "none", backend: str = "eager") -> MemoryEstimate:
        return estimate_memory(
            config, precision="bf16", seq_len=tokens, batch_size=batch_size, recompute=recompute, backend=backend
        )

    kept, recomputed = estimate(), estimate(recompute="full")
    dropout = config.hidden_dropout or config.attention_dropout
    return [
        Finding(
            tool="the textbook formula sbhL(34 + 5as/h)",
            question="bytes of activations",
            theirs=float(kept.textbook_activations),
            ours=float(kept.activations),
            why="counts dropout masks of one byte"
            + ("" if dropout else ", and this model has no dropout")
            + "; eager attention keeps its own copies of scores and weights, and here the logits are counted too",
        ),
        Finding(
            tool="Megatron-LM theoretical_memory_usage (full recomputation)",
            question="bytes of activations, blocks recomputed",
            theirs=float(estimate(backend=fused(config)).textbook_activations),
            ours=float(recomputed.activations),
            why="returns the same number for every mode of recomputation, that of a fused kernel",
        ),
    ]


def fused(config: FilledConfig) -> str:
    """The backend whose textbook formula has no scores, where the parts allow it."""
    return "eager" if obstacles(config, "sdpa") else "sdpa"
