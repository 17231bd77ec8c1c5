"""phi's posterior against long Markov chains (NUTS); their own noise is about .01 sd on a mean and 1 % on a standard deviation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.compression import compress
from fedcore.fit import FitResult, fit
from fedcore.hm2.gaussian import Gaussian
from fedcore.hm2.hm2 import Hm2
from fedcore.hm2.natural import moments
from tests.fedcore.hm2.references import compared, fitted, phi_of, reference


def test_uq() -> None:
    result, errors, ratios = fitted("uq", Hm2(sigma=0.05))
    assert result.outcome.name == "converged"
    assert len(result.history) <= 3 + 1 + 5, "rounds of EM, of sites, and of expectation propagation"
    assert np.abs(errors).max() < 0.02
    assert ratios.min() > 0.96
    assert ratios.max() < 1.02


@pytest.mark.parametrize("noise", ["shared", "device"])
def test_an_unknown_noise_that_rows_tell_well_changes_little(noise: str) -> None:
    told, devices = reference("uq")
    algorithm = Hm2(noise=noise)  # pyright: ignore[reportArgumentType]
    found = phi_of(fit(algorithm, devices, rounds=60), algorithm)
    if noise == "shared":
        ours, rows = found.pop("log_sigma2"), compress(list(devices.values()))
        freedom = float(np.sum(rows.freedom))
        assert ours["sd"][0] == pytest.approx(np.sqrt(2.0 / freedom), rel=0.02)
        assert abs(ours["mean"][0] - np.log(np.sum(rows.rss) / freedom)) < 0.05 * ours["sd"][0]
    errors, ratios = compared(found, told["posterior"])
    assert np.abs(errors).max() < 0.02
    assert np.abs(ratios - 0.99).max() < 0.03


def test_five_devices() -> None:
    plain, errors, ratios = fitted("uq_k5", Hm2(sigma=0.05, certificate="off"))
    assert plain.outcome.name == "converged"
    assert np.isnan(plain.server.certificate.k)
    assert np.abs(errors).max() < 0.06
    assert ratios.min() > 0.85
    assert ratios.max() < 1.02
    result, errors, ratios = fitted("uq_k5", Hm2(sigma=0.05))
    assert f"with Pareto k = {result.server.certificate.k:.2f}" in result.outcome.message
    assert_certified(result, errors, ratios)


def assert_certified(result: FitResult, errors: np.ndarray, ratios: np.ndarray) -> None:
    """By the certificate, which holds for small fleets whatever the approximation is like."""
    assert result.outcome.name == "converged"
    assert result.server.certificate.reliable
    assert np.abs(errors).max() < 0.06
    assert ratios.min() > 0.95
    assert ratios.max() < 1.08


def test_two_modes() -> None:
    """The start leads to one with less evidence; the other is found from the prior."""
    result, errors, ratios = fitted("hard_two_modes", Hm2(sigma=0.5))
    assert_certified(result, errors, ratios)
    assert "of two modes the one from the prior has the larger evidence" in result.outcome.message
    assert result.outcome.message.endswith("so that coefficients are about 1 in size, or use hyperprior=scaled")
    wrong, far, _ = fitted("hard_two_modes", Hm2(sigma=0.5, start="warm"))
    assert np.abs(far).max() > 20
    assert result.history[-1]["log_evidence"] - wrong.history[-1]["log_evidence"] == pytest.approx(22.6, abs=0.5)


def test_fewer_rows_than_coefficients() -> None:
    assert_certified(*fitted("hard_n_less_d", Hm2(sigma=0.5)))
    _, errors, ratios = fitted("hard_n_less_d", Hm2(sigma=0.5, certificate="off"))
    assert np.abs(errors).max() < 0.2
    assert ratios.min() > 0.92


class Homogeneous(Hm2):
    """With the prior that its reference was computed with."""

    @property
    def hierarchy(self) -> Gaussian:
        return Gaussian(log_tau_sd=3.0)


def test_identical_devices() -> None:
    """tau goes to zero, and only the prior of its logarithm holds it."""
    assert_certified(*fitted("hard_homogeneous", Homogeneous()))
    _, errors, ratios = fitted("hard_homogeneous", Homogeneous(certificate="off"))
    assert np.abs(errors).max() < 0.06
    assert ratios.min() > 0.85


def test_the_order_of_the_start_does_not_matter() -> None:
    """From the prior, with the guard, the same approximation is found."""
    _, devices = reference("uq")
    warm, zero = (moments(fit(Hm2(sigma=0.05, start=start), devices, rounds=60).server.approximation.q) for start in ("warm", "zero"))
    sd = np.sqrt(np.diagonal(warm.covariance))
    assert (np.abs(warm.mean - zero.mean) / sd).max() < 0.01
    assert np.abs(np.sqrt(np.diagonal(zero.covariance)) / sd - 1.0).max() < 0.01


def test_damping_leads_to_the_same() -> None:
    _, devices = reference("uq_k5")
    whole = Hm2(sigma=0.05)
    one, other = (moments(fit(each, devices, rounds=200).server.approximation.q) for each in (whole, replace(whole, damping=0.5)))
    assert (np.abs(one.mean - other.mean) / np.sqrt(np.diagonal(one.covariance))).max() < 0.005


def test_a_certificate_that_could_not_be_taken_is_named() -> None:
    few, _, _ = fitted("hard_n_less_d", Hm2(sigma=0.5), rounds=2)
    assert few.outcome.name == "completed"
    assert "were not checked by importance sampling" in few.outcome.message
    for certificate in ("auto", "off"):
        enough, _, _ = fitted("hard_n_less_d", Hm2(sigma=0.5, certificate=certificate))
        assert "were not checked" not in enough.outcome.message
