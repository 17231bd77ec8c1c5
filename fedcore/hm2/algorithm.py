"""HM2: the posterior of a hierarchical model's hyper-parameters phi by federated expectation propagation.

Device k is a factor f_k(phi) = p(y_k | phi), with its coefficients integrated out. The posterior p(phi) prod f_k(phi) is approximated by a
normal q(phi) = p(phi) prod t_k(phi), with a normal site t_k for each device. A round: the server sends q; device k divides its site out,
which leaves its cavity q / t_k, finds mean and covariance of the tilted distribution f_k q / t_k, and proposes the site under which q would
have these; the server adds the proposed changes of all sites, which in natural parameters is a sum, up to a fraction at which q is still a
distribution, and tells devices the fraction by their receipts.

A start spares most rounds and the risk of leaving the good mode: some rounds of the model's own (`fedcore.hm2.hierarchy`), and one in which
devices send sites by its result. Far from the prior phi may have two modes, and a start leads to one of them; the other one is then sought
from the prior, in rounds of the phase `second`, and the one with the larger evidence is kept. Neither kind counts among `--rounds`.

A device whose cavity or tilted distribution is none proposes nothing in that round. Sites may be indefinite, and at the end most are.

Sources: Yue, Al Kontar and Estrada Gomez, "Federated Data Analytics: A Study on Linear Models", section 4, Algorithms 2 and 3; Minka (2001)
for expectation propagation; Vehtari et al. (2020) for its federated form.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator

from fedcore.algorithm import Aggregated, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.hm2.approximation import Approximation, Proposal, of_prior, refreshed, with_prior, with_sites, without
from fedcore.hm2.certificate import (
    LEAST,
    LOOKS,
    RELIABLE,
    UNKNOWN,
    Certificate,
    certified,
    draws,
    first_spread,
    fitted,
    no_certificate,
    prior_spread,
)
from fedcore.hm2.cohorts import added_to, alike, at, to_all
from fedcore.hm2.hierarchy import Hierarchy
from fedcore.hm2.natural import NaturalParams, divergence, inverse, log_partition, moments, natural
from fedcore.hm2.state import Ask, Check, Current, Device, Info, LogFactors, Seeking, Server, phi
from fedcore.hm2.units import Squares, Units, squares, units_of
from fedcore.messages import DeviceInfo, Stacked, all_finite, stacked
from fedcore.options import choice, number
from fedcore.rows import DeviceData, Floats

STARTERS, START_ROUNDS = 10, 10
"""How many devices, if the fleet has them, a phase of the start waits for, and how many rounds at most."""

SECOND_ROUNDS = 50
"""The most rounds of the phase `second`."""

NEWCOMER_POINTS = 600
"""How many values stand for phi in the result of a device that was not in the run: its rows may leave few of them with weight."""

LEAST_WORTH = 60.0
"""How many of them there have to be left, in weight; else the approximation stands for phi, which has tails where they have none."""

UNITS, SITES, MAIN, SECOND, CERTIFICATE = "units", "sites", "main", "second", "certificate"


@dataclass(frozen=True)
class ExpectationPropagation(BatchedAlgorithm[Server, Device, Any, Any]):
    """Expectation propagation over any hierarchical model.

    Attributes
    ----------
    damping
        The most in (0, 1] that is taken of the changes that devices propose.
    tolerance
        The run has converged once a round in which every device answered would move no mean of phi by more than this share of its
        standard deviation, and change no standard deviation by more.
    certificate
        Whether to check phi's posterior by importance sampling, and to mend it: "on", "off", or "auto", where the model doubts the
        approximation. It takes one more round in which every device answers, or up to eight where there is something to mend.
    hyperprior
        What phi's prior is stated in: "paper", in the units of the data, as the paper has it, where coefficients are about 1 in size; or
        "scaled", in units of the fleet's own, the root mean squares of target and columns, which are summed in a round before the others.
    start
        "warm", by the model's own start; "zero", from the prior; or "both", which tries the second where phi may have another mode.
    """

    WHOLE: ClassVar[bool] = False

    damping: float = 1.0
    tolerance: float = 1e-3
    start: Literal["both", "warm", "zero"] = "both"
    certificate: Literal["auto", "on", "off"] = "auto"
    hyperprior: Literal["paper", "scaled"] = "paper"

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        number("damping", self.damping, 0, 1, above=True)
        number("tolerance", self.tolerance, 0, 1, above=True)
        choice("start", self.start, ("both", "warm", "zero"))
        choice("certificate", self.certificate, ("auto", "on", "off"))
        choice("hyperprior", self.hyperprior, ("paper", "scaled"))

    @property
    @abstractmethod
    def hierarchy(self) -> Hierarchy[Any, Any, Any]:
        """The model, with its hyper-prior in the units of the data."""

    def _model(self, units: Any) -> Hierarchy[Any, Any, Any]:
        return self.hierarchy.at(units) if units else self.hierarchy

    @property
    def phases(self) -> tuple[str, ...]:
        """What a run goes through."""
        units = (UNITS,) if self.hyperprior == "scaled" else ()
        start = () if self.start == "zero" else (*self.hierarchy.START, SITES)
        return (*units, *start, MAIN, SECOND, CERTIFICATE)

    def init_server(self, spec: FleetSpec) -> Server:
        K, prior = len(spec.device_ids), self.hierarchy.prior(spec.d)
        nothing, empty = np.zeros(K, dtype=bool), of_prior(prior, K)
        point, p = self.hierarchy.start(spec.d), len(prior.shift)
        trace = NaturalParams(*(np.zeros((0, len(part))) for part in prior))
        certificate, spread = no_certificate(p), prior_spread(prior)
        return Server((), point, (), 0, nothing, 0, 0, (empty, empty), 0, certificate, spread, 0, trace, ended=False, failed=False)

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Device]:
        m, prior = len(datas), self.hierarchy.prior(spec.d)
        sites = NaturalParams(*(np.zeros((m, 2, len(part))) for part in prior))
        return Stacked(Device(self.hierarchy.prepare(datas), sites), m)

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Any]:
        phase = self.phases[server.phase]
        if phase == SECOND and not server.ended:
            return to_all(Seeking(server.approximation.q, server.approximations[0].q, server.units), len(cohort))
        if server.ended or phase == MAIN:
            return to_all(self._current(server, taken=True), len(cohort))
        if phase == CERTIFICATE:
            return to_all(Check(server.spread, server.units), len(cohort))
        return to_all(Ask(float(server.phase), server.point, server.units), len(cohort))

    def _current(self, server: Server, *, taken: bool) -> Current:
        certificate, points = server.certificate, self.hierarchy.POINTS if taken else NEWCOMER_POINTS
        values = certificate.sample(points) if server.ended else certificate.points[:0]
        return Current(server.approximation.q, float(server.which), server.units, values, float(taken))

    @np.errstate(all="ignore")  # what is not finite is found on the server
    def local_steps(
        self, downs: Sequence[Any], devices: Sequence[Device], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Device], Sequence[Any], Sequence[DeviceInfo]]:
        down, device, m = stacked(downs), stacked(devices), len(devices)
        model = self._model(alike(down.units))
        if isinstance(down, Ask):
            phase, point = self.phases[int(np.asarray(down.phase)[0])], alike(down.point)
            infos = Stacked(DeviceInfo(model.loss(device.private)), m)
            if phase == UNITS:
                return devices, Stacked(squares(device.private.rows), m), infos
            if phase != SITES:
                return devices, Stacked(model.start_statistics(phase, point, device.private), m), infos
            change = model.start_sites(point, device.private).minus(_site(device, 0))
            up = Proposal(change, np.zeros(m), np.zeros(m))
            return Stacked(_with_site(device, 0, change), m), Stacked(up, m), infos
        if isinstance(down, Check):
            values = draws(alike(down.spread))
            found = model.log_factor(device.private, values)
            values = np.where(found <= model.bound(device.private, values), np.maximum(found, LEAST), UNKNOWN)
            return devices, Stacked(LogFactors(values), m), Stacked(DeviceInfo(model.loss(device.private)), m)
        q = alike(down.q)
        which = 1 if isinstance(down, Seeking) else int(np.asarray(down.which)[0])
        private, up, loss = self._refreshed(model, device, which, q)
        return Stacked(_with_site(device._replace(private=private), which, up.site), m), Stacked(up, m), Stacked(DeviceInfo(loss), m)

    @np.errstate(all="ignore")  # what is not finite or no distribution is found, and proposes nothing
    def _refreshed(self, model: Hierarchy[Any, Any, Any], device: Device, which: int, q: NaturalParams) -> tuple[Any, Proposal, Floats]:
        site = _site(device, which)
        cavity, integral = self._cavity(site, q)
        private, tilted = model.tilted(device.private, q, cavity)
        precision, proper = inverse(tilted.covariance)
        proposed = natural(tilted.mean, precision).minus(cavity)
        anew = np.isfinite(integral) & proper & tilted.proper & np.isfinite(proposed.shift).all(axis=1) & np.isfinite(tilted.log_evidence)
        change = proposed.minus(site)
        change = NaturalParams(*(np.where(anew[:, None], part, 0.0) for part in change))
        term = np.where(anew, tilted.log_evidence + integral, 0.0)
        return private, Proposal(change, term, np.where(anew, 0.0, 1.0)), tilted.loss

    def _cavity(self, site: NaturalParams, q: NaturalParams) -> tuple[NaturalParams, Floats]:
        """What q leaves without a site, and its `log_partition`; q itself, which nothing comes of, and NaN where that is none."""
        cavity = NaturalParams(q.shift - site.shift, q.precision - site.precision)
        integral = log_partition(cavity)
        sound = np.isfinite(integral)[:, None]
        return NaturalParams(*(np.where(sound, part, whole) for part, whole in zip(cavity, q, strict=True))), integral

    def accept(self, device: Device, pending: Device, fraction: float) -> Device:
        if fraction == 1.0:
            return pending
        moved = (old + fraction * (new - old) for old, new in zip(device.sites, pending.sites, strict=True))
        return Device(pending.private, NaturalParams(*moved))

    def form(self, spec: FleetSpec, server: Server) -> Any:
        phase, q = self.phases[server.phase], server.approximation.q
        if phase in (SITES, MAIN, SECOND):
            return Proposal(q, np.zeros(()), np.zeros(()))
        if phase == CERTIFICATE:
            return LogFactors(np.zeros(server.spread.size))
        return Squares(0.0, np.zeros(spec.d), 0.0) if phase == UNITS else self.hierarchy.start_form(phase, spec.d)

    @np.errstate(all="ignore")  # what is not finite is found below, and named
    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Any]) -> Aggregated:
        up, phase = stacked(ups), self.phases[server.phase]
        if not all_finite(up):
            return _failed(server)
        if phase in (MAIN, SECOND):
            model = self._model(server.units)
            found = refreshed(server.approximation, model.prior_refreshed, model.prior_evidence, cohort, up, self.damping)
            if found is None:
                return _failed(server)
            trace = NaturalParams(*(np.concatenate([old, new[None]]) for old, new in zip(server.trace, found.q, strict=True)))
            server = _with_approximation(server, found)._replace(trace=trace, second_rounds=server.second_rounds + (phase == SECOND))
            info = Info(found.log_evidence, found.change, found.damping, float(found.skipped))
            return Aggregated(self._next(server, phase), found.damping, info)
        q, heard, new = server.approximation.q, server.heard.copy(), ~server.heard[list(cohort)]
        heard[list(cohort)] = True
        server = server._replace(rounds=server.rounds + 1, heard=heard)
        if phase == SITES:
            server = _with_approximation(server, with_sites(server.approximation, cohort, up.site))
        else:
            server = server._replace(total=added_to(server.total, at(up, new)))
        if phase == CERTIFICATE:
            return Aggregated(self._certified(server), 1.0, Info(server.approximation.log_evidence, np.nan, 1.0, 0.0))
        if heard.sum() >= min(len(heard), STARTERS) or server.rounds >= START_ROUNDS:
            server = self._started(server, phase)
        whole = all_finite(server.point) and (server.approximation.q is q or bool(moments(server.approximation.q).proper))
        return Aggregated(server, 1.0, Info(np.nan, np.nan, 1.0, 0.0)) if whole else _failed(server)

    def _started(self, server: Server, phase: str) -> Server:
        if phase == UNITS:
            server = _with_units(server, self.hierarchy, units_of(server.total))
            if server.approximation.sites.precision.any():  # a run that goes on has its sites, and needs no start
                server = server._replace(phase=self.phases.index(MAIN) - 1)
        elif phase != SITES:
            heard, model = int(server.heard.sum()), self._model(server.units)
            server = server._replace(point=model.started(phase, server.point, server.total, heard, len(server.heard)))
        return server._replace(phase=server.phase + 1, **_unheard(server))

    def _next(self, server: Server, phase: str) -> Server:
        """Another phase, or the end, once the approximation has converged. Where most devices propose nothing it only seems to."""
        if not (server.approximation.change < self.tolerance or server.second_rounds == SECOND_ROUNDS):
            return server
        if phase == MAIN and 2 * server.approximation.skipped > len(server.heard):
            return server._replace(failed=True)
        if phase == MAIN and self.start == "both" and self._model(server.units).another_mode(server.approximation.q):
            return server._replace(phase=server.phase + 1, which=1)
        first, second = server.approximations
        found = second.change < self.tolerance and second.skipped <= first.skipped
        better = phase == SECOND and found and second.log_evidence > first.log_evidence
        server = server._replace(which=int(better or (phase == MAIN and server.which)))
        if not self._asks_certificate(server):
            return server._replace(ended=True)
        found = [each.q for each in (first, second)[: 1 + (found and phase == SECOND)]]
        elsewhere = self._model(server.units).elsewhere(server.approximation.q)
        spread = first_spread(server.spread, found, elsewhere)
        return server._replace(phase=self.phases.index(CERTIFICATE), spread=spread, **_unheard(server))

    def _asks_certificate(self, server: Server) -> bool:
        doubted = self._model(server.units).doubtful(server.approximation.q, len(server.heard))
        return self.certificate == "on" or (self.certificate == "auto" and doubted)

    def _certified(self, server: Server) -> Server:
        """With another look once every device was heard, and at the end after the last one, or where some stay away."""
        if not server.heard.all():
            return server._replace(total=(), ended=True) if server.rounds >= START_ROUNDS else server
        spread, before = server.spread, server.certificate
        log_posterior = self._model(server.units).log_prior(draws(spread)) + server.total.values
        found, looks = certified(before, spread, log_posterior), server.looks + 1
        server = server._replace(certificate=found, looks=looks)
        if found.sound or looks == LOOKS or not found.gains(before):
            return server._replace(total=(), ended=True)
        return server._replace(spread=fitted(spread, found), **_unheard(server))

    def status(self, server: Server) -> Continue | Outcome:
        if server.failed and 2 * server.approximation.skipped > len(server.heard):
            what = f"{server.approximation.skipped} of {len(server.heard)} devices have nothing to propose"
            return Outcome(
                "diverged", f"{what}, since what is left without their sites is no distribution: try a smaller damping", ok=False
            )
        if server.failed:
            other = "start=warm" if self.start == "zero" else "start=zero"
            scaled = "" if self.hyperprior == "scaled" else "hyperprior=scaled, "
            advice = f"scale features and target, or try {scaled}a smaller damping or {other}"
            return Outcome("diverged", f"a device's update was not finite, or left no distribution of phi: {advice}", ok=False)
        if not server.ended:
            return Continue(self.phases[server.phase])
        message = f"the last round would have moved no mean and no standard deviation of phi by more than {self.tolerance:g} of it"
        if server.second_rounds:
            kept = "the one from the prior" if server.which else "the one from the start"
            message += f"; of two modes {kept} has the larger evidence"
        if server.looks:
            message += f"; {_told(server.certificate)}"
        if skipped := server.approximation.skipped:
            message += f"; {skipped} of {len(server.heard)} devices had no proposal in it, try a smaller damping"
        return Outcome("converged", message, ok=True)

    def finalize(self, down: Any, device: Device, data: DeviceData) -> DeviceResult:
        return self.finalize_devices([down], [device], [data])[0]

    @np.errstate(all="ignore")  # what is not finite has no weight
    def finalize_devices(self, downs: Sequence[Any], devices: Sequence[Device], datas: Sequence[DeviceData]) -> Sequence[DeviceResult]:
        down, device = stacked(downs), stacked(devices)
        if not isinstance(down, Current | Seeking):  # the run failed before it had a start
            return [DeviceResult(np.zeros(data.train.d)) for data in datas]
        model = self._model(alike(down.units))
        if isinstance(down, Current) and down.draws.shape[1]:
            values = down.draws[0]
            if (np.asarray(down.taken) > 0).all():
                found = model.coefficients_at(device.private, values, np.zeros((len(datas), len(values))))
            else:
                log_weight = model.log_factor(device.private, values)
                by_draws = model.coefficients_at(device.private, values, log_weight)
                enough = _worth(log_weight) >= LEAST_WORTH
                found = [
                    some if well else other
                    for some, other, well in zip(by_draws, self._by_cavity(model, down, device), enough, strict=True)
                ]
        else:
            found = self._by_cavity(model, down, device)
        return [DeviceResult(each.mean, each) for each in found]

    def _by_cavity(self, model: Hierarchy[Any, Any, Any], down: Current | Seeking, device: Device) -> Sequence[Any]:
        q, which = _told_of(down)
        cavity, _ = self._cavity(_site(device, which), q)
        return model.coefficients(device.private, q, cavity)

    def caution(self, server: Server) -> str:
        far = "means of phi are far from where their prior has them: scale features and target so that coefficients are about 1 in size"
        far = far if server.units else f"{far}, or use hyperprior=scaled"
        reason = "not every device answered" if server.ended else "the run has not converged"
        unchecked = f"phi's moments were not checked by importance sampling, since {reason}"
        change, last = server.approximation.change, float(np.abs(server.approximation.move).max())
        moved = f"phi has not settled, the last round would have moved it by {change:.2g} of its standard deviations"
        unsettled = f"{moved}: allow more rounds, or a smaller damping"
        untold = f"only rounds that every device answers tell whether phi has settled; the last one would have moved it by {last:.2g}"
        partly = f"{untold} of its standard deviations"
        unheard = int(np.isnan(server.approximation.terms).sum())
        absent = (
            f"{unheard} of {len(server.heard)} devices have not been heard in a main round, so phi knows nothing of them: allow more rounds"
        )
        parts = {
            self.hierarchy.CAUTION: True,
            unsettled: not server.ended and self.tolerance <= change < np.inf,
            partly: not server.ended and change == np.inf and self.phases[server.phase] == MAIN,
            absent: unheard > 0 and self.phases[server.phase] == MAIN,
            unchecked: not server.looks and self._asks_certificate(server),
            far: self._model(server.units).far(server.kept.q),
        }
        return "; ".join(part for part, holds in parts.items() if part and holds)

    def findings(self, server: Server, spec: FleetSpec) -> dict[str, Any]:
        known = moments(server.kept.q).proper and not server.failed
        evidence, k = server.log_evidence, server.certificate.k
        return {
            "phi": phi(server, self.hierarchy.blocks(spec.d), self._model(server.units).prior(spec.d)) if known else None,
            "log_evidence": evidence if np.isfinite(evidence) else None,
            "pareto_k": k if np.isfinite(k) else None,
        }

    def newcomer(self, server: Server) -> Any:
        return self._current(server, taken=False) if server.ended else self.broadcast(server, 0)

    def continued_server(self, server: Server, places: Sequence[int | None], spec: FleetSpec) -> Server:
        """Sites of those who left are divided out; the others' stay, and rounds go on in the phase `main`, after one for the units of the
        new fleet where the hyper-prior is stated in these."""
        found = without(server.approximation, places)
        phase = self.phases.index(UNITS if self.hyperprior == "scaled" else MAIN)
        fresh = self.init_server(spec)._replace(phase=phase, units=server.units, point=server.point, which=server.which)
        return fresh._replace(approximations=(found, found), failed=not moments(found.q).proper)

    def continued_device(self, device: Device, initial: Device) -> Device:
        return initial._replace(sites=device.sites)

    def moved(self, down: Any, device: Device, data: DeviceData) -> float | None:
        """The Kullback-Leibler divergence from q with the device's old site to q with the site that its rows of now ask for."""
        told, state = stacked([down]), stacked([device])
        if not isinstance(told, Current | Seeking):
            return None
        q, which = _told_of(told)
        _, proposal, _ = self._refreshed(self._model(alike(told.units)), state, which, q)
        found = divergence(q.plus(proposal.site.total()), q)
        return found if np.isfinite(found) and not np.asarray(proposal.skipped).any() else None


