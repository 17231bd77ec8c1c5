"""When a figure of the paper counts as reproduced: one rule for all cells, whatever comes out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from scipy.special import fdtri, stdtrit

from fedcore.reproduce.published import ROUNDING, RUNS, Published

LEVEL, SPREAD_LEVEL = 0.975, 0.999
WIDEST = 0.1

RULE = (
    f"A cell is reproduced where no run diverged and |ours - paper| <= t sqrt(sd_ours^2 / runs + sd_paper^2 / {RUNS}) + {ROUNDING:g}."
    f" Here t is Student's {LEVEL:.1%} quantile for our runs ({stdtrit(RUNS - 1, LEVEL):.2f} for {RUNS} of them), the root is the standard"
    f" error of a difference of two means (the paper's brackets are standard deviations over {RUNS} runs; a figure without one is of one"
    " run, with our standard deviation), and the last term is the"
    f" rounding of its third decimal. Where that allows more than {WIDEST:.0%} of the paper's figure, a cell within it is undecided: it"
    " needs more runs. A faithful set-up fails in about one cell of twenty by chance."
)


class Word(Enum):
    """A verdict in a word; empty where the paper has no figure."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"
    NONE = ""


class Verdict(NamedTuple):
    """The verdict, and why."""

    word: Word
    reason: str


class Reached(NamedTuple):
    """What a method reached in one run.

    Attributes
    ----------
    value
        A-RMSE in target units, or what else the table holds; NaN where the run diverged.
    chosen
        The setting that the validation rows chose; empty where there was no choice.
    failure
        Why it diverged; empty where it did not.
    """

    value: float
    chosen: str = ""
    failure: str = ""


class Estimate(NamedTuple):
    """What a method reached over runs.

    Attributes
    ----------
    mean, sd
        Over the runs that did not diverge; NaN where too few are left.
    runs, diverged
        How many there were, and how many of them diverged.
    """

    mean: float
    sd: float
    runs: int
    diverged: int

    @classmethod
    def of(cls, reached: Sequence[Reached]) -> Estimate:
        """The runs of one method."""
        kept = np.array([each.value for each in reached if not each.failure])
        mean = float(kept.mean()) if len(kept) else np.nan
        sd = float(kept.std(ddof=1)) if len(kept) > 1 else np.nan
        return cls(mean, sd, len(reached), len(reached) - len(kept))


def tolerance(published: Published, ours: Estimate) -> float:
    """The largest difference at which `ours` counts as `published`. One run of the paper varies as ours do."""
    theirs = ours.sd**2 if published.sd is None else published.sd**2 / RUNS
    error = np.sqrt(ours.sd**2 / ours.runs + theirs)
    return float(stdtrit(ours.runs - 1, LEVEL) * error) + ROUNDING


def judge(published: Published | None, ours: Estimate, *, failure: str = "", oracle: Estimate | None = None) -> Verdict:
    """Hold a figure of ours against the paper's.

    Parameters
    ----------
    published, ours
        The two figures.
    failure
        Why runs diverged, where any did.
    oracle
        What an estimator reaches that knows what the others must learn, where there is one.
    """
    if ours.diverged:
        word = Word.NONE if published is None else Word.NOT_REPRODUCED
        return Verdict(word, f"diverged in {ours.diverged} of {ours.runs} runs: {failure}")
    if published is None:
        return Verdict(Word.NONE, "")
    allowed, difference, percent = tolerance(published, ours), ours.mean - published.mean, 100.0 / published.mean
    near = Word.REPRODUCED if allowed <= WIDEST * published.mean else Word.UNDECIDED
    word = near if abs(difference) <= allowed else Word.NOT_REPRODUCED
    reasons = [f"{abs(percent * difference):.1f} % {'above' if difference > 0 else 'below'} ({percent * allowed:.1f} % allowed)"]
    if oracle is not None and published.mean < oracle.mean - tolerance(published, oracle):
        reasons.append(f"the paper is below the oracle ({oracle.mean:.4f}): unreachable from the stated set-up")
    # Of runs of one kind, variances have a ratio like this with probability 1 - SPREAD_LEVEL.
    if published.sd is not None and ours.sd > (published.sd + ROUNDING) * np.sqrt(fdtri(ours.runs - 1, RUNS - 1, SPREAD_LEVEL)):
        reasons.append("the paper's sd is smaller than independent runs here give")
    return Verdict(word, "; ".join(reasons))
