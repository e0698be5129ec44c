"""Speed and memory of attention, side by side in one process: every scorer against scaled-dot SDPA.

    python tests/benchmarks/attention.py [reducible] [additive] [memory] [decoding] [--rounds 4]

The reference runs before each round of a candidate, so that a drift of the machine meets both alike. What is
printed is the median of the ratios, and whether it keeps its limit. Time is that of the process on the processor, with
one thread: what else runs on the machine matters little to it. Freed memory stays with the process, as the pages of a
virtual machine that come and go cost more than the arithmetic.

What is mapped goes to attnkit's own kernel for CPUs, which is faster than torch's: "sdpa of 65 columns" and of 128 are
what such a score would take of torch's kernel, padded, with all maps free. The line "one matrix" is what a score adds
that multiplies tokens by a matrix of each head: three products of both.
"""

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit import AttnKitConfig, AttnKitForCausalLM
from attnkit.attention import Attention, PairwiseScorer, scorers
from attnkit.attention.backends import BACKENDS
from attnkit.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))
from parts import Part, variants  # the tests' own list of every scorer and option

HEADS, WIDTH = 12, 64
LIMIT, LIMITS = 1.15, {"gaussian-per_dimension": 1.8, "transformer_xl": 1.8}


def interleaved(
    candidates: dict[str, Callable[[], object]], *, reference: str, rounds: int, warm: int = 1
) -> dict[str, tuple[float, float]]:
    """Median seconds of each candidate, and the median ratio to the reference right before it.

    A candidate's rounds follow each other after `warm` untimed ones, so that its weights lie as near to the processor
    as the reference's: taken in turn with all others, only the reference would find them in the cache.
    """
    results = {}
    for name, run in candidates.items():
        times, ratios = [], []
        for number in range(warm + rounds):
            before, time_taken = seconds(candidates[reference]), seconds(run)
            if number >= warm:
                times.append(time_taken)
                ratios.append(time_taken / before)
        results[name] = statistics.median(times), statistics.median(ratios)
    return results


def keep_memory() -> None:
    """Let the C library give no freed memory back to the system, where it is glibc."""
    set_option = ctypes.CDLL(None).mallopt
    trim_threshold, map_threshold = -1, -3
    set_option(trim_threshold, 2**30)
    set_option(map_threshold, 2**25)


def seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def verdict(limit: float, *ratios: float) -> str:
    """The ratios, the limit of each, and whether all keep it."""
    figures = " ".join(f"{ratio:6.2f}" for ratio in ratios)
    return f"{figures}   limit {limit:g}: {'pass' if max(ratios) <= limit else 'OVER'}"


def heads(num_tokens: int, width: int = WIDTH) -> list[Tensor]:
    return [torch.randn(1, HEADS, num_tokens, width, requires_grad=True) for _ in range(3)]


class Core(torch.nn.Module):
    """An attention layer without projections: what a scorer adds to a fused kernel, and nothing else."""

    def __init__(self, part: Part, backend: str, num_tokens: int, position: str = "none") -> None:
        super().__init__()
        self.layer = Attention(
            HEADS * WIDTH,
            HEADS,
            scorer=part.name,
            scorer_options=dict(part.options),
            position=position,
            max_positions=num_tokens,
            causal=True,
        )
        self.backend = BACKENDS[backend]
        self.positions = torch.arange(num_tokens)[None]

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mapped, scale, _ = self.layer.map_query(query, self.positions)
        extra = self.layer.extra_terms(query, None, None, self.positions, 0, key.shape[2])
        key = self.layer.map_key(key, self.positions)
        return self.backend(self.layer, mapped, key, value, None, scaling=scale, **extra)[0]


