"""The normal approximation of phi's posterior, as the server holds it: a prior times one site of each device.

A round takes in the changes of sites that devices propose, as far as the approximation stays a distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedcore.hm2.natural import NaturalParams, log_partition, moments
from fedcore.rows import Floats

MOST_OF_A_DIRECTION = 0.8
"""The share of its precision that the approximation may lose in any direction in one round."""


class Approximation(NamedTuple):
    """q(phi), and what of it is whose.

    Attributes
    ----------
    q
        The approximation.
    sites
        What was taken of each device, with a leading axis K.
    terms
        Each device's log Z_k + Phi(cavity) - Phi(q) when its site was last refreshed, shape (K,), NaN before; Phi is `log_partition`.
    change
        By how much of its standard deviation the last round would have moved a mean, or by which share changed a standard deviation, had
        all that was proposed been taken; inf unless every device answered.
    damping
        The fraction of the proposed changes that the last round took.
    skipped
        How many devices had nothing to propose in it, because their cavity or tilted distribution is none.
    """

    q: NaturalParams
    sites: NaturalParams
    terms: Floats
    change: float
    damping: float
    skipped: int


class Proposal(NamedTuple):
    """From a device: how its site is to change, log Z_k + Phi(cavity), and 1 where it has nothing to propose, else 0.

    Attributes
    ----------
    site
        The change, zero where there is none.
    term, skipped
        Shape () each; the term is 0 in the round of the start's sites.
    """

    site: NaturalParams
    term: Floats
    skipped: Floats


def of_prior(prior: NaturalParams, K: int) -> Approximation:
    """The prior, before any site of K devices."""
    sites = NaturalParams(*(np.zeros((K, len(part))) for part in prior))
    return Approximation(prior, sites, np.full(K, np.nan), np.inf, 1.0, 0)


def with_sites(approximation: Approximation, cohort: Sequence[int], changes: NaturalParams) -> Approximation:
    """The start's sites of a cohort, every one of which is positive semi-definite, taken whole."""
    sites = _moved(approximation.sites, cohort, changes, 1.0)
    return approximation._replace(q=approximation.q.plus(changes.total()), sites=sites)


def refreshed(approximation: Approximation, cohort: Sequence[int], proposal: Proposal, damping: float) -> Approximation | None:
    """The approximation after a round; None where no fraction of what was proposed leaves it a distribution.

    Parameters
    ----------
    approximation
        From before.
    cohort
        Who answered, ascending.
    proposal
        Theirs, with a leading axis.
    damping
        The most that is to be taken, in (0, 1].
    """
    before, K = moments(approximation.q), len(approximation.terms)
    total, anew = proposal.site.total(), np.asarray(proposal.skipped) == 0
    fraction = min(damping, _largest_fraction(approximation.q, total))
    q = approximation.q.plus(total, fraction)
    after = moments(q)
    if not (after.proper and np.isfinite(after.mean).all()):
        return None
    sd, sd_before = (np.sqrt(np.diagonal(found.covariance)) for found in (after, before))
    moved = max(np.abs((after.mean - before.mean) / sd).max(), np.abs(np.log(sd / sd_before)).max())
    terms = approximation.terms.copy()
    terms[np.asarray(cohort)[anew]] = proposal.term[anew] - log_partition(approximation.q)
    return Approximation(
        q,
        _moved(approximation.sites, cohort, proposal.site, fraction),
        terms,
        float(moved / fraction) if len(cohort) == K else np.inf,
        fraction,
        int(np.count_nonzero(~anew)),
    )


def evidence(approximation: Approximation, prior: NaturalParams) -> float:
    """Expectation propagation's log evidence, exact at a fixed point; NaN until every device has refreshed its site."""
    return float(log_partition(approximation.q) - log_partition(prior) + approximation.terms.sum())


def without(approximation: Approximation, prior: NaturalParams, places: Sequence[int | None]) -> Approximation:
    """The approximation of another fleet: sites of those who left are divided out, and those who join have none yet."""
    fresh = of_prior(prior, len(places))
    kept, old = [k for k, place in enumerate(places) if place is not None], [place for place in places if place is not None]
    for part, before in ((fresh.sites.shift, approximation.sites.shift), (fresh.sites.precision, approximation.sites.precision)):
        part[kept] = before[old]
    return fresh._replace(q=prior.plus(fresh.sites.total()))


def _moved(sites: NaturalParams, cohort: Sequence[int], changes: NaturalParams, fraction: float) -> NaturalParams:
    moved = NaturalParams(sites.shift.copy(), sites.precision.copy())
    moved.shift[cohort] += fraction * changes.shift
    moved.precision[cohort] += fraction * changes.precision
    return moved


def _largest_fraction(q: NaturalParams, change: NaturalParams) -> float:
    """The largest fraction of a change of precision by which no direction loses more than `MOST_OF_A_DIRECTION`."""
    root = np.linalg.cholesky(q.matrix)
    half = np.linalg.solve(root, change.matrix)
    least = float(np.linalg.eigvalsh(np.linalg.solve(root, half.T))[0])
    return MOST_OF_A_DIRECTION / -least if least < 0 else np.inf
