"""Laws of whole models, for every allowed pair of parts from the registries: cache, packing, padding, saving,
generation."""

import pytest
import torch
from parts import FAMILIES, Part, goes_together, pairs, variants

from attnkit.testing import MODEL_LAWS, build_model, check_scorer, sample_ids

ALONE = [{family: part} for family in FAMILIES for part in variants(family) if goes_together(**{family: part})]
# Every pair for the laws that a pair can break together; every part alone for all of them.
TOGETHER = [law for law in MODEL_LAWS if law.__name__ in ("cache_equals_one_pass", "packed_equals_separate")]


def name(chosen: dict[str, Part]) -> str:
    return "+".join(str(part) for part in chosen.values())


def fields(chosen: dict[str, Part]) -> dict[str, object]:
    named = {"position": "none"}
    for family, part in chosen.items():
        named |= {family: part.name, f"{family}_options": dict(part.options) or None}
    return named


@pytest.mark.parametrize("law", MODEL_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("chosen", ALONE, ids=name)
def test_part_keeps_the_laws_of_models(chosen: dict[str, Part], law) -> None:
    law(**fields(chosen))


@pytest.mark.parametrize("law", TOGETHER, ids=lambda law: law.__name__)
@pytest.mark.parametrize("chosen", pairs(), ids=name)
def test_pairs_of_parts_keep_the_laws_of_models(chosen: dict[str, Part], law) -> None:
    law(**fields(chosen))


@pytest.mark.parametrize("part", [*variants("scorer")], ids=str)
def test_check_scorer_passes_every_scorer(part: Part) -> None:
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
