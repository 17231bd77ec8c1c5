"""A run in words for those who own the devices: whether federation helps them, and how sure that is."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedcore.metrics import LEVELS
from fedcore.selection import paired
from tasks.report.found import Found, Scores
from tasks.report.style import listed

CHANCE = 0.05
"""p, of a two-sided paired t test over devices, from which on a mean difference may be chance."""

SMALL = 0.01
"""The share of the error alone below which a mean difference is of no practical size, however sure it is."""

MANY = 0.1
"""The share of devices that are hurt from which on it is cautioned against a favourable mean."""

Answer = Literal["yes", "no", "unclear", "unknown"]


class Verdict(NamedTuple):
    """The answer to "does federation help here?".

    Attributes
    ----------
    answer
        `unclear` where the difference may be chance or is very small, `unknown` where no device has told a score or the run has failed.
    headline
        The answer as a person gives it.
    sentences
        What it rests on.
    caution
        Why not to rely on it, a sentence; "" where there is nothing to caution about.
    """

    answer: Answer
    headline: str
    sentences: tuple[str, ...]
    caution: str = ""


def verdict(found: Found) -> Verdict:
    """The mean difference in RMSE to each device on its own, paired by device, whether it may be chance (see `CHANCE`), and whether it
    is of any size (see `SMALL`); with a caution where it is favourable and rests on shaky ground, or the run has failed."""
    scores, K, failed = found.scores, len(found.scores.devices), ""
    if found.outcome and not found.outcome.ok:
        failed = f"The run ended as {found.outcome.name}, so its figures are of little use: {found.outcome.message}."
    if not K:
        rule = f"a score is told of {found.fewest_rows} test rows or more"
        why = f"No device has test rows that a score may be told of ({rule}). Give the contract a [split] with test rows, and train again."
        return Verdict("unknown", "This run cannot say", () if failed else (why,), failed)
    ours, alone = float(scores.rmse.mean()), float(scores.alone.mean())
    difference = paired(scores.rmse, scores.alone)
    better = int((scores.change < 0).sum())
    share = f"{100 * abs(ours / alone - 1):.1f} % {'less' if ours < alone else 'more'}"
    many = "device" if K == 1 else f"{K} devices"
    unit = f" {found.unit.removeprefix('shares ')}" if found.unit else ""  # a tenth of something is no tenth of shares
    told = [
        f"On rows that no model has seen, predictions are off by {ours:.4g}{unit} (mean over {many}) where each device on its own is off "
        f"by {alone:.4g}: {share}.",
        f"{better} of {K} devices {'is' if better == 1 else 'are'} better off with the fleet.",
    ]
    hurt = [scores.devices[k] for k in np.argsort(-scores.change) if scores.hurt[k]]
    told.append(
        f"{len(hurt)} {'is' if len(hurt) == 1 else 'are'} worse off by more than chance explains: {listed(hurt)}."
        if hurt
        else "None is worse off by more than chance explains."
    )
    if K > 1:
        told.append(f"The mean difference is {difference.mean:+.3g} ± {difference.se:.2g} (standard error over devices).".replace("-", "−"))
    if silent := len(found.devices) - K:
        rule = f"they have fewer than {found.fewest_rows} test rows, or no finite score"
        told.append(f"{silent} {'device is' if silent == 1 else 'devices are'} not counted: {rule}.")
    if failed:
        return Verdict("unknown", "This run cannot say", tuple(told), failed)
    sure = K > 1 and abs(difference.mean) > stdtrit(K - 1, 1 - CHANCE / 2) * difference.se
    if not sure:
        return Verdict("unclear", "It cannot be told", (*told, "With so few devices, or so small a difference, that may be chance."))
    if abs(ours / alone - 1) < SMALL:
        return Verdict("unclear", "Hardly", (*told, f"That is no chance, but less than {100 * SMALL:.0f} %: too little to matter."))
    if difference.mean < 0:
        return Verdict("yes", "Yes" if not hurt else "Yes, but not for every device", tuple(told), _caution(found))
    return Verdict("no", "No", (*told, "Each device is better served on its own, or by another method: fedlin compare tries them all."))


def _caution(found: Found) -> str:
    """Why a favourable answer is on shaky ground: the rival, the devices that lose by it, and what the run says of itself."""
    scores, R, outcome = found.scores, len(found.history), found.outcome
    K, better, hurt = len(scores.devices), int((scores.change < 0).sum()), int(scores.hurt.sum())
    why: list[str] = []
    if found.beyond and not found.stepwise and not found.settings.get("penalty"):
        why.append(
            "test rows come after all training rows, where exact least squares alone may run far away, so ask fedlin compare for the gain "
            "over rivals that do not"
        )
    if 2 * better < K:
        why.append("most devices are worse off, and the mean is carried by the few that gain much")
    elif hurt >= MANY * K:
        why.append(f"{hurt} of {K} devices are hurt, and another method may hurt fewer: fedlin compare tries them all")
    if outcome and outcome.name not in ("completed", "converged"):
        why.append(f"the run ended as {outcome.name}: {outcome.message}")
    elif outcome and outcome.name == "completed" and found.settings["participation"] == 1 and (found.settled or 0) > 0.9 * R:
        why.append("the training error had not settled when the rounds were over, so with more of them the answer may be another")
    if found.caution:
        why.append(f"the run says of itself that {found.caution}")
    told = "; ".join(why)
    return f"{told[:1].upper()}{told[1:]}." if told else ""


STATED = 0.9
"""The level of the intervals that words speak of."""

TOLERATED = 0.02
"""By what share intervals may miss it and still hold about as often as they say."""

POOR = 0.8
"""The share of test rows below which it is cautioned against intervals at `STATED`."""


class Held(NamedTuple):
    """How many test rows intervals hold, in words ("" where none are told), and whether that is a caution."""

    sentence: str
    caution: bool


def intervals(scores: Scores) -> Held:
    """Whether intervals hold as often as they say, by more than two standard errors over devices, and by more than `TOLERATED`."""
    if scores.covered is None:
        return Held("", False)
    share, se = held(scores)
    named = LEVELS.index(STATED)
    off = share[named] - STATED
    sure = not abs(off) <= 2 * np.nan_to_num(se[named]) and abs(off) > TOLERATED
    judged = "they are too narrow" if off < 0 else "they are wider than need be"
    told = (
        f"{100 * STATED:.0f} % intervals hold {100 * share[named]:.0f} % of test rows: {judged if sure else 'about as often as they say'}."
    )
    return Held(told, bool(share[named] < POOR))


def held(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """By level, the share of all test rows that intervals hold, and its standard error over devices (NaN for one device)."""
    assert scores.covered is not None
    n, K = scores.n, len(scores.devices)
    share = scores.covered.sum(axis=0) / n.sum()
    if K < 2:
        return share, np.full(len(share), np.nan)
    left = scores.covered - n[:, None] * share
    return share, np.sqrt(K / (K - 1) * (left**2).sum(axis=0)) / n.sum()


def size(count: float) -> str:
    """A number of bytes in its largest unit."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"
