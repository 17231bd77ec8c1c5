"""What server and devices of `fedcore.hm2.algorithm` know and tell, and phi as it is reported."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from fedcore.hm2.approximation import Approximation
from fedcore.hm2.certificate import Certificate, Spread
from fedcore.hm2.natural import NaturalParams, moments
from fedcore.rows import Booleans, Floats, Scalar


class Server(NamedTuple):
    """What the server knows.

    Attributes
    ----------
    units
        That the hyper-prior is stated in, once they are known; () where they are those of the data.
    point, total, rounds, heard
        Of the start what is known so far; of a phase of the start, or of the certificate, sums, rounds, and who has answered, shape (K,).
    phase
        Which of `ExpectationPropagation.phases` it is in.
    which
        The approximation, 0 or 1, that is refreshed, and at the end the one that is kept.
    approximations
        Of the phase `main`, and of the phase `second`.
    second_rounds
        How many rounds `second` took.
    certificate, spread, looks
        Of all draws, what the next ones come from, and how often there were some; see `fedcore.hm2.certificate`.
    trace
        q after each round of expectation propagation, with a leading axis.
    ended, failed
        Whether the run has converged, and whether an update was not finite or left no distribution.
    """

    units: Any
    point: Any
    total: Any
    rounds: int
    heard: Booleans
    phase: int
    which: int
    approximations: tuple[Approximation, Approximation]
    second_rounds: int
    certificate: Certificate
    spread: Spread
    looks: int
    trace: NaturalParams
    ended: bool
    failed: bool

    @property
    def approximation(self) -> Approximation:
        """The current one."""
        return self.approximations[self.which]

    @property
    def kept(self) -> Approximation:
        """The one that results are of."""
        return self.approximations[0] if self.second_rounds and not self.ended else self.approximation

    @property
    def log_evidence(self) -> float:
        """Of the model, by the draws where these are reliable."""
        return self.certificate.log_evidence if self.certificate.reliable else self.kept.log_evidence


class Device(NamedTuple):
    """What a device keeps: what its model keeps, and its site in each of the two approximations (an axis of length 2)."""

    private: Any
    sites: NaturalParams


class Ask(NamedTuple):
    """To a device in the start: the number of the phase, the point, and units."""

    phase: Scalar
    point: Any
    units: Any


class Current(NamedTuple):
    """To a device.

    Attributes
    ----------
    q, which, units
        The approximation, which one it is, and units.
    draws
        Of phi where there is a certificate that is reliable, shape (T, p), else none, T = 0.
    taken
        Whether these know of the device's rows, 1 or 0.
    """

    q: NaturalParams
    which: Scalar
    units: Any
    draws: Floats
    taken: Scalar


class Seeking(NamedTuple):
    """To a device in the phase `second`: the approximation that is refreshed, the first one, which results are of until then, and units."""

    q: NaturalParams
    first: NaturalParams
    units: Any


class Check(NamedTuple):
    """To a device: what the certificate's draws come from, and units."""

    spread: Spread
    units: Any


class LogFactors(NamedTuple):
    """From a device: log f_k at the draws, shape (S,)."""

    values: Floats


class Info(NamedTuple):
    """Of a round; see `Approximation`."""

    log_evidence: float
    change: float
    damping: float
    skipped: float


def phi(server: Server, blocks: dict[str, int], prior: NaturalParams, level: float = 0.9) -> dict[str, dict[str, list[float]]]:
    """Means, standard deviations and equal-tailed intervals of phi, by block: of the certificate's draws where these are reliable. And
    means and standard deviations of the prior.

    Parameters
    ----------
    server
        Of a run past its start.
    blocks
        Names and lengths; see `Hierarchy.blocks`.
    prior
        Of phi; see `Hierarchy.prior`.
    level
        Probability of an interval.
    """
    tail = 0.5 * (1.0 - level)
    if server.certificate.reliable:
        draws = server.certificate
        mean, sd = draws.mean, np.sqrt(np.diagonal(draws.covariance))
        lower, upper = draws.quantiles(tail), draws.quantiles(1.0 - tail)
    else:
        found = moments(server.kept.q)
        mean, sd = found.mean, np.sqrt(np.diagonal(found.covariance))
        lower, upper = mean + sd * ndtri(tail), mean - sd * ndtri(tail)
    before = moments(prior)
    columns = {"mean": mean, "sd": sd, "lower": lower, "upper": upper}
    columns |= {"prior_mean": before.mean, "prior_sd": np.sqrt(np.diagonal(before.covariance))}
    ends = np.cumsum(list(blocks.values()))
    return {
        block: {name: values[end - length : end].tolist() for name, values in columns.items()}
        for (block, length), end in zip(blocks.items(), ends.tolist(), strict=True)
    }
