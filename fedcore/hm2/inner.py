"""Expectation propagation within a device: y ~ N(X theta, sigma^2 I) with independent priors on the coefficients that are not normal.

Given sigma^2 and the priors' scales, each prior is replaced by a normal site exp(beta t - pi t^2 / 2), so that theta is jointly normal. A
sweep takes each coefficient's marginal without its site, the cavity, multiplies by its prior, and sets all sites to match the moments.
Steps are whole, and shortened for good by a factor where the error has risen. A fixed point gives the evidence too. With a prior that is
not convex and few rows, sites that all move at once may run away. There one is set after the other, which cannot leave the distributions.

Works on m devices times J nodes, values of sigma^2 and of the scales. A pair that has converged stays as it is, so that none depends on
the others.

Source: Minka (2001), "Expectation propagation for approximate Bayesian inference".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.compression import Compressed
from fedcore.deadline import check_deadline
from fedcore.gaussian import product
from fedcore.hm2.laplace import Tilt
from fedcore.hm2.natural import LOG_2PI
from fedcore.rows import Booleans, Floats

SWEEPS, SWEEPS_IN_TURN = 100, 200
TOLERANCE = 1e-5
"""Of moments, in units of the posterior's. Another step is taken from there on, and the evidence does not react to a site's small error."""

PATIENCE = 30
"""Sweeps of all sites at once, after which sites of a prior that is not convex are set in turn."""

IN_TURN, LEAST_LEFT = 0.3, 1e-6
"""Length of steps in turn, longer ones of which swing between modes without an end; and the least share of a marginal's precision that is
not the site's, for a step to be taken."""

SHORTER, SHORTEST = 0.6, 0.1
"""Factor of the steps after a rise of the error, and the least step."""

DROP = 0.01
"""Least factor of a site's precision in one sweep, for a convex prior. Far from a kink the site is flat, and columns that are one another
have nothing but their sites to tell them apart."""

VAGUE = 1e8
"""Cavities have at most this variance, in units of the prior's: there the posterior is the prior, and the cavity's variance rounding."""

LEAST_PIVOT = 1e-8
"""Of a precision matrix that negative sites are part of, as a share of its diagonal: its inverse then is not rounding alone."""

CONFOUNDED = 1e-5
"""Share of the largest singular value of the design, with columns of length 1, below which the least says that columns are confounded."""

HALVINGS = 40
"""Of a step, until it is given up."""

Indices = NDArray[np.intp]

Prior = Callable[..., Tilt]
"""Moments of N(t; mean, variance) times the prior, of mean, variance and the prior's scales."""


class Inner(NamedTuple):
    """Of m devices at J nodes.

    Attributes
    ----------
    log_evidence
        log p(y), shape (m, J); NaN where there is no normal approximation.
    mean, covariance
        Of the joint normal approximation, shapes (m, J, d) and (m, J, d, d).
    cavity_mean, cavity_variance
        Of single coefficients without their prior, shape (m, J, d): times the prior they are the marginals.
    """

    log_evidence: Floats
    mean: Floats
    covariance: Floats
    cavity_mean: Floats
    cavity_variance: Floats


class _Likelihood(NamedTuple):
    """Of B pairs as functions of theta: R / sigma, R'R / sigma^2, and whether columns are confounded. Where they are, what their sites tell
    them apart by may be less than the rounding of the sum of R'R / sigma^2 and sites, which a QR decomposition spares unless sites are
    negative."""

    root: Floats
    precision: Floats
    confounded: Booleans

    def of(self, some: Indices | slice) -> _Likelihood:
        return _Likelihood(self.root[some], self.precision[some], self.confounded[some])

    def covariance(self, sites: Floats) -> Floats:
        """With sites of precisions pi, shape (B, d)."""
        apart = self._apart(sites)
        if not apart.any():
            return _inverse(_with_sites(self.precision, sites))
        covariance = np.empty_like(self.precision)
        covariance[~apart] = _inverse(_with_sites(self.precision[~apart], sites[~apart]))
        inverse = _inverse(self._triangle(sites, apart))
        covariance[apart] = inverse @ inverse.swapaxes(1, 2)
        return covariance

    def log_determinant(self, sites: Floats) -> tuple[Floats, Booleans]:
        """Of the precision, and whether it is positive definite."""
        apart = self._apart(sites)
        root, positive = _cholesky(_with_sites(self.precision, sites))
        root[apart] = self._triangle(sites, apart)
        return 2.0 * np.log(np.abs(_diagonal(root))).sum(axis=1), positive | apart

    def _apart(self, sites: Floats) -> Booleans:
        return self.confounded & (sites >= 0).all(axis=1)

    def _triangle(self, sites: Floats, some: Booleans) -> Floats:
        spread = np.sqrt(sites[some])[:, :, None] * np.eye(sites.shape[1])
        return np.asarray(np.linalg.qr(np.concatenate([self.root[some], spread], axis=1), mode="r"), dtype=np.float64)


