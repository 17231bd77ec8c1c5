"""Mixtures of tilted normal distributions, one for each of many unknowns: moments, tails, quantiles and shortest intervals.

Nothing here looks at one unknown at a time: a fleet's are a leading axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedcore.hm2.laplace import laplace_tilt
from fedcore.hm2.tilted_normal import EPSILON, TINY, Side, Tails, TiltedNormal, tails, tilted_normal
from fedcore.rows import Booleans, Floats

Ints = NDArray[np.intp]

MOST = 400
"""Steps of an inversion: bisection alone takes this many at most."""

BLOCK = 8192
"""Components, of all unknowns together, that an inversion works on at once: what it computes with then stays in the processor's cache."""

NEAR = 1e-9
"""Relative error of a probability from which one more step of Newton's method reaches rounding."""

SETTLED = 1e-10
"""How far the shortest interval may still move, as a share of the probability outside it; its length, least there, has long settled."""


@dataclass(frozen=True)
class Mixture:
    """N unknowns, each a mixture of C components.

    Attributes
    ----------
    shape
        Of the unknowns; all results have it.
    weight
        Shape (N, C), N the product of `shape`.
    components
        Arrays of shape (N, C).
    mean, variance
        Shape (N,).
    """

    shape: tuple[int, ...]
    weight: Floats
    components: TiltedNormal
    mean: Floats
    variance: Floats

    @classmethod
    def of(cls, weight: Floats, mean: Floats, variance: Floats, scale: Floats) -> Mixture:
        """From components as `fedcore.hm2.coefficients.Marginals` states them, with any leading axes: shape (..., C, d) for unknowns of
        shape (..., d)."""
        shape = (*mean.shape[:-2], mean.shape[-1])
        columns = [_components_last(each) for each in (weight, mean, variance, scale)]
        law = tilted_normal(*columns[1:])
        found = laplace_tilt(law.mean, law.sd**2, columns[3])
        center = (columns[0] * found.mean).sum(axis=1)
        spread = (columns[0] * (found.variance + (found.mean - center[:, None]) ** 2)).sum(axis=1)
        return cls(shape, columns[0], law, center, spread)

    @classmethod
    def normal(cls, weight: Floats, mean: Floats, variance: Floats) -> Mixture:
        """Mixtures of J normal distributions with common weights, shape (J,); means and variances of shape (J, q)."""
        return cls.of(np.broadcast_to(weight[:, None], mean.shape), mean, variance, np.full(mean.shape, np.inf))

    def tails(self, t: Floats | float) -> Tails:
        """Tails and density at t, which broadcasts to `shape`, or has further axes in front of it."""
        at = np.broadcast_to(t, np.broadcast_shapes(np.shape(t), self.shape))
        return Tails(*(each.reshape(at.shape) for each in self._tails(self._rows(at), at.ravel())))

    def quantiles(self, below: Floats | float) -> Floats:
        """Where the probability below is as given, in (0, 1); `below` broadcasts to `shape`, or has further axes in front of it."""
        at = np.broadcast_to(below, np.broadcast_shapes(np.shape(below), self.shape))
        flat = at.ravel()
        upper = flat > 0.5
        return self._inverted(self._rows(at), np.where(upper, 1.0 - flat, flat), upper).reshape(at.shape)

    def equal_tailed(self, level: float) -> Floats:
        """Intervals with equal probability on either side, shape (*shape, 2)."""
        tail, rows = 0.5 * (1.0 - level), np.arange(len(self.mean))
        return self._intervals(rows, np.full(len(rows), tail), np.full(len(rows), tail)).reshape(*self.shape, 2)

    def shortest(self, level: float) -> Floats:
        """Shortest intervals, shape (*shape, 2), for densities with one mode; for others none that is longer than the equal-tailed one.

        The density is the same at both ends. The probability below, a share of what is outside, is found by bisection with secants.
        """
        outside, rows = 1.0 - level, np.arange(len(self.mean))
        low, high = np.zeros(len(rows)), np.ones(len(rows))
        falls, rises = np.full(len(rows), np.inf), np.full(len(rows), -np.inf)  # log ratio of densities, upper end to lower, there
        share = np.full(len(rows), 0.5)
        active, side = rows, np.zeros(len(rows))
        for _ in range(MOST):
            ends = self._intervals(active, outside * share[active], outside * (1.0 - share[active]))
            with np.errstate(divide="ignore", invalid="ignore"):
                lower, upper = (np.log(self._tails(active, end).density) for end in ends.T)
                gap = upper - lower
            right = gap > 0  # the interval should move up
            low[active], falls[active] = np.where(right, share[active], low[active]), np.where(right, gap, falls[active])
            high[active], rises[active] = np.where(right, high[active], share[active]), np.where(right, rises[active], gap)
            # An end that stays twice loses half of its weight, so that secants close in from both sides.
            again = np.where(right, 1.0, -1.0) == side[active]
            rises[active] = np.where(again & right, 0.5 * rises[active], rises[active])
            falls[active] = np.where(again & ~right, 0.5 * falls[active], falls[active])
            side[active] = np.where(right, 1.0, -1.0)
            with np.errstate(invalid="ignore"):
                secant = (low * rises - high * falls) / (rises - falls)
            inside = (secant > low) & (secant < high)
            moved = np.where(inside, secant, 0.5 * (low + high))
            done = (gap == 0) | (np.abs(moved[active] - share[active]) <= SETTLED) | (high[active] - low[active] <= SETTLED)
            active = active[~done]
            share[active] = moved[active]
            if not len(active):
                break
        found = self._intervals(rows, outside * share, outside * (1.0 - share)).reshape(*self.shape, 2)
        equal = self.equal_tailed(level)
        return np.where(np.diff(found) <= np.diff(equal), found, equal)

    def _intervals(self, rows: Ints, below: Floats, above: Floats) -> Floats:
        """Of some unknowns, by the probabilities outside, shape (len(rows), 2)."""
        upper = np.repeat([False, True], len(rows))
        return self._inverted(np.concatenate([rows, rows]), np.concatenate([below, above]), upper).reshape(2, -1).T

    def _rows(self, at: Floats) -> Ints:
        """Which unknown each entry of an array belongs to."""
        return np.broadcast_to(np.arange(len(self.mean)).reshape(self.shape), at.shape).ravel()

    def _tails(self, rows: Ints, t: Floats) -> Tails:
        return _mixed(self.weight[rows], _taken(self.components, rows), t)

    def _inverted(self, rows: Ints, tail: Floats, upper: Booleans) -> Floats:
        """Where the lower tail, or the upper one, has a probability in (0, 1)."""
        size = max(1, BLOCK // self.weight.shape[1])
        blocks = [slice(i, i + size) for i in range(0, max(len(rows), 1), size)]
        return np.concatenate([self._block_inverted(rows[block], tail[block], upper[block]) for block in blocks])

    def _block_inverted(self, rows: Ints, tail: Floats, upper: Booleans) -> Floats:
        """The same of one block.

        Newton's method on the tail's logarithm, which is all but linear far out, in brackets by Cantelli's inequality, that hold for every
        distribution; by bisection where Newton leaves them or gains little.
        """
        sd, sign = np.sqrt(self.variance[rows]), np.where(upper, -1.0, 1.0)
        # All in y = +-t, so that the wanted tail is the lower one. Not in the distance from the mean: near zero there can be mass within
        # less than its rounding.
        center = sign * self.mean[rows]
        low, high = center - sd * np.sqrt((1.0 - tail) / tail), center + sd * np.sqrt(tail / (1.0 - tail))
        start = np.clip(center + sd * np.asarray(ndtri(tail)), low, high)
        margin = 1e-6 * sd + 8.0 * EPSILON * np.abs(center) + TINY
        at = _Search(start, low - margin, high + margin, np.full(len(start), np.inf), sign, np.log(tail))
        result, active = np.empty(len(start)), np.arange(len(start))
        weight, components = self.weight[rows], _taken(self.components, rows)
        for _ in range(MOST):
            t = at.sign * at.y
            found = _mixed(weight, components, t)
            reached = np.where(at.sign > 0, found.below, found.above)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                gap = np.log(reached) - at.target
                step = -gap * reached / found.density
            low, high = np.where(gap < 0, at.y, at.low), np.where(gap < 0, at.high, at.y)
            newton, size = at.y + step, np.abs(gap)
            sound, stuck = (newton >= low) & (newton <= high), size > 0.5 * at.gap
            y = np.where(sound & ~stuck, newton, 0.5 * (low + high))
            close, rounding = size <= NEAR, 4.0 * EPSILON * np.abs(t)
            done = close | (np.abs(y - at.y) <= rounding) | (high - low <= rounding + TINY)
            result[active] = np.where(close & sound, t + at.sign * step, t)
            if done.all():
                break
            at = at._replace(y=y, low=low, high=high, gap=np.where(stuck, np.inf, size))
            if done.any():
                left = ~done
                active, at = active[left], _Search(*(each[left] for each in at))
                weight, components = weight[left], _taken(components, left)
        return result


class _Search(NamedTuple):
    """Of the unknowns that an inversion is still after: where it is, between which bounds, the last gap of the tail's logarithm from its
    target, the sign that turns y into t, and the target."""

    y: Floats
    low: Floats
    high: Floats
    gap: Floats
    sign: Floats
    target: Floats


def _components_last(array: Floats) -> Floats:
    """From shape (..., C, d) to (N, C), C-contiguous."""
    return np.ascontiguousarray(array.swapaxes(-1, -2)).reshape(-1, array.shape[-2])


def _taken(law: TiltedNormal, rows: Ints | Booleans) -> TiltedNormal:
    right, left = (Side(*(each[rows] for each in side)) for side in (law.right, law.left))
    return TiltedNormal(law.mean[rows], law.sd[rows], law.pull[rows], right, left)


def _mixed(weight: Floats, components: TiltedNormal, t: Floats) -> Tails:
    return Tails(*(np.einsum("nc,nc->n", weight, each) for each in tails(components, t[:, None])))
