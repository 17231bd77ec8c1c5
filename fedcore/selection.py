"""Which of several configurations is the best on a fleet, and by how much one is better than another.

Devices are the sample: a fleet's figure is a mean over devices, and its uncertainty is how much the devices differ. Two configurations are
compared on the same devices, so it is their difference on each device that counts, which varies far less than either.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedcore.rows import Floats

Rule = Literal["best", "one-se"]


class Paired(NamedTuple):
    """A difference that is paired by device, or by row.

    Attributes
    ----------
    mean
        Mean over the n pairs, NaN without any.
    se
        Its standard error, sd / sqrt(n) with n - 1 degrees of freedom; NaN for fewer than two pairs.
    """

    mean: float
    se: float


def paired(ours: Floats, theirs: Floats) -> Paired:
    """How much larger one figure is than another, both of shape (n,)."""
    n = len(ours)
    with np.errstate(over="ignore", invalid="ignore"):
        difference = ours - theirs
        mean = float(difference.mean()) if n else np.nan
        return Paired(mean, float(difference.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan)


def select(rmse: Floats, rule: Rule) -> int | None:
    """The configuration to use.

    Parameters
    ----------
    rmse
        A figure of each configuration on each device, smaller is better, shape (m, K), neither 0. Configurations come from the simplest
        on; one that has a non-finite figure on some device cannot be selected.
    rule
        "best" for the smallest mean over devices, the earlier one of equals. "one-se" for the first one whose paired difference to that
        one is at most one standard error of that difference: what is simpler and as good, for all that these devices can tell.

    Returns
    -------
    int or None
        Its row, None where no row can be selected.
    """
    with np.errstate(over="ignore"):
        means = rmse.mean(axis=1)
    means = np.where(np.isfinite(means), means, np.inf)
    best = int(np.argmin(means))
    if means[best] == np.inf:
        return None
    if rule == "best":
        return best
    for i in np.flatnonzero(means < np.inf):
        difference = paired(rmse[i], rmse[best])
        if i == best or difference.mean <= difference.se:
            return int(i)
    raise AssertionError("the best one is among them")
