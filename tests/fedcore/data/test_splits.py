from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data import ColumnSplit, NoSplit, RandomSplit, TimeSplit
from fedcore.data.splits import Parts, row_draws, split_rows
from fedcore.errors import DataError

ROW = st.tuples(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
ROWS = st.lists(ROW, min_size=1, max_size=30)


def frame_of(rows: list[tuple[float, int, str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"x": pl.Float64, "i": pl.Int64, "s": pl.String}, orient="row")


def labels(frame: pl.DataFrame, parts: Parts) -> list[str]:
    assert np.array_equal(np.sum(parts, axis=0), np.ones(frame.height)), "each row is in exactly one part"
    return [name for masks in zip(*parts, strict=True) for name, mask in zip(Parts._fields, masks, strict=True) if mask]


def always_some_train(frame: pl.DataFrame, split: RandomSplit) -> list[str]:
    """Labels of the rows, with one more row in front that is known to train."""
    for i in range(1000):
        extended = pl.concat([frame_of([(0.0, i, "sure to train")]), frame])
        if row_draws(extended, split.seed)[0] < split.train and row_draws(extended, split.seed)[0] >= split.train * split.validation:
            return labels(extended, split_rows(extended, split, "here"))[1:]
    raise AssertionError


@given(ROWS, st.integers(0, 2**63 - 1))
def test_draws_are_the_keyed_hash_of_the_canonical_bytes(rows: list[tuple[float, int, str]], seed: int) -> None:
    for draw, (x, i, s) in zip(row_draws(frame_of(rows), seed), rows, strict=True):
        content = struct.pack("<dq", x if x else 0.0, i) + struct.pack("<Q", len(s.encode())) + s.encode()
        digest = hashlib.blake2b(content, digest_size=8, key=struct.pack("<Q", seed)).digest()
        assert draw == (struct.unpack("<Q", digest)[0] // 2**11) / 2**53
        assert 0 <= draw < 1


def test_a_draw_known_by_heart() -> None:
    # Changed on purpose only: it moves rows between train and test in every stored data set.
    assert row_draws(frame_of([(1.5, -2, "é")]), 7).tolist() == [0.5582655009321238]


def test_draws_do_not_depend_on_the_order_of_columns_or_the_sign_of_zero() -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0], "z": [2.0, 3.0], "i": [4, 5], "j": [6, 7], "s": ["a", "b"], "t": ["c", "d"]})
    draws = row_draws(frame, 0).tolist()
    assert row_draws(frame.select(reversed(frame.columns)), 0).tolist() == draws
    assert row_draws(frame.with_columns(x=pl.Series([-0.0, 1.0])), 0).tolist() == draws
    assert row_draws(frame.with_columns(s="t", t="s"), 0).tolist() != draws


@given(ROWS, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.3]))
def test_random_does_not_depend_on_the_order_of_rows_or_columns(rows: Any, rnd: Any, validation: float) -> None:
    split = RandomSplit(kind="random", train=0.5, validation=validation, seed=3)
    order = list(range(len(rows)))
    rnd.shuffle(order)
    straight = always_some_train(frame_of(rows), split)
    assert always_some_train(frame_of([rows[i] for i in order]), split) == [straight[i] for i in order]
    assert always_some_train(frame_of(rows).select("x", "i", "s"), split) == straight
    assert row_draws(frame_of(rows).select("s", "x", "i"), 3).tolist() == row_draws(frame_of(rows), 3).tolist()


@given(ROWS, ROWS)
def test_appended_rows_move_no_earlier_row(rows: Any, more: Any) -> None:
    split = RandomSplit(kind="random", train=0.5, validation=0.3)
    assert always_some_train(frame_of(rows + more), split)[: len(rows)] == always_some_train(frame_of(rows), split)


@given(ROWS)
def test_a_row_leaves_test_for_train_but_never_returns_when_the_share_grows(rows: Any) -> None:
    narrow = always_some_train(frame_of(rows), RandomSplit(kind="random", train=0.4))
    wide = always_some_train(frame_of(rows), RandomSplit(kind="random", train=0.7))
    assert all(after == "train" for before, after in zip(narrow, wide, strict=True) if before == "train")


def test_shares_hold_on_average() -> None:
    frame = frame_of([(float(i), i, "") for i in range(20_000)])
    parts = split_rows(frame, RandomSplit(kind="random", train=0.6, validation=0.25), "here")
    # Binomial: four standard deviations of a share over 20,000 rows are at most 0.014.
    assert np.mean(parts, axis=1) == pytest.approx([0.45, 0.15, 0.4], abs=0.014)


def test_seeds_draw_differently() -> None:
    frame = frame_of([(float(i), i, "") for i in range(100)])
    assert np.corrcoef(row_draws(frame, 0), row_draws(frame, 1))[0, 1] == pytest.approx(0, abs=0.4)


@pytest.mark.parametrize(("n", "share", "count"), [(5, 0.5, 2), (7, 0.5, 4), (10, 0.25, 2), (192, 0.6, 115), (3, 1.0, 3)])
def test_time_trains_on_the_first_rows_rounded_half_to_even(n: int, share: float, count: int) -> None:
    assert count == int(np.round(n * share))
    times = np.random.default_rng(0).permutation(n)
    frame = pl.DataFrame({"t": times})
    parts = split_rows(frame, TimeSplit(kind="time", column="t", train=share), "here")
    assert sorted(times[parts.train]) == list(range(count))
    assert sorted(times[parts.test]) == list(range(count, n))


def test_rows_of_equal_time_keep_the_order_of_the_file() -> None:
    frame = pl.DataFrame({"t": [i % 2 for i in range(200)]})
    parts = split_rows(frame, TimeSplit(kind="time", column="t", train=0.25), "here")
    assert np.flatnonzero(parts.train).tolist() == list(range(0, 100, 2))


def test_time_draws_validation_inside_the_training_segment() -> None:
    frame = pl.DataFrame({"t": list(range(5000))})
    parts = split_rows(frame, TimeSplit(kind="time", column="t", train=0.6, validation=0.2), "here")
    assert np.flatnonzero(~parts.test).tolist() == list(range(3000))
    # Binomial: four standard deviations over 3,000 rows are 0.03.
    assert parts.validation.sum() / 3000 == pytest.approx(0.2, abs=0.03)
    longer = split_rows(pl.DataFrame({"t": list(range(6000))}), TimeSplit(kind="time", column="t", train=0.6, validation=0.2), "here")
    assert np.array_equal(longer.validation[:3000], parts.validation[:3000])


def test_a_column_says_the_part() -> None:
    frame = pl.DataFrame({"p": ["test", "train", "validation", "train"]})
    assert labels(frame, split_rows(frame, ColumnSplit(kind="column", column="p"), "here")) == frame["p"].to_list()


def test_unknown_parts_are_counted_not_shown() -> None:
    frame = pl.DataFrame({"p": ["train", "secret", "Train"]})
    with pytest.raises(DataError, match=r"^here: column 'p' has 2 values other than train, validation and test: correct them$"):
        split_rows(frame, ColumnSplit(kind="column", column="p"), "here")


def test_none_trains_on_everything() -> None:
    frame = pl.DataFrame({"a": [1, 2]})
    assert labels(frame, split_rows(frame, NoSplit(), "here")) == ["train", "train"]


def test_nothing_to_train_is_refused() -> None:
    frame = pl.DataFrame({"p": ["test", "validation"]})
    with pytest.raises(DataError, match=r"^here: the split leaves 0 of 2 rows to train"):
        split_rows(frame, ColumnSplit(kind="column", column="p"), "here")
