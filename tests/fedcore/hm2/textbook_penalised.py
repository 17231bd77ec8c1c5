"""Expectation propagation over phi as a textbook has it: all devices each round, whole steps, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from fedcore.hm2.coefficients import Coefficients, Marginals
from fedcore.hm2.natural import NaturalParams, inverse, moments, natural
from fedcore.rows import DeviceData, Floats


class Fitted(NamedTuple):
    mean: Floats
    covariance: Floats
    coefficients: list[Coefficients]
    rounds: int
    evidence: Floats


def expectation_propagation(model: Any, datas: Sequence[DeviceData], rounds: int = 30, tolerance: float = 1e-3) -> Fitted:
    K, d = len(datas), datas[0].train.d
    private, point, prior = model.prepare(datas), model.start(d), model.prior(d)
    for phase in model.START:
        statistics = model.start_statistics(phase, point, private)
        total = type(statistics)(*(np.asarray(each).sum(axis=0) for each in statistics))
        point = model.started(phase, point, total, K, K)
    sites = model.start_sites(point, private)
    for done in range(1, rounds + 1):  # noqa: B007
        q = prior.plus(sites.total())
        cavity = NaturalParams(q.shift - sites.shift, q.precision - sites.precision)
        private, tilted = model.tilted(private, q, cavity)
        assert moments(cavity).proper.all()
        assert tilted.proper.all()
        new = natural(tilted.mean, inverse(tilted.covariance)[0]).minus(cavity)
        before, now = moments(q), moments(prior.plus(new.total()))
        eta = 1.0 if now.proper else 0.5
        sites = sites.plus(new.minus(sites), eta)
        now = moments(prior.plus(sites.total()))
        sd = np.sqrt(now.covariance.diagonal())
        moved = max(np.abs((now.mean - before.mean) / sd).max(), np.abs(np.log(sd / np.sqrt(before.covariance.diagonal()))).max())
        if moved < tolerance:
            break
    q = prior.plus(sites.total())
    cavity = NaturalParams(q.shift - sites.shift, q.precision - sites.precision)
    return Fitted(now.mean, now.covariance, model.coefficients(private, q, cavity), done, tilted.log_evidence)


def cdf(marginals: Marginals, t: Floats) -> Floats:
    """P(theta_i <= t_i), shape (d,): each component is a normal distribution cut off at zero on either side."""
    sd = np.sqrt(marginals.variance)
    pull, away = sd / marginals.scale, marginals.mean / sd
    log_left, log_right = log_ndtr(-away - pull) + away * pull, log_ndtr(away - pull) - away * pull
    left = 1.0 / (1.0 + np.exp(np.clip(log_right - log_left, -700, 700)))
    below = np.exp(np.minimum(log_ndtr(np.minimum(t, 0.0) / sd - away - pull) - log_ndtr(-away - pull), 0.0))
    above = np.where(t > 0, -np.expm1(np.minimum(log_ndtr(away - pull - t / sd) - log_ndtr(away - pull), 0.0)), 0.0)
    normal = ndtr(t / sd - away)
    return (marginals.weight * np.where(np.isinf(marginals.scale), normal, left * below + (1.0 - left) * above)).sum(axis=0)


def quantile(marginals: Marginals, p: float) -> Floats:
    reach = 40.0 * np.sqrt(marginals.variance)
    low, high = (marginals.mean - reach).min(axis=0), (marginals.mean + reach).max(axis=0)
    for _ in range(80):
        middle = 0.5 * (low + high)
        short = cdf(marginals, middle) < p
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return 0.5 * (low + high)
