"""The cavity of (mu, t), t = log tau, in the form that quadrature over t needs, and what quadrature finds: both given the noise.

mu given t is normal in cavity and factor alike, so it is integrated exactly, and quadrature is over t alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.compression import Compressed
from fedcore.gaussian import product
from fedcore.hm2.cholesky import Inverse, cholesky, inverse, log_determinant
from fedcore.hm2.natural import LOG_2PI, NaturalParams
from fedcore.rows import Booleans, Floats

Devices = NDArray[np.intp] | slice
"""Some of the devices along the first axis."""


class Conditional(NamedTuple):
    """t ~ N(t, P^-1) and mu | t ~ N(mu + G (t - its mean), C), of B pairs of a device and a noise variance.

    Attributes
    ----------
    mu, t
        Means, shapes (B, d) and (B, a).
    C, G, P
        Shapes (B, d, d), (B, d, a) and (B, a, a).
    log_determinant
        Of P, shape (B,).
    """

    mu: Floats
    t: Floats
    C: Floats
    G: Floats
    P: Floats
    log_determinant: Floats

    def log_density(self, offset: Floats) -> Floats:
        """log of the density of t at its mean + `offset`, shape (B, a): shape (B,)."""
        quadratic = (offset * product(self.P, offset)).sum(axis=-1)
        return 0.5 * (self.log_determinant - quadratic - offset.shape[-1] * LOG_2PI)


class Integral(NamedTuple):
    """Of the device's factor times the cavity, over mu and t.

    Attributes
    ----------
    log_evidence
        log of the integral, shape (B,).
    mean, covariance
        Of (mu, t), shapes (B, d + a) and (B, d + a, d + a).
    scale
        Conditional standard deviations of the entries of t, shape (B, a).
    proper
        Whether all is finite and the covariance of t positive definite, shape (B,). Where not, the mean of t may still show the way to
        a better centre.
    """

    log_evidence: Floats
    mean: Floats
    covariance: Floats
    scale: Floats
    proper: Booleans


class Cavity(NamedTuple):
    """Cavities of m devices as functions of the log noise variance s.

    Attributes
    ----------
    mean, slope
        Of (mu, t) given s: mean + slope (s - noise_mean); shape (m, d + a).
    C, G, P, log_determinant
        As in `Conditional`; they do not depend on s.
    noise_mean, noise_variance
        Of s, shape (m,).
    proper
        Whether it is a normal distribution, shape (m,).
    """

    mean: Floats
    slope: Floats
    C: Floats
    G: Floats
    P: Floats
    log_determinant: Floats
    noise_mean: Floats
    noise_variance: Floats
    proper: Booleans

    def given(self, noise: Floats, d: int) -> Conditional:
        """At values of s, shape (m, J); B = m J, device by device."""
        m, J = noise.shape
        offset = (noise - self.noise_mean[:, None])[:, :, None]
        mean = (self.mean[:, None] + self.slope[:, None] * offset).reshape(m * J, -1)
        mu, t = np.ascontiguousarray(mean[:, :d]), np.ascontiguousarray(mean[:, d:])
        return Conditional(mu, t, *(repeat(each, J) for each in (self.C, self.G, self.P, self.log_determinant)))

    def of(self, devices: Devices) -> Cavity:
        """Those of some of the devices."""
        parts: list[Any] = [part[devices] for part in self]
        return Cavity(*parts)


def split(params: NaturalParams, d: int) -> Cavity:
    """Of distributions of (mu, t, s)."""
    Q = params.matrix
    joint, given = inverse(Q), _given(Q[:, :-1, :-1], d)
    mean = product(joint.matrix, params.shift)
    variance = np.ascontiguousarray(joint.matrix[:, -1, -1])
    slope = joint.matrix[:, :-1, -1] / variance[:, None]
    return given.cavity(mean[:, :-1].copy(), slope, mean[:, -1].copy(), variance, joint.proper)


def independent(params: NaturalParams, d: int, noise_mean: float, noise_variance: float) -> Cavity:
    """Of distributions of (mu, t), and an s independent of both."""
    given, m = _given(params.matrix, d), len(params.shift)
    mu, G = np.ascontiguousarray(params.shift[:, :d]), given.G
    t = product(given.t.matrix, params.shift[:, d:] + product(G.swapaxes(1, 2), mu))
    mean = np.concatenate([product(given.mu.matrix, mu) + product(G, t), t], axis=1)
    return given.cavity(mean, np.zeros_like(mean), np.full(m, noise_mean), np.full(m, noise_variance), np.ones(m, dtype=bool))


class _Given(NamedTuple):
    """mu given t, and t, each with the inverse of its precision; G and P as in `Conditional`."""

    mu: Inverse
    t: Inverse
    G: Floats
    P: Floats

    def cavity(self, mean: Floats, slope: Floats, noise_mean: Floats, noise_variance: Floats, proper: Booleans) -> Cavity:
        sound = self.mu.proper & self.t.proper & proper
        return Cavity(mean, slope, self.mu.matrix, self.G, self.P, self.t.log_determinant, noise_mean, noise_variance, sound)


def _given(Q: Floats, d: int) -> _Given:
    """From the precision of (mu, t)."""
    mu = inverse(Q[:, :d, :d])
    G = -mu.matrix @ Q[:, :d, d:]
    schur = Q[:, d:, d:] + Q[:, d:, :d] @ G
    P = 0.5 * (schur + schur.swapaxes(1, 2))
    return _Given(mu, inverse(P), G, P)


class Explained(NamedTuple):
    """The rows of B devices given theta ~ N(a, S): V = R S R' + sigma^2 I.

    Attributes
    ----------
    log_density
        log N(y; X a, X S X' + sigma^2 I), shape (B,).
    W
        R'V^-1 R, shape (B, d, d).
    u
        R'V^-1 (Q'y - R a), shape (B, d).
    proper
        Whether V is positive definite, as far as rounding goes, shape (B,).
    """

    log_density: Floats
    W: Floats
    u: Floats
    proper: Booleans


def explained(rows: Compressed, a: Floats, S: Floats, noise: Floats) -> Explained:
    """Rows of B devices, or one's B times, given a, shape (B, d), S, shape (B, d, d), and sigma^2, shape (B,).

    A row of zeros that stands for one missing, where n < d, adds log sigma^2 to log |V| and takes it off (n - d) log sigma^2.
    """
    d = a.shape[-1]
    V = rows.R @ S @ rows.R.swapaxes(1, 2) + noise[:, None, None] * np.eye(d)
    L, proper = cholesky(V)
    residual = rows.y - product(rows.R, a)
    white = np.linalg.solve(L, np.concatenate([np.broadcast_to(rows.R, V.shape), residual[:, :, None]], axis=2))
    projected = white.swapaxes(1, 2) @ white
    log_density = -0.5 * (log_determinant(L) + (rows.n - d) * np.log(noise) + projected[:, d, d] + rows.rss / noise + rows.n * LOG_2PI)
    return Explained(log_density, np.ascontiguousarray(projected[:, :d, :d]), np.ascontiguousarray(projected[:, :d, d]), proper)


def rows_of(rows: Compressed, devices: Devices) -> Compressed:
    """Those of some of the devices."""
    return Compressed(*(np.asarray(part)[devices] for part in rows))


def repeat(array: Floats, times: int) -> Floats:
    """Every device's entry `times` times: shape (m, ...) to (m * times, ...); the array itself where that is once."""
    return array if times == 1 else np.repeat(array, times, axis=0)