class _Sites(NamedTuple):
    shift: Floats
    precision: Floats


class _Sweep(NamedTuple):
    """Moments of the joint approximation, of the cavities, and of the tilted marginals, of B pairs."""

    mean: Floats
    covariance: Floats
    variance: Floats
    cavity_mean: Floats
    cavity_variance: Floats
    tilt: Tilt


def inner_ep(rows: Compressed, noise: Floats, prior: Prior, scales: tuple[Floats, ...], variance: Floats, *, convex: bool = True) -> Inner:
    """Run to a fixed point.

    Parameters
    ----------
    rows
        Of m devices.
    noise
        sigma^2, shape (m, J).
    prior
        The same for all coefficients.
    scales
        What `prior` takes besides, each of shape (m, J).
    variance
        Of the prior, or of the size of it where it has none, shape (m, J): where sites start. A coefficient whose column is zero on a
        device keeps that.
    convex
        Whether -log of the prior is convex; then sites are never negative.
    """
    m, J = noise.shape
    d = rows.y.shape[1]
    device: Indices = np.repeat(np.arange(m, dtype=np.intp), J)
    transposed = np.ascontiguousarray(rows.R.swapaxes(1, 2))
    gram, moment = transposed @ rows.R, product(transposed, rows.y)
    seen = np.asarray((rows.R != 0).any(axis=1))[device]
    sigma2, sizes, each = noise.ravel()[:, None], variance.ravel()[:, None], tuple(scale.ravel()[:, None] for scale in scales)
    root = rows.R[device] / np.sqrt(sigma2)[:, :, None]
    likelihood = _Likelihood(root, gram[device] / sigma2[:, :, None], _confounded(rows.R)[device])
    shift = moment[device] / sigma2

    sites = _Sites(np.zeros((m * J, d)), np.repeat(1.0 / sizes, d, axis=1))
    live: Indices = np.arange(m * J, dtype=np.intp)
    step, error = np.ones((m * J, 1)), np.full(m * J, np.inf)
    for _ in range(SWEEPS if convex else PATIENCE):
        check_deadline()
        some = slice(None) if len(live) == m * J else live  # no copies where all are live
        likely, now = likelihood.of(some), _Sites(sites.shift[some], sites.precision[some])
        found = _sweep(likely, shift[some], now, sizes[some], prior, tuple(scale[some] for scale in each))
        new = _matched(found, now, seen[some], convex=convex)
        wrong = np.abs(found.tilt.mean - found.mean) / np.sqrt(found.variance) + np.abs(found.tilt.variance / found.variance - 1.0)
        worst = np.where(seen[some], wrong, 0.0).max(axis=1)
        step[some] = np.where((worst > error[some])[:, None], np.maximum(step[some] * SHORTER, SHORTEST), step[some])
        error[some] = worst
        length = step[some] if convex else _shortened(likely.precision, now, new, step[some])
        sites.shift[some] = now.shift + length * (new.shift - now.shift)
        sites.precision[some] = now.precision + length * (new.precision - now.precision)
        live = live[~(worst < TOLERANCE)]
        if not len(live):
            break
    if len(live) and not convex:
        restart = _Sites(np.zeros((len(live), d)), np.repeat(1.0 / sizes[live], d, axis=1))
        moved = _in_turn(likelihood.of(live), shift[live], restart, seen[live], prior, tuple(scale[live] for scale in each))
        sites.shift[live], sites.precision[live] = moved
    found = _sweep(likelihood, shift, sites, sizes, prior, each)
    log_evidence = _log_evidence(rows, device, sigma2, likelihood, sites, found, seen)
    return Inner(
        log_evidence.reshape(m, J),
        found.mean.reshape(m, J, d),
        found.covariance.reshape(m, J, d, d),
        np.where(seen, found.cavity_mean, 0.0).reshape(m, J, d),
        np.where(seen, found.cavity_variance, VAGUE * sizes).reshape(m, J, d),
    )


