"""The order of the data: a function of seed and position, the same however it is split."""

from itertools import chain, islice

import datasets
import pytest

from attnkit.training.order import RowOrder, take


def batches(count: int, order: RowOrder) -> list[list[int]]:
    return [rows for _, rows in islice(order, count)]


@pytest.mark.parametrize("num_rows", [1, 3, 7, 24])
def test_every_epoch_meets_each_row_once(num_rows: int) -> None:
    read = list(chain.from_iterable(batches(num_rows * 3, RowOrder(num_rows, seed=5, batch_size=4))))
    epochs = [read[start : start + num_rows] for start in range(0, len(read), num_rows)]
    assert all(sorted(epoch) == list(range(num_rows)) for epoch in epochs)
    if num_rows == 24:
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


@pytest.mark.parametrize(("num_processes", "batch_size"), [(1, 4), (2, 2), (2, 4), (4, 1)])
def test_a_global_batch_holds_the_same_rows_however_it_is_split(num_processes: int, batch_size: int) -> None:
    whole = batches(6, RowOrder(7, seed=1, batch_size=8))
    parts = [
        RowOrder(7, seed=1, batch_size=batch_size, num_processes=num_processes, process=process)
        for process in range(num_processes)
    ]
    count = 8 // (num_processes * batch_size)  # micro batches of each process per global batch
    readers = [iter(part) for part in parts]
    for expected in whole:
        micro = [rows for _ in range(count) for reader in readers for rows in [next(reader)[1]]]
        assert list(chain.from_iterable(micro)) == expected


@pytest.mark.parametrize("done", [1, 2, 3, 4, 5, 6, 7, 8])
def test_reading_goes_on_where_it_stopped(done: int) -> None:
    # Twelve rows in batches of four: the third, sixth … stop falls on the end of an epoch.
    whole = batches(10, RowOrder(12, seed=2, batch_size=4))
    rest = RowOrder(12, seed=2, batch_size=4, first_row=4 * done)
    assert batches(10 - done, rest) == whole[done:]
    assert next(iter(rest))[0] == 4 * done


def test_seeds_give_different_orders() -> None:
    assert batches(6, RowOrder(24, seed=0, batch_size=4)) != batches(6, RowOrder(24, seed=1, batch_size=4))


def test_rows_are_taken_from_lists_and_datasets_alike() -> None:
    rows = [{"input_ids": [n]} for n in range(5)]
    assert take(rows, [3, 0]) == take(datasets.Dataset.from_list(rows), [3, 0]) == [rows[3], rows[0]]
