"""The normal approximation of phi's posterior, as the server holds it: a prior times one site of each device.

A round takes in the changes of sites that devices propose, as far as the approximation stays a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedcore.hm2.natural import Moments, NaturalParams, log_partition, moments
from fedcore.messages import columns
from fedcore.rows import Floats

MOST_OF_A_DIRECTION = 0.8
"""The share of its precision that the approximation may lose in any direction in one round."""

LONGEST_STEP, HALVINGS = 3.0, 30
"""How many of its standard deviations a mean may move in one round. From far away, as from the prior, many proposals together point past
the mark: each device takes the distance for its own to explain."""

SWINGS, FALLS, LEAST_SHARE = 0.1, 2.0 / 3.0, 0.25
"""From which change on a round that goes back on the one before, and is not smaller by this factor, is taken for swinging to and fro, as
where rows say little of phi; from then on half as much is taken, down to this share of the most."""

RefreshPrior = Callable[[NaturalParams, NaturalParams], NaturalParams]
PriorEvidence = Callable[[NaturalParams, NaturalParams], float]


class Approximation(NamedTuple):
    """q(phi), and what of it is whose.

    Attributes
    ----------
    q
        The approximation.
    prior
        What of it is the prior's.
    sites
        What was taken of each device, with a leading axis K.
    terms
        Each device's log Z_k + Phi(cavity) - Phi(q), for cavity and q of the round in which its site was last refreshed, shape (K,), NaN
        before; Phi is `log_partition`.
    log_evidence
        Expectation propagation's, of the q that the last round began with: there an error of q changes it by the square of it alone. NaN
        until every device has refreshed its site.
    move
        By how much of its standard deviation the last round would have moved each mean, and by which share changed each standard deviation,
        had all that was proposed been taken, shape (2 p,).
    change
        The largest of these; inf unless every device answered.
    damping
        The fraction of the proposed changes that the last round took.
    skipped
        How many devices had nothing to propose in it, because their cavity or tilted distribution is none.
    share
        Of the most that is to be taken of changes, what the next round takes at most.
    """

    q: NaturalParams
    prior: NaturalParams
    sites: NaturalParams
    terms: Floats
    log_evidence: float
    move: Floats
    change: float
    damping: float
    skipped: int
    share: float


class Proposal(NamedTuple):
    """From a device: how its site is to change, log Z_k + Phi(cavity), and 1 where it has nothing to propose, else 0.

    Attributes
    ----------
    site
        The change, zero where there is none.
    term, skipped
        Scalars, shape () each; the term is 0 in the round of the start's sites.
    """

    site: NaturalParams
    term: Floats
    skipped: Floats


def of_prior(prior: NaturalParams, K: int) -> Approximation:
    """The prior, before any site of K devices."""
    sites = NaturalParams(*(np.zeros((K, len(part))) for part in prior))
    return Approximation(prior, prior, sites, np.full(K, np.nan), np.nan, np.zeros(2 * len(prior.shift)), np.inf, 1.0, 0, 1.0)


def with_sites(approximation: Approximation, cohort: Sequence[int], changes: NaturalParams) -> Approximation:
    """The start's sites of a cohort, every one of which is positive semi-definite, taken whole."""
    sites = _moved(approximation.sites, cohort, changes, 1.0)
    return approximation._replace(q=approximation.q.plus(changes.total()), sites=sites)


def refreshed(
    approximation: Approximation,
    refresh_prior: RefreshPrior,
    prior_evidence: PriorEvidence,
    cohort: Sequence[int],
    proposal: Proposal,
    damping: float,
) -> Approximation | None:
    """The approximation after a round; None where no fraction of what was proposed leaves it a distribution near the one before.

    Parameters
    ----------
    approximation
        From before.
    refresh_prior, prior_evidence
        See `Hierarchy`. The first is called with q as it is after the devices' changes, the second as it was before.
    cohort
        Who answered, ascending.
    proposal
        Theirs, with a leading axis.
    damping
        The most that is to be taken, in (0, 1].
    """
    K, before = len(approximation.terms), moments(approximation.q)
    total, anew = proposal.site.total(), np.asarray(proposal.skipped) == 0
    found = _largest_step(approximation.q, before, total, damping * approximation.share)
    if found is None:
        return None
    q, fraction, moved = found
    prior, phi = refresh_prior(q, approximation.prior), log_partition(approximation.q)
    terms = approximation.terms.copy()
    answered = np.asarray(cohort)
    terms[answered[anew]] = proposal.term[anew] - phi
    move = moved / fraction
    change = float(np.abs(move).max()) if len(cohort) == K else np.inf
    swings = SWINGS < change < np.inf and change > FALLS * approximation.change and float(move @ approximation.move) < 0
    absent = answered[~anew]
    terms[absent[np.isnan(terms[absent])]] = 0.0  # what never had a site counts as a factor of 1
    return Approximation(
        q.plus(prior.minus(approximation.prior)),
        prior,
        _moved(approximation.sites, cohort, proposal.site, fraction),
        terms,
        float(phi + prior_evidence(approximation.q, approximation.prior) + terms.sum()),
        move,
        change,
        fraction,
        int(np.count_nonzero(~anew)),
        max(0.5 * approximation.share, LEAST_SHARE) if swings else approximation.share,
    )


def with_prior(approximation: Approximation, prior: NaturalParams) -> Approximation:
    """The approximation with another prior."""
    return approximation._replace(q=prior.plus(approximation.sites.total()), prior=prior)


def without(approximation: Approximation, places: Sequence[int | None]) -> Approximation:
    """The approximation of another fleet: sites of those who left are divided out, and those who join have none yet."""
    prior = approximation.prior
    fresh = of_prior(prior, len(places))
    kept, old = [k for k, place in enumerate(places) if place is not None], [place for place in places if place is not None]
    for part, before in ((fresh.sites.shift, approximation.sites.shift), (fresh.sites.precision, approximation.sites.precision)):
        part[kept] = before[old]
    return fresh._replace(q=prior.plus(fresh.sites.total()))


def _moved(sites: NaturalParams, cohort: Sequence[int], changes: NaturalParams, fraction: float) -> NaturalParams:
    moved, chosen = NaturalParams(sites.shift.copy(), sites.precision.copy()), columns(cohort, len(sites.shift))
    moved.shift[chosen] += fraction * changes.shift
    moved.precision[chosen] += fraction * changes.precision
    return moved


def _largest_step(q: NaturalParams, before: Moments, change: NaturalParams, most: float) -> tuple[NaturalParams, float, Floats] | None:
    """q after as much of a change as leaves it a distribution and near, which fraction that is, and what it moved; see `Approximation`."""
    sd_before = np.sqrt(np.diagonal(before.covariance))
    fraction = min(most, _largest_fraction(q, change))
    for _ in range(HALVINGS):
        changed = q.plus(change, fraction)
        after = moments(changed)
        step = after.mean - before.mean
        if after.proper and (np.abs(step) <= LONGEST_STEP * sd_before).all():
            sd = np.sqrt(np.diagonal(after.covariance))
            return changed, fraction, np.concatenate([step / sd, np.log(sd / sd_before)])
        fraction *= 0.5
    return None


def _largest_fraction(q: NaturalParams, change: NaturalParams) -> float:
    """The largest fraction of a change of precision by which no direction loses more than `MOST_OF_A_DIRECTION`."""
    root = np.linalg.cholesky(q.matrix)
    half = np.linalg.solve(root, change.matrix)
    least = float(np.linalg.eigvalsh(np.linalg.solve(root, half.T))[0])
    return MOST_OF_A_DIRECTION / -least if least < 0 else np.inf
