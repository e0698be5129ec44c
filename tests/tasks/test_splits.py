"""Laws of the split into train and held-out rows."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.tasks.splits import stratified_split

ROWS = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("XYZ")), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.floats(0.05, 0.95), st.integers(0, 5))
def test_each_row_is_on_one_side_and_no_text_on_both(rows: list[tuple[str, str]], fraction: float, seed: int) -> None:
    texts, labels = zip(*rows, strict=True)
    train, held_out = stratified_split(texts, labels, fraction=fraction, seed=seed)
    assert sorted(train + held_out) == list(range(len(rows)))
    assert not {texts[row] for row in train} & {texts[row] for row in held_out}
    assert {labels[row] for row in held_out} <= {labels[row] for row in train}


def test_each_label_has_the_same_part_held_out() -> None:
    labels = ["many"] * 100 + ["some"] * 20 + ["two"] * 2 + ["one"]
    texts = [str(number) for number in range(len(labels))]
    _, held_out = stratified_split(texts, labels, fraction=0.1, seed=0)
    assert Counter(labels[row] for row in held_out) == {"many": 10, "some": 2, "two": 1}


def test_the_seed_decides() -> None:
    texts, labels = [str(number) for number in range(100)], ["a", "b"] * 50
    splits = [stratified_split(texts, labels, fraction=0.2, seed=seed) for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_a_text_with_two_labels_trains() -> None:
    texts, labels = ["same", "same", "x", "y", "z", "w"], ["a", "b", "a", "a", "b", "b"]
    for seed in range(10):
        assert {0, 1} <= set(stratified_split(texts, labels, fraction=0.5, seed=seed)[0])
