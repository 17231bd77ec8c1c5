"""Whether a challenger is to take a champion's place: their errors on the same rows, paired by device, and a margin.

Devices are the sample, as in `fedcore.selection`. The test is Wilcoxon's signed-rank test of the devices' differences in RMSE, one-sided:
its hypothesis is that the challenger's errors are not smaller. Ranks keep one device with large errors from deciding; the margin, on the
mean over devices, keeps a difference from deciding that is sure and of no account.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.rows import Floats

ENUMERATED = 50
"""Up to so many devices the test's distribution is exact, for ties too; beyond, its normal approximation is as good."""


class Contest(NamedTuple):
    """A challenger beside a champion, over the devices that scored both.

    Attributes
    ----------
    devices
        How many these are.
    champion, challenger
        A-RMSE of each over them, NaN without any.
    improvement
        By which share of the champion's A-RMSE the challenger's is smaller; negative where it is larger, NaN without devices.
    p
        Of the one-sided test; 1 without devices, and where no device tells the two apart.
    better, worse
        How many devices' errors are smaller with the challenger, and larger.
    """

    devices: int
    champion: float
    challenger: float
    improvement: float
    p: float
    better: int
    worse: int


def contest(champion: Floats, challenger: Floats) -> Contest:
    """Figures of a contest.

    Parameters
    ----------
    champion, challenger
        RMSE of each device on the same held-out rows, shape (K,), finite.
    """
    K = len(champion)
    if not K:
        return Contest(0, np.nan, np.nan, np.nan, 1.0, 0, 0)
    difference, before, after = challenger - champion, float(champion.mean()), float(challenger.mean())
    # A champion without any error cannot be improved on.
    improvement = 1.0 - after / before if before else (0.0 if after == before else -np.inf)
    better, worse = int((difference < 0).sum()), int((difference > 0).sum())
    return Contest(K, before, after, improvement, _p(difference), better, worse)


def _p(difference: Floats) -> float:
    """Of the hypothesis that differences are not below 0; zeros tell nothing and are left out."""
    told = difference[difference != 0.0]
    if not len(told):
        return 1.0
    if len(told) > ENUMERATED:
        from scipy.stats import wilcoxon  # imported here: it takes a second, and most runs have no contest

        return float(wilcoxon(told, alternative="less").pvalue)
    _, place, equal = np.unique(np.abs(told), return_inverse=True, return_counts=True)
    ranks = (2 * np.cumsum(equal) - equal + 1)[place]  # twice the mean rank of equals, a whole number
    chance = np.zeros(int(ranks.sum()) + 1)  # by the sum of the ranks of positive differences, each of which is as likely negative
    chance[0] = 1.0
    for rank in ranks:
        chance = 0.5 * (chance + np.concatenate([np.zeros(rank), chance[:-rank]]))
    return min(float(chance[: int(ranks[told > 0].sum()) + 1].sum()), 1.0)


def refusal(found: Contest, margin: float, p_value: float) -> str:
    """Why a challenger does not take the champion's place, part of a sentence; empty where it does.

    Parameters
    ----------
    found
        The contest.
    margin
        The improvement that has to be exceeded.
    p_value
        The largest p with which it counts.
    """
    if not found.devices:
        return "no device could score both"
    if not found.improvement > margin:
        return f"its A-RMSE is {_percent(found.improvement)}, and the margin is {100 * margin:g} %"
    if found.p > p_value:
        few = f", and {found.devices} devices cannot give less than {0.5**found.devices:.2g}" if 0.5**found.devices > p_value else ""
        return f"it is better on {found.better} of {found.devices} devices, p = {found.p:.2g} against {p_value:g}{few}"
    return ""


def _percent(improvement: float) -> str:
    return f"{100 * abs(improvement):.2f} % {'smaller' if improvement > 0 else 'larger'}"