def _confounded(R: Floats) -> Booleans:
    """Whether a combination of columns of length 1 all but vanishes, of m devices."""
    length = np.sqrt((R**2).sum(axis=1))
    singular = np.linalg.svd(R / np.where(length > 0, length, 1.0)[:, None], compute_uv=False)
    return singular[:, -1] < CONFOUNDED * singular[:, 0]


def _sweep(likelihood: _Likelihood, shift: Floats, sites: _Sites, sizes: Floats, prior: Prior, scales: tuple[Floats, ...]) -> _Sweep:
    covariance = likelihood.covariance(sites.precision)
    mean = product(covariance, shift + sites.shift)
    variance = _diagonal(covariance)
    left = np.maximum(1.0 - sites.precision * variance, 1e-12)  # the share of the precision that is not the site's
    cavity_variance = np.minimum(variance / left, VAGUE * sizes)
    cavity_mean = np.where(left > 1e-9, (mean - sites.shift * variance) / left, 0.0)
    return _Sweep(mean, covariance, variance, cavity_mean, cavity_variance, prior(cavity_mean, cavity_variance, *scales))


def _matched(found: _Sweep, sites: _Sites, seen: Booleans, *, convex: bool) -> _Sites:
    """The sites that give the tilted moments; where nothing is seen, those that are."""
    tilt = found.tilt
    precision = 1.0 / tilt.variance - 1.0 / found.cavity_variance
    shift = tilt.mean / tilt.variance - found.cavity_mean / found.cavity_variance
    if convex:
        precision = np.maximum(precision, DROP * sites.precision)
    return _Sites(np.where(seen, shift, sites.shift), np.where(seen, precision, sites.precision))


def _in_turn(likelihood: _Likelihood, shift: Floats, sites: _Sites, seen: Booleans, prior: Prior, scales: tuple[Floats, ...]) -> _Sites:
    """Sites set one after the other. With a cavity that is a distribution, so is what a step leads to."""
    live: Indices = np.arange(len(shift), dtype=np.intp)
    for _ in range(SWEEPS_IN_TURN):
        check_deadline()
        beta, pi, some = sites.shift[live], sites.precision[live], tuple(scale[live] for scale in scales)
        covariance = likelihood.of(live).covariance(pi)
        mean = product(covariance, shift[live] + beta)
        worst = np.zeros(len(live))
        for i in range(shift.shape[1]):
            variance = covariance[:, i, i]
            left = 1.0 - pi[:, i] * variance
            able = seen[live, i] & (left > LEAST_LEFT) & (variance > 0)
            share = np.where(able, left, 1.0)
            cavity_variance = np.where(able, variance, 1.0) / share
            cavity_mean = np.where(able, mean[:, i] - beta[:, i] * variance, 0.0) / share
            tilt = Tilt(*(moment[:, 0] for moment in prior(cavity_mean[:, None], cavity_variance[:, None], *some)))
            wrong = np.abs(tilt.mean - mean[:, i]) / np.sqrt(cavity_variance * share) + np.abs(
                tilt.variance / (cavity_variance * share) - 1.0
            )
            worst = np.maximum(worst, np.where(able, wrong, 0.0))
            rise = np.where(able, IN_TURN * (1.0 / tilt.variance - 1.0 / cavity_variance - pi[:, i]), 0.0)
            move = np.where(able, IN_TURN * (tilt.mean / tilt.variance - cavity_mean / cavity_variance - beta[:, i]), 0.0)
            column, stretch = covariance[:, :, i].copy(), 1.0 + rise * variance
            mean += column * ((move - rise * mean[:, i]) / stretch)[:, None]
            covariance -= (rise / stretch)[:, None, None] * column[:, :, None] * column[:, None, :]
            pi[:, i] += rise
            beta[:, i] += move
        sites.shift[live], sites.precision[live] = beta, pi
        live = live[~(worst < TOLERANCE)]
        if not len(live):
            break
    return sites


