"""What a hierarchical model offers to `fedcore.hm2.algorithm`: theta_k ~ p(. | phi), y_k ~ N(X_k theta_k, sigma^2 I), phi ~ N.

With theta_k integrated out, device k is a factor f_k(phi) = p(y_k | phi). Expectation propagation replaces it by a normal site. A model
knows what f_k is; it knows nothing of rounds, messages, damping or other devices.

A model is a frozen dataclass of options. Methods that work on devices take m of them at once, with a leading axis on every array, and no
device's result depends on the others', to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from fedcore.hm2.coefficients import Coefficients
from fedcore.hm2.natural import NaturalParams, log_partition
from fedcore.hm2.units import Units
from fedcore.rows import Booleans, DeviceData, Floats

Private = TypeVar("Private", bound=tuple[Any, ...])
Point = TypeVar("Point", bound=tuple[Any, ...])
Statistics = TypeVar("Statistics", bound=tuple[Any, ...])


class Tilted(NamedTuple):
    """The tilted distributions f_k(phi) N(phi; cavity) of m devices, by their moments.

    Attributes
    ----------
    mean, covariance
        Shapes (m, p) and (m, p, p), p the length of phi.
    log_evidence
        log of the integral of f_k(phi) times the normalised cavity, shape (m,).
    proper
        Whether the quadrature found moments that are finite with a positive definite covariance, shape (m,). Where not, the others mean
        nothing.
    loss
        Mean squared training error about where theta_k is then, shape (m,), in squared target units.
    """

    mean: Floats
    covariance: Floats
    log_evidence: Floats
    proper: Booleans
    loss: Floats


class Hierarchy(Protocol[Private, Point, Statistics]):
    """A hierarchical model.

    Attributes
    ----------
    START
        The phases of its start, in order; may be empty. In each, devices send statistics that are summed.
    CAUTION
        What has to be known of its results, part of a sentence; empty where there is nothing.
    POINTS
        How many values stand for phi in results that are by a certificate's draws.
    """

    START: ClassVar[tuple[str, ...]]
    CAUTION: ClassVar[str]
    POINTS: ClassVar[int]

    def at(self, units: Units) -> Self:
        """This model, with its hyper-prior stated in these units."""
        ...

    def blocks(self, d: int) -> dict[str, int]:
        """The blocks of phi by name, in order, with their lengths: `mu`, `log_tau`, `log_sigma2`, `log_lambda`."""
        ...

    def prior(self, d: int) -> NaturalParams:
        """The prior of phi, or a normal distribution with its moments; the server's alone."""
        ...

    def prior_refreshed(self, q: NaturalParams, site: NaturalParams) -> NaturalParams:
        """The prior's part in q anew, from q and what it was. A prior that is normal stays as it is."""
        return site

    def prior_evidence(self, q: NaturalParams, site: NaturalParams) -> float:
        """The prior's part in the evidence, log Z + Phi(q without it) - Phi(q); -Phi(prior) where it is normal."""
        return -float(log_partition(site))

    def log_prior(self, phi: Floats) -> Floats:
        """log of the prior's density at S values of phi, shape (S, p): shape (S,)."""
        ...

    def prepare(self, datas: Sequence[DeviceData]) -> Private:
        """What m devices keep: their compressed rows, and whatever else `tilted` carries from round to round.

        Raises
        ------
        Misuse
            Where a device's rows cannot take part in this model.
        """
        ...

    def loss(self, private: Private) -> Floats:
        """Mean squared training error of each device's own least squares, shape (m,)."""
        ...

    def start(self, d: int) -> Point:
        """What the server knows before the start, a NamedTuple of arrays and scalars; sent to devices in the start's rounds."""
        ...

    def start_statistics(self, phase: str, point: Point, private: Private) -> Statistics:
        """Each device's part of the sums of this phase, with a leading axis; their size depends on d alone. `point` is one for all."""
        ...

    def start_form(self, phase: str, d: int) -> Statistics:
        """One device's part of these sums, of any values."""
        ...

    def started(self, phase: str, point: Point, total: Statistics, devices: int, fleet: int) -> Point:
        """What the server knows after this phase, from sums over the devices that answered out of the fleet."""
        ...

    def start_sites(self, point: Point, private: Private) -> NaturalParams:
        """The sites of m devices at the end of the start, each positive semi-definite."""
        ...

    def tilted(self, private: Private, q: NaturalParams, cavity: NaturalParams) -> tuple[Private, Tilted]:
        """Tilted moments of m devices.

        Parameters
        ----------
        private
            Of m devices; may carry on where their quadrature is centred.
        q
            The current approximation, one for all: where quadrature starts from.
        cavity
            q less each device's own site; every one a normal distribution.
        """
        ...

    def log_factor(self, private: Private, phi: Floats) -> Floats:
        """log f_k(phi) of m devices at S values of phi, shape (S, p): shape (m, S)."""
        ...

    def bound(self, private: Private, phi: Floats) -> Floats:
        """What log f_k of m devices cannot be above at S values of phi, shape (m, S): a value of `log_factor` above it is none. Inf, or an
        array that broadcasts, where the factors are exact."""
        return np.array(np.inf)

    def coefficients(self, private: Private, q: NaturalParams, cavity: NaturalParams) -> list[Coefficients]:
        """The posterior of each device's coefficients, from the tilted distributions."""
        ...

    def coefficients_at(self, private: Private, phi: Floats, log_weight: Floats) -> list[Coefficients]:
        """The same, from S values that stand for phi, shape (S, p), with the log of their weights for each device, shape (m, S)."""
        ...

    def elsewhere(self, q: NaturalParams) -> NaturalParams | None:
        """A normal distribution over where the posterior may be besides near q; None for all of the prior."""
        return None

    def doubtful(self, q: NaturalParams, devices: int) -> bool:
        """Whether q, the approximation of so many devices, may be off by so much that it is to be checked where nothing is said of
        that."""
        ...

    def far(self, q: NaturalParams) -> bool:
        """Whether q's mean is so far from the prior's that the data may be in other units than the prior."""
        ...

    def another_mode(self, q: NaturalParams) -> bool:
        """Whether phi may have another mode that a start at zero sites would find, so that it is worth trying."""
        ...
