"""The sums over devices that `fedcore.eb` is fitted by, and one device's part of them.

Functions work on the parts of m devices at once, with a leading device axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from fedcore.compression import Compressed
from fedcore.gaussian import Expected, product
from fedcore.rows import Floats, Scalar
from fedcore.semidefinite import EPSILON, packed, solve

LEAST_FACTOR = 0.5
"""Bound of the factors of parameter expansion: a variance of zero is for ever, so no single round may decide on one."""

T = TypeVar("T", bound=tuple[Any, ...])


class Pooled(NamedTuple):
    """Sums over devices for the start; or one device's part of them, zero where it has told it before.

    Attributes
    ----------
    devices, n, freedom
        How many devices, rows, and residual degrees of freedom (rows less rank).
    gram, moment, power
        X'X, packed, X'y, shape (d,), and y'y.
    rss
        Residual sums of squares of the devices' own least squares.
    """

    devices: Scalar
    n: Scalar
    freedom: Scalar
    gram: Floats
    moment: Floats
    power: Scalar
    rss: Scalar


class Part(NamedTuple):
    """Sums over devices for EM; or one device's part of them, or its change.

    Attributes
    ----------
    devices, n, freedom
        As in `Pooled`.
    first
        Of m_k - origin, shape (d,).
    second
        Of (m_k - origin)(m_k - origin)' + V_k, packed.
    residual
        Of E|y_k - X_k theta_k|^2.
    log_likelihood
        Of the marginal log likelihoods, at the parameters that each device was last sent.
    """

    devices: Scalar
    n: Scalar
    freedom: Scalar
    first: Floats
    second: Floats
    residual: Scalar
    log_likelihood: Scalar


def pooled(rows: Compressed) -> Pooled:
    """The devices' parts of the start."""
    n, transposed = np.asarray(rows.n), rows.R.swapaxes(1, 2)
    return Pooled(
        devices=np.ones(len(n)),
        n=n,
        freedom=rows.freedom,
        gram=packed(transposed @ rows.R),
        moment=product(transposed, rows.y),
        power=n * rows.power,
        rss=rows.rss,
    )


def part(rows: Compressed, found: Expected, centered: Floats) -> Part:
    """The devices' parts of the sums; `centered` is m_k - origin, shape (m, d)."""
    second = packed(found.covariance + squares(centered))
    return Part(np.ones(len(centered)), rows.n, rows.freedom, centered, second, found.residual, found.log_likelihood)


def no_part(d: int) -> Part:
    """No devices' part."""
    return Part(0.0, 0.0, 0.0, np.zeros(d), np.zeros(d * (d + 1) // 2), 0.0, 0.0)


def squares(vectors: Floats) -> Floats:
    """Outer products of each vector with itself: of shape (m, d), in shape (m, d, d)."""
    return vectors[:, :, None] * vectors[:, None, :]


def repeated(message: T, m: int) -> T:
    """A message to each of m devices."""

    def repeat(value: Scalar) -> Floats:
        return np.repeat(np.asarray(value)[None], m, axis=0)

    return _each(repeat, message)


def scaled(messages: T, by: Floats) -> T:
    """The messages of m devices, each times a number, shape (m,)."""

    def scale(values: Floats) -> Floats:
        return by.reshape(-1, *(1,) * (values.ndim - 1)) * values

    return _each(scale, messages)


def added(sums: T, messages: T) -> T:
    """Sums with the messages of m devices added."""

    def add(total: Scalar, values: Floats) -> Scalar:
        return total + values.sum(axis=0)

    return _each(add, sums, messages)


def changed(new: T, old: T) -> T:
    """New messages less old ones."""
    return _each(np.subtract, new, old)


def _each(function: Callable[..., Any], *messages: T) -> T:
    """The message whose fields are the function of these messages' fields."""
    return cast("Any", type(messages[0]))(*map(function, *messages))


def expansion(slope: Floats, curvature: Floats) -> tuple[Floats, float]:
    """Factors a, shape (d,) or (1,), that maximise 2 slope'(a - 1) - (a - 1)'curvature (a - 1), or as far towards them as their bound
    allows, and that value."""
    step = solve(curvature, slope)
    share = min(1.0, (1.0 - LEAST_FACTOR) / max(float(-step.min()), EPSILON))
    return 1.0 + share * step, share * (2.0 - share) * float(slope @ step)