def _shortened(precision: Floats, now: _Sites, new: _Sites, length: Floats) -> Floats:
    """Steps short enough that the approximation stays a distribution."""
    length = length.copy()
    bad: Indices = np.arange(len(length), dtype=np.intp)
    for _ in range(HALVINGS):
        tried = now.precision[bad] + length[bad] * (new.precision[bad] - now.precision[bad])
        matrices = _with_sites(precision[bad], tried)
        root, positive = _cholesky(matrices)
        pivots = np.diagonal(root, axis1=1, axis2=2) ** 2 / np.diagonal(matrices, axis1=1, axis2=2)
        bad = bad[~(positive & (pivots > LEAST_PIVOT).all(axis=1))]
        if not len(bad):
            return length
        length[bad] *= 0.5
    length[bad] = 0.0
    return length


def _log_evidence(
    rows: Compressed, device: Indices, sigma2: Floats, likelihood: _Likelihood, sites: _Sites, found: _Sweep, seen: Booleans
) -> Floats:
    """log of the integral of likelihood and sites, each site normalised as its prior is in its cavity. The exponent is taken at the mean,
    where it is stationary: its terms are then no larger than the residuals are, however precise the rows."""
    beta, pi, cavity_mean, cavity_variance = sites.shift, sites.precision, found.cavity_mean, found.cavity_variance
    error = rows.y[device] - product(rows.R[device], found.mean)
    squares = ((error**2).sum(axis=1) + np.asarray(rows.rss)[device]) / sigma2[:, 0]
    exponent = squares + (pi * found.mean**2 - 2.0 * beta * found.mean).sum(axis=1)
    determinant, positive = likelihood.log_determinant(pi)
    share = 1.0 + pi * cavity_variance
    in_cavity = -0.5 * np.log(share) + 0.5 * (2.0 * beta * cavity_mean + beta**2 * cavity_variance - pi * cavity_mean**2) / share
    normal = 0.5 * (np.log(np.where(seen, 1.0, pi)) - LOG_2PI)
    height = np.where(seen, found.tilt.log_normaliser - in_cavity, normal).sum(axis=1)
    value = height - 0.5 * (
        np.asarray(rows.n)[device] * np.log(2.0 * np.pi * sigma2[:, 0]) + exponent + determinant - pi.shape[1] * LOG_2PI
    )
    return np.where(positive, value, np.nan)


def _with_sites(precision: Floats, sites: Floats) -> Floats:
    matrices = precision.copy()
    diagonal: Indices = np.arange(precision.shape[-1], dtype=np.intp)
    matrices[:, diagonal, diagonal] += sites
    return matrices


def _diagonal(matrices: Floats) -> Floats:
    return np.ascontiguousarray(np.diagonal(matrices, axis1=1, axis2=2))


def _inverse(matrices: Floats) -> Floats:
    """Inverses; NaN where there is none."""
    try:
        return np.asarray(np.linalg.inv(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        return _one_by_one(np.linalg.inv, matrices)


def _cholesky(matrices: Floats) -> tuple[Floats, Booleans]:
    """Lower triangular factors, and whether there is one, without which the identity stands."""
    try:
        factors = np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        factors = _one_by_one(np.linalg.cholesky, matrices)
    positive = np.asarray(np.isfinite(factors).all(axis=(1, 2)))
    return np.where(positive[:, None, None], factors, np.eye(matrices.shape[-1])), positive


def _one_by_one(function: Callable[[Any], Any], matrices: Floats) -> Floats:
    """NaN where it fails."""
    results = np.full_like(matrices, np.nan)
    for result, matrix in zip(results, matrices, strict=True):
        with suppress(np.linalg.LinAlgError):
            result[:] = function(matrix)
    return results
