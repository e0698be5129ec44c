"""Laws of whole models, for combinations of parts in which each pair meets that is allowed: cache, packing, padding,
saving, generation."""

import pytest
import torch
from parts import FAMILIES, Combination, Part, covering_array, each_once, variants

from attnkit.attention import PairwiseScorer, scorers
from attnkit.testing import check_scorer
from attnkit.testing.models import (
    MODEL_LAWS,
    build_model,
    cache_equals_one_pass,
    generation_equals_forward,
    packed_equals_separate,
    padding_of_a_source,
    padding_on_either_side,
    reload_equals_saved,
    sample_ids,
)

SCORERS = variants("scorer")
of_each_scorer = pytest.mark.parametrize("scorer", SCORERS, ids=str)


def rows(scorer: Part, **others: str) -> list[Combination]:
    """The combinations with one scorer; `others` is the architecture to have in place of one that a law is not for."""
    found = [row for row in covering_array() if row.scorer == scorer]
    return list(
        dict.fromkeys(row._replace(architecture=others.get(row.architecture, row.architecture)) for row in found)
    )


@of_each_scorer
def test_cached_decoding_is_one_pass(scorer: Part) -> None:
    for row in rows(scorer, encoder="decoder"):
        cache_equals_one_pass(**row.fields())


@of_each_scorer
def test_packed_documents_are_separate(scorer: Part) -> None:
    for row in rows(scorer, **{"encoder-decoder": "decoder"}):
        packed_equals_separate(**row.fields())


@of_each_scorer
def test_padding_has_no_influence(scorer: Part) -> None:
    for row in rows(scorer):
        if row.scorer.name == "static":  # two neighbours are as near as each other: rounding says which "hard" takes
            row = row._replace(attend_to_self=True)
        law = padding_of_a_source if row.architecture == "encoder-decoder" else padding_on_either_side
        law(**row.fields())


@pytest.mark.parametrize("row", each_once(), ids=str)
def test_a_model_comes_back_as_it_was_saved_and_writes_what_its_passes_say(row: Combination) -> None:
    decoder = row._replace(architecture="decoder")
    reload_equals_saved(**decoder.fields())
    generation_equals_forward(**decoder.fields())


def kind(part: Part) -> tuple[bool, ...]:
    cls = scorers[part.name]
    return issubclass(cls, PairwiseScorer), cls.knows_order, cls.compares, bool(cls.without_gradient)


@pytest.mark.parametrize("part", {kind(part): part for part in SCORERS}.values(), ids=str)
def test_check_scorer_passes_one_scorer_of_each_kind(part: Part) -> None:
    check_scorer(FAMILIES["scorer"][part.name], **dict(part.options))


def test_layers_may_have_parts_of_their_own() -> None:
    for law in MODEL_LAWS:
        law(
            layer_scorers=["scaled_dot", {"gaussian": {"width": "per_dimension"}}],
            layer_patterns=["full", {"sliding_window": {"window": 3}}],
            position="rope",
        )


def test_segments_with_a_cache_are_the_recurrence_of_transformer_xl() -> None:
    """Segment by segment with the cache of those before = one pass under the pattern, at any memory."""
    for memory in (0, 2, 4):
        model = build_model(
            pattern="segment", pattern_options={"length": 4, "memory": memory}, position="transformer_xl"
        )
        ids, cache, logits = sample_ids(12), None, []
        with torch.no_grad():
            for piece in ids.split(4, dim=1):
                outputs = model(piece, cache=cache, use_cache=True)
                cache, logits = outputs.cache, [*logits, outputs.logits]
            torch.testing.assert_close(torch.cat(logits, dim=1), model(ids).logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ("cosine", "'sdpa': it can compute every part"),
        ("additive", "'pairwise': Additive scores are no dot product"),
    ],
)
def test_the_backend_and_its_reason_are_logged_once_per_model(
    scorer: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="attnkit"):
        model = build_model(scorer=scorer)
        model(sample_ids())
    messages = [record.getMessage() for record in caplog.records if "backend" in record.getMessage()]
    assert messages == [f"attention backend {said}"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers and of the compiler, inside the kernel
def test_flex_attention_computes_what_eager_does() -> None:
    """Values only, on a CPU: there flex attention has no backward. The layers have scores of the usual width, of twice
    that and of one column."""
    layers = ["cosine", {"gaussian": {"width": "per_dimension"}}, "uniform"]
    patterns = ["full", {"sliding_window": {"window": 3}}, "full"]
    model = build_model(layer_scorers=layers, layer_patterns=patterns, position="none").float()
    ids, mask = sample_ids(12), torch.ones(2, 12, dtype=torch.long)
    mask[1, :4] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, use_cache=False).logits
        model.set_attn_implementation("flex_attention")
        ours = model(ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(ours[0], expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[1, 4:], expected[1, 4:], rtol=1e-4, atol=1e-4)