def step(function: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    def run() -> None:
        function(*inputs).sum().backward()

    return run


def plain_sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def one_matrix(query: Tensor, key: Tensor, value: Tensor, matrix: Tensor) -> Tensor:
    return plain_sdpa(query @ matrix, key, value)


def reducible(rounds: int) -> None:
    print("forward + backward on sdpa, causal, 12 heads, d = 64: time / scaled_dot, at n = 512, 1024, 2048")
    parts = [part for part in variants("scorer") if not issubclass(scorers[part.name], PairwiseScorer)]
    columns = []
    for num_tokens in (512, 1024, 2048):
        inputs = heads(num_tokens)
        candidates = {str(part): step(Core(part, "sdpa", num_tokens), inputs) for part in parts}
        with_position = Core(Part("scaled_dot"), "sdpa", num_tokens, position="transformer_xl")
        candidates["transformer_xl"] = step(with_position, inputs)
        for width in (WIDTH + 1, 2 * WIDTH):
            candidates[f"sdpa of {width} columns"] = step(plain_sdpa, heads(num_tokens, width))
        matrix = torch.eye(WIDTH).expand(HEADS, -1, -1).clone().requires_grad_()
        candidates["one matrix"] = step(one_matrix, [*inputs, matrix])
        columns.append(interleaved(candidates, reference="scaled_dot", rounds=max(2, 2 * rounds * 512 // num_tokens)))
    for name in columns[0]:
        ratios = [column[name][1] for column in columns]
        bare = name.startswith("sdpa of") or name == "one matrix"
        line = " ".join(f"{ratio:6.2f}" for ratio in ratios) if bare else verdict(LIMITS.get(name, LIMIT), *ratios)
        print(f"{name:28}{line}")


def naive_additive(layer: Attention) -> Callable[..., Tensor]:
    """The formula with one tanh tensor of all pairs."""
    scorer = layer.scorer

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = query @ scorer.query_weight, key @ scorer.key_weight
        score = (torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) * scorer.weight[:, None, None]).sum(-1)
        later = torch.ones(score.shape[-2:], dtype=torch.bool).triu(1)
        return torch.softmax(score.masked_fill(later, float("-inf")), -1) @ value

    return attend


def additive(rounds: int) -> None:
    print("additive on pairwise, forward + backward, causal, 12 heads, d = 64")
    per_pair = {}
    for num_tokens in (512, 1024, 2048):
        inputs, core = heads(num_tokens), Core(Part("additive"), "pairwise", num_tokens)
        candidates = {"sdpa": step(plain_sdpa, inputs), "pairwise": step(core, inputs)}
        if num_tokens == 512:
            candidates["naive"] = step(naive_additive(core.layer), inputs)
        result = interleaved(candidates, reference="sdpa", rounds=max(1, rounds * 512 // num_tokens))
        per_pair[num_tokens] = result["pairwise"][0] / (num_tokens**2 * HEADS) * 1e9
        line = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, (seconds, _) in result.items())
        print(f"n = {num_tokens}: {line}; {per_pair[num_tokens]:.1f} ns per pair")
        if "naive" in result:
            print(f"  pairwise / sdpa      {verdict(5, result['pairwise'][1])}")
            print(f"  6 pairwise / naive   {verdict(1, 6 * result['pairwise'][0] / result['naive'][0])}")
    print(f"per pair, n = 2048 / n = 512 {verdict(1, per_pair[2048] / per_pair[512])}")


def memory(_: int) -> None:
    print("additive on pairwise: peak memory over the inputs, forward + backward, causal, batch 1, 12 heads, d = 64")
    for num_tokens in (1024, 2048, 4096):
        inputs, core = heads(num_tokens), Core(Part("additive"), "pairwise", num_tokens)
        run = step(core, inputs)
        run()  # gradients and compiled tiles exist from here on
        with torch.profiler.profile(profile_memory=True) as profile:
            run()
        live = peak = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                live += event.nbytes()
                peak = max(peak, live)
        resident = psutil.Process().memory_info().rss / 1e6
        limit = 300 * num_tokens / 2048  # 300 MB at 2048, and linear
        print(f"n = {num_tokens}: MB (process {resident:.0f}) {verdict(limit, peak / 1e6)}")


def decoding(rounds: int) -> None:
    print("one decoding step at context 2048, 2 layers, hidden 768: time / the same model with scaled_dot")
    models = {}
    for part in variants("scorer"):
        if issubclass(scorers[part.name], PairwiseScorer):
            continue
        fields = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2, "vocab_size": 1000}
        try:
            config = AttnKitConfig(
                scorer=part.name,
                scorer_options=dict(part.options),
                position="none",
                max_position_embeddings=4096,
                **fields,
            )
        except UsageError:
            continue
        models[str(part)] = AttnKitForCausalLM(config).eval()

    def decode(model: AttnKitForCausalLM) -> Callable[[], None]:
        with torch.inference_mode():
            cache = model(torch.zeros(1, 2048, dtype=torch.long)).cache

        def run() -> None:
            with torch.inference_mode():
                model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
                cache.crop(-1)

        return run

    result = interleaved(
        {name: decode(model) for name, model in models.items()}, reference="scaled_dot", rounds=5 * rounds, warm=10
    )
    for name, (seconds, ratio) in result.items():
        print(f"{name:28}{seconds * 1000:8.2f} ms   {verdict(1.2, ratio)}")


TABLES = {"reducible": reducible, "additive": additive, "memory": memory, "decoding": decoding}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=list(TABLES))
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for table in arguments.tables or TABLES:
        TABLES[table](arguments.rounds)
        print()