def _unheard(server: Server) -> dict[str, Any]:
    """What changes when devices are asked for something else."""
    return {"total": (), "rounds": 0, "heard": np.zeros_like(server.heard)}


def _told_of(down: Current | Seeking) -> tuple[NaturalParams, int]:
    """The approximation that results are of, and which one it is, from what a cohort was told."""
    return (alike(down.first), 0) if isinstance(down, Seeking) else (alike(down.q), int(np.asarray(down.which)[0]))


def _site(device: Device, which: int) -> NaturalParams:
    return NaturalParams(*(np.ascontiguousarray(part[:, which]) for part in device.sites))


def _with_site(device: Device, which: int, change: NaturalParams) -> Device:
    sites = NaturalParams(*(part.copy() for part in device.sites))
    for part, by in zip(sites, change, strict=True):
        part[:, which] += by
    return device._replace(sites=sites)


def _with_approximation(server: Server, found: Approximation) -> Server:
    first, second = server.approximations
    return server._replace(approximations=(first, found) if server.which else (found, second))


def _with_units(server: Server, hierarchy: Hierarchy[Any, Any, Any], units: Units) -> Server:
    d, model = len(units.columns), hierarchy.at(units)
    prior = model.prior(d)
    first, second = (with_prior(each, prior) for each in server.approximations)
    return server._replace(units=units, point=model.start(d), approximations=(first, second), spread=prior_spread(prior))


@np.errstate(invalid="ignore")  # of draws none of which is possible
def _worth(log_weight: Floats) -> Floats:
    """How many independent values of phi the weighted ones of each device are worth, shape (m,)."""
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    return weight.sum(axis=1) ** 2 / (weight**2).sum(axis=1)


def _failed(server: Server) -> Aggregated:
    return Aggregated(server._replace(failed=True), 1.0, Info(np.nan, np.nan, 1.0, 0.0))


def _told(certificate: Certificate) -> str:
    if not certificate.known:
        return "importance sampling could not check phi, since a device could not find its likelihood at some values of it"
    if certificate.reliable:
        told, tail = f"phi's moments are those of importance sampling, with Pareto k = {certificate.k:.2f}", certificate.tail
        if tail < RELIABLE:
            return told
        return f"{told}, but k = {tail:.2f} of squared distances, so standard deviations may be too small where phi has long tails"
    return f"importance sampling could not check them, with Pareto k = {certificate.k:.2f}, so means and intervals may be off"
