"""The rule by which a figure counts as reproduced, and the figures that it is held against."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.reproduce import engines, simulations
from fedcore.reproduce.published import TABLE_1, TABLE_4, Published
from fedcore.reproduce.verdict import RULE, Estimate, Reached, Word, judge, tolerance

PAPER = Published(0.100, 0.003)
# 2.0452 sqrt((0.004^2 + 0.003^2) / 30) + 0.0005, the first factor from a table of Student's t at 29 degrees of freedom.
ALLOWED = 2.0452 * 0.005 / 30**0.5 + 0.0005


def ours(mean: float, sd: float = 0.004, runs: int = 30, diverged: int = 0) -> Estimate:
    return Estimate(mean, sd, runs, diverged)


def test_tolerance_is_two_standard_errors_and_the_rounding() -> None:
    assert tolerance(PAPER, ours(0.2)) == pytest.approx(ALLOWED, rel=1e-4)
    assert "2.05 for 30" in RULE


@pytest.mark.parametrize(
    ("estimate", "word", "reason"),
    [
        (ours(0.1), Word.REPRODUCED, r"0.0 % below (2.4 % allowed)"),
        (ours(0.1 + 0.99 * ALLOWED), Word.REPRODUCED, "2.3 % above (2.4 % allowed)"),
        (ours(0.1 + 1.01 * ALLOWED), Word.NOT_REPRODUCED, "2.4 % above (2.4 % allowed)"),
        (ours(0.1 - 1.01 * ALLOWED), Word.NOT_REPRODUCED, "2.4 % below (2.4 % allowed)"),
        # With two runs Student's t is 12.7: the same figure tells nothing, but a far one is still refused.
        (ours(0.1, runs=2), Word.UNDECIDED, "allowed"),
        (ours(0.2, runs=2), Word.NOT_REPRODUCED, "100.0 % above"),
        (ours(0.1, diverged=1), Word.NOT_REPRODUCED, "diverged in 1 of 30 runs: it overflowed"),
        (ours(np.nan, np.nan, diverged=30), Word.NOT_REPRODUCED, "diverged in 30 of 30 runs: it overflowed"),
        # The F quantile at 0.999 and (29, 29) degrees of freedom is 3.29, its root 1.81: 0.0035 times it is 0.0064.
        (ours(0.1, sd=0.0062), Word.REPRODUCED, "allowed)"),
        (ours(0.1, sd=0.0065), Word.REPRODUCED, "the paper's sd is smaller than independent runs here give"),
    ],
)
def test_verdict(estimate: Estimate, word: Word, reason: str) -> None:
    verdict = judge(PAPER, estimate, failure="it overflowed")
    assert verdict.word is word
    assert verdict.reason.endswith(reason) or reason in verdict.reason
    assert ("smaller than independent" in verdict.reason) == (estimate.sd > 0.0064)


def test_a_figure_below_the_oracle_is_unreachable() -> None:
    far, near = ours(0.1 + 2 * ALLOWED), ours(0.1 + 0.9 * ALLOWED)
    assert "below the oracle (0.1047): unreachable" in judge(PAPER, ours(0.2), oracle=far).reason
    assert "oracle" not in judge(PAPER, ours(0.2), oracle=near).reason


def test_where_the_paper_has_no_figure_there_is_no_verdict() -> None:
    assert judge(None, ours(0.1)) == (Word.NONE, "")
    assert judge(None, ours(np.nan, np.nan, diverged=30), failure="it overflowed") == (
        Word.NONE,
        "diverged in 30 of 30 runs: it overflowed",
    )


def test_an_estimate_leaves_out_runs_that_diverged_and_counts_them() -> None:
    reached = [Reached(1.0), Reached(3.0), Reached(np.nan, failure="it overflowed")]
    assert Estimate.of(reached) == (2.0, pytest.approx(2**0.5), 3, 1)
    alone = Estimate.of(reached[1:])
    assert (alone.mean, alone.runs, alone.diverged) == (3.0, 2, 1)
    assert np.isnan(alone.sd)


def test_the_paper_has_a_figure_for_every_cell_that_is_held_against_one() -> None:
    assert list(TABLE_1) == [case.label for case in simulations.REPRODUCED]
    assert list(TABLE_4) == [f"sensor {sensor}" for sensor in engines.SENSORS]
    for table, methods in ((TABLE_1, simulations.METHODS), (TABLE_4, engines.METHODS)):
        columns = {method.column for method in methods if method.column}
        assert all(row.keys() == columns for row in table.values())


def test_the_papers_figures_are_those_printed() -> None:
    """Sums of the columns, added by hand from the printed tables."""
    assert sum(row["HM1"].mean for row in TABLE_1.values()) == pytest.approx(0.210)
    assert sum(row["Separate"].mean for row in TABLE_1.values()) == pytest.approx(0.257)
    sums = {column: sum(row[column].mean for row in TABLE_4.values()) for column in ("HM1", "Separate", "FedAvg", "Ditto")}
    assert sums == pytest.approx({"HM1": 1.124, "Separate": 1.234, "FedAvg": 1.776, "Ditto": 1.178})
    assert sum(row[column].sd for row in TABLE_4.values() for column in row) == pytest.approx(0.065)
