"""Floating-point operations of a model, per component and by named conventions.

Symbols: B batch, s tokens of a row, L layers, d hidden size, f inner width of the feed-forward layer, V vocabulary, N
parameters. A plain decoder's forward pass over a row is s·L·(8d² + 4d·f) + 4·L·s²·d + 2·s·V·d.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import get_args

import torch

from attnkit.attention import positions
from attnkit.attention.backends import BACKENDS
from attnkit.errors import UsageError, check_count, nearest
from attnkit.scaling.attention_flops import Layer, Work, product
from attnkit.scaling.choices import Convention, Recompute
from attnkit.scaling.measured import measured_work
from attnkit.scaling.pairs import pairs_of_layer
from attnkit.scaling.parameters import keeps_pooler, kinds_of_layers, parameters_by_component
from attnkit.scaling.parts import build_normalizer, build_pattern, build_position, build_scorer, places
from attnkit.scaling.subject import Config, FilledConfig, Subject, read_subject

MOST_TOKENS, MOST_PAIRS = 2**24, 2**48  # with heads and widths, what a shape of torch can say
OPTIMIZER_OPERATIONS = {"adamw": 13, "adam": 11, "sgd": 2}
"""Element-wise operations per parameter and step, as torch's plain implementations have them."""


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    """FLOPs of one pass over a batch. A multiplication and an addition count as two."""

    convention: Convention
    components: dict[str, Work]
    pair_operations: Work
    """Element-wise operations of a pairwise scorer (the additive scorer's tanh and sum), in no other figure."""
    optimizer: int
    """Element-wise operations of one AdamW step, in no other figure."""
    tokens: int
    """Tokens that go in, the source's and the target's."""

    @property
    def forward(self) -> int:
        return sum(work.forward for work in self.components.values())

    @property
    def backward(self) -> int:
        return sum(work.backward for work in self.components.values())

    @property
    def total(self) -> int:
        """Forward and backward: a training step without its optimizer."""
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a model is given, with positive numbers."""

    size: int
    tokens: int
    target: int
    past: int
    predicted: int | None


def count_flops(
    config: Config,
    *,
    seq_len: int,
    batch_size: int = 1,
    convention: Convention = "exact",
    head: str | None = None,
    target_len: int | None = None,
    past: int = 0,
    predicted: int | None = None,
    recompute: Recompute = "none",
    backend: str = "eager",
) -> FlopCount:
    """FLOPs of a training step on `batch_size` rows of `seq_len` tokens; `.forward` alone is that of inference.

    `target_len` are the decoder's tokens where there are two stacks (default: `seq_len`); `past` tokens are in the
    cache, and then there is no backward pass; `predicted` positions per row go through the head (default: all that the
    model sends through it), and where there are two streams they are the second.

    Conventions:
    - "exact": every matrix product of eager attention, as torch's FlopCounterMode counts them.
    - "causal_useful": of the products of query and key, those of pairs that the mask lets meet.
    - "hardware": exact, and what `recompute` ("selective": attention's scores and values; "full": each block) and the
      backend (a fused one computes the scores again in backward) do once more.
    - "6nd": 2·N per token forward and 4·N backward; half of it per token where each stack sees one side only.

    A config of transformers is measured without values, and has the conventions "exact" and "6nd". Raises
    `UsageError` for numbers that are no counts, for more tokens than the model has positions, and for a model that
    does not run on token ids alone.
    """
    subject = read_subject(config, head=head)
    if convention not in get_args(Convention):
        raise UsageError(f"unknown convention {convention!r}: {nearest(convention, get_args(Convention))}")
    if recompute not in get_args(Recompute):
        raise UsageError(f"unknown recompute {recompute!r}: {nearest(recompute, get_args(Recompute))}")
    if backend not in ("eager", *BACKENDS):
        raise UsageError(f"unknown backend {backend!r}: {nearest(backend, ['eager', *BACKENDS])}")
    batch = make_batch(batch_size, seq_len, target_len=target_len, past=past, predicted=predicted)
    check_target(subject, target_len)
    if convention == "6nd":
        count = six_n_d(subject, batch)
    elif subject.ours is not None:
        check_positions(subject.ours, batch)
        count = closed_formula(subject.ours, batch, head=subject.head, useful=convention == "causal_useful")
    elif convention == "exact":
        count = measured(subject, batch)
    else:
        raise UsageError(f"convention {convention!r} is for AttnKit models; for others there are 'exact' and '6nd'")
    if convention == "hardware":
        count = with_recomputation(count, recompute=recompute, backend=backend)
    if past:
        components = {name: Work(forward=work.forward) for name, work in count.components.items()}
        count = replace(count, components=components, pair_operations=Work(forward=count.pair_operations.forward))
        return replace(count, optimizer=0, convention=convention)
    return replace(count, convention=convention)


def make_batch(size: int, tokens: int, *, target_len: int | None, past: int, predicted: int | None) -> Batch:
    """Refuse what is no count."""
    target = tokens if target_len is None else target_len
    counts = {"batch_size": size, "seq_len": tokens, "target_len": target, "past": past}
    counts |= {} if predicted is None else {"predicted": predicted}
    for name, count in counts.items():
        check_count(name, count, least=0 if name == "past" else 1, most=MOST_TOKENS)
    if size * max(tokens, target) * (past + max(tokens, target)) > MOST_PAIRS:
        raise UsageError(f"batch_size {size} of {past + tokens} tokens: too many pairs to count: lower one of them")
    if predicted is not None and predicted > max(tokens, target):
        raise UsageError(f"predicted {predicted} is more than the {max(tokens, target)} tokens of a row")
    return Batch(size=size, tokens=tokens, target=target, past=past, predicted=predicted)


def check_target(subject: Subject, target_len: int | None) -> None:
    """Refuse tokens for a decoder that is not there."""
    if target_len is not None and not subject.config.is_encoder_decoder:
        raise UsageError(f"target_len {target_len}: this model has one stack: leave it out")


def check_positions(config: FilledConfig, batch: Batch) -> None:
    """Refuse more tokens than there are positions."""
    longest = batch.past + (max(batch.tokens, batch.target) if config.is_encoder_decoder else batch.tokens)
    parts = [build_position(config, causal=True, in_layer=False)]
    limits = [part.max_trained for part in parts] + [
        build_scorer(config, name, options).max_trained for name, options in config.all_scorers()
    ]
    for limit in limits:
        if limit is not None and longest > limit:
            raise UsageError(f"seq_len: {longest} tokens for {limit} positions: raise max_position_embeddings")


def six_n_d(subject: Subject, batch: Batch) -> FlopCount:
    """2·N·D forward and 4·N·D backward (Kaplan 2020, section 2.1), N with embeddings."""
    active = parameters_by_component(subject.config, head=subject.head).active
    if active is None:
        raise UsageError(
            f"it is not known how many experts of {subject.config.model_type} a token chooses: give convention 'exact'"
        )
    two = subject.config.is_encoder_decoder
    tokens = batch.size * (batch.tokens + batch.target if two else batch.tokens)
    products = active * tokens // (2 if two else 1)
    work = Work(forward=2 * products, backward=4 * products)
    return FlopCount(
        convention="6nd",
        components={"all": work},
        pair_operations=Work(),
        optimizer=OPTIMIZER_OPERATIONS["adamw"] * active,
        tokens=tokens,
    )


def closed_formula(config: FilledConfig, batch: Batch, *, head: str, useful: bool) -> FlopCount:
    """The FLOPs of an AttnKit model as sums of products; what a part's maps cost is asked of the part."""
    components: defaultdict[str, Work] = defaultdict(Work)
    pairs = Work()
    cache: dict[str, dict[str, Work]] = {}
    for depth, (stack, causal, cross) in enumerate(kinds_of_layers(config)):
        if config.is_encoder_decoder and not cross and batch.past:
            continue  # the encoder has run
        tokens = batch.target if cross else batch.tokens
        for name, layer in attention_layers(stack, batch, depth=depth, causal=causal, cross=cross, useful=useful):
            if name not in cache:
                cache[name] = layer.work()
            for part, work in cache[name].items():
                if part == "pairs":
                    pairs += work
                else:
                    components[f"{name.split()[0]}.{part}"] += work
        size, entries = (config.hidden_size, stack.intermediate_size), 2 + config.gated_activation
        second = targets(config, batch)
        unread = second and depth == config.num_all_layers - 1  # the first stream, after the last block
        components["feed_forward"] += product(batch.size * tokens, *size, gradients=0 if unread else 2) * entries
        components["feed_forward"] += product(batch.size * second, *size) * entries
    for name, work in head_work(config, batch, head=head).items():
        components[name] += work
    two = config.is_encoder_decoder
    source = 0 if two and batch.past else batch.tokens
    return FlopCount(
        convention="exact",
        components={name: work for name, work in components.items() if work.total},
        pair_operations=pairs,
        optimizer=OPTIMIZER_OPERATIONS["adamw"] * parameters_by_component(config, head=head).total,
        tokens=batch.size * (source + (batch.target if two else 0)),
    )


def targets(config: FilledConfig, batch: Batch) -> int:
    """Queries of the second stream, for each predicted position one."""
    return (batch.predicted or 0) if config.two_stream else 0


def attention_layers(
    config: FilledConfig, batch: Batch, *, depth: int, causal: bool, cross: bool, useful: bool
) -> list[tuple[str, Layer]]:
    """The attention layers of a block by a name that equal ones share: its first word is their component."""
    queries, past = (batch.target if cross else batch.tokens), batch.past if causal else 0
    scorer, pattern = config.scorer_of_layer(depth), config.pattern_of_layer(depth)
    keys, pairs = past + queries, queries * (past + queries)
    if useful:
        pairs = pairs_of_layer(config, depth=depth, num_queries=queries, past=past, causal=causal)
    position = build_position(config, causal=causal, in_layer=False)
    shared = position.bias(places(past, queries)[0], places(0, keys)[0], torch.float32)
    own = Layer(
        config=config,
        scorer=build_scorer(config, *scorer),
        normalizer=build_normalizer(config),
        pattern=build_pattern(config, *pattern),
        position=build_position(config, causal=causal, in_layer=True),
        sharing=config.sharing,
        batch=batch.size,
        queries=queries,
        keys=keys,
        new_keys=queries,
        held_keys=past,
        past=past,
        pairs=pairs,
        shared_bias=shared is not None and shared.requires_grad,
        targets=targets(config, batch),
        is_last=depth == config.num_all_layers - 1,
    )
    last = own.targets and own.is_last
    layers = [(f"attention {causal} {cross} {last} {scorer} {pattern}", own)]
    if cross:
        scorer = config.scorer_of_cross_attention(depth)
        other = replace(
            own,
            scorer=build_scorer(config, *scorer),
            pattern=build_pattern(config, "full", {}),
            position=build_position(config, causal=False, in_layer=not positions[config.position].per_layer),
            sharing="separate",
            keys=batch.tokens,
            new_keys=0 if batch.past else batch.tokens,
            held_keys=batch.tokens if batch.past else 0,
            past=0,
            pairs=queries * batch.tokens,
            shared_bias=False,
            targets=0,
        )
        layers.append((f"cross_attention {scorer}", other))
    return layers


def head_work(config: FilledConfig, batch: Batch, *, head: str) -> dict[str, Work]:
    """What stands after the blocks."""
    width, rows = config.hidden_size, batch.size
    tokens = batch.target if config.is_encoder_decoder else batch.tokens
    work: dict[str, Work] = {}
    if keeps_pooler(config, head) and not (config.is_encoder_decoder and head == "none"):
        work["pooler"] = product(rows, width, width)
    per_row = {"sequence_classification": config.num_labels, "multiple_choice": 1}
    per_token = {"token_classification": config.num_labels, "question_answering": 2}
    if head in per_row:
        work["head"] = product(rows, width, per_row[head])
    elif head in per_token:
        work["head"] = product(rows * tokens, width, per_token[head])
    elif head != "none":
        predicted = rows * (tokens if batch.predicted is None else min(batch.predicted, tokens))
        work["head"] = product(predicted, width, config.vocab_size)
        if config.output_transform:
            work["head"] += product(predicted, width, width)
        if head == "pre_training":
            work["head"] += product(rows, width, 2)
    return work


def with_recomputation(count: FlopCount, *, recompute: Recompute, backend: str) -> FlopCount:
    """Add to backward what it computes once more: the chosen parts, or the scores where a fused kernel keeps none."""
    again: tuple[str, ...] | None = {"none": (), "selective": ("scores", "values"), "full": None}[recompute]
    if again == () and backend != "eager":
        again = ("scores",)
    components = {}
    for name, work in count.components.items():
        in_block = name not in ("head", "pooler")
        repeated = in_block if again is None else name.split(".")[-1] in again
        components[name] = work + Work(backward=work.forward if repeated else 0)
    pairs = count.pair_operations
    repeated = again is None or "scores" in again
    return replace(count, components=components, pair_operations=pairs + Work(backward=pairs.forward * repeated))


def count_generation_flops(
    config: Config, *, prompt_len: int, new_tokens: int, batch_size: int = 1, head: str | None = None
) -> int:
    """FLOPs of continuing a prompt by `new_tokens` with a cache: one pass over the prompt, whose last position alone
    goes through the head, and a step with one token for each further new token."""
    check_count("new_tokens", new_tokens, most=MOST_TOKENS)
    subject = read_subject(config, head=head)
    if subject.ours is None or subject.config.is_encoder_decoder:
        raise UsageError("generation is counted for AttnKit models of one stack")

    def forward(tokens: int, *, past: int = 0) -> int:
        predicted = None if past else 1
        return count_flops(
            subject.config, seq_len=tokens, past=past, predicted=predicted, batch_size=batch_size, head=subject.head
        ).forward

    return forward(prompt_len) + sum(forward(1, past=past) for past in range(prompt_len, prompt_len + new_tokens - 1))


def measured(subject: Subject, batch: Batch) -> FlopCount:
    """The same of a model of transformers, which is run without values."""
    if batch.past or batch.predicted is not None:
        raise UsageError("past and predicted are counted for AttnKit models only")
    two = subject.config.is_encoder_decoder
    return FlopCount(
        convention="exact",
        components=measured_work(subject, rows=batch.size, tokens=batch.tokens, target=batch.target),
        pair_operations=Work(),
        optimizer=OPTIMIZER_OPERATIONS["adamw"] * parameters_by_component(subject.config, head=subject.head).total,
        tokens=batch.size * (batch.tokens + (batch.target if two else 0)),
    )
