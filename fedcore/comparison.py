"""How an algorithm does on a fleet beside the one that the others are compared with.

Devices are the sample, as in `fedcore.selection`. Repeats of one data set are not: they share its rows, and averaging over them removes
what chance draws of validation rows and of steps have added. So figures are averaged over repeats first, device by device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.rows import Booleans, Floats
from fedcore.selection import Paired, paired

HURT = 2.0
"""How many of its own standard errors a device has to be worse by to count as hurt."""


class Standing(NamedTuple):
    """One algorithm's figures over K devices.

    Attributes
    ----------
    rmse
        Of each device, mean over repeats, shape (K,).
    a_rmse
        Its mean over devices.
    sd_over_repeats
        Standard deviation over repeats of each one's mean over devices, NaN for one repeat: how much chance draws matter, and no
        sampling error.
    difference
        To the reference, paired by device.
    worst
        The largest of the devices' figures.
    hurt
        The devices that do worse than with the reference, shape (K,): their mean squared errors are larger by more than two standard
        errors of the difference over their own test rows, means of both over repeats.
    """

    rmse: Floats
    a_rmse: float
    sd_over_repeats: float
    difference: Paired
    worst: float
    hurt: Booleans


def standing(rmse: Floats, reference: Floats, excess: Floats, excess_se: Floats) -> Standing:
    """An algorithm's standing.

    Parameters
    ----------
    rmse, reference
        Its test RMSE and that of the reference by repeat and device, shape (R, K), neither 0.
    excess, excess_se
        How much larger its squared errors are than the reference's, mean over each device's test rows, and the standard error over rows,
        taken to be independent of one another, shape (R, K).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = rmse.mean(axis=0)
        each = rmse.mean(axis=1)
        sd = float(each.std(ddof=1)) if len(each) > 1 else np.nan
        hurt = excess.mean(axis=0) > HURT * excess_se.mean(axis=0)
    return Standing(mean, float(mean.mean()), sd, paired(mean, reference.mean(axis=0)), float(mean.max()), hurt)
