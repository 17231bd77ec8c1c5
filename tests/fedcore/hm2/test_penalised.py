"""Penalised models against exact grids, NUTS, and the paper's cases of selection."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from fedcore import DeviceData, Misuse
from fedcore.hm2.coefficients import Coefficients, Marginals
from fedcore.hm2.hierarchy import Hierarchy
from fedcore.hm2.horseshoe import Horseshoe
from fedcore.hm2.laplace import laplace_tilt
from fedcore.hm2.natural import NaturalParams, moments, natural
from fedcore.hm2.penalised import Ridge
from fedcore.hm2.sited import ElasticNet, Lasso
from fedcore.simulate import simulate

MODELS = {"ridge": Ridge(), "lasso": Lasso(), "elastic net": ElasticNet(), "horseshoe": Horseshoe()}
HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "reference"


def _textbook() -> ModuleType:
    # Tests are imported by path, so that a neighbour has no name.
    spec = importlib.util.spec_from_file_location("textbook_penalised", HERE / "textbook_penalised.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


textbook = _textbook()


def read(folder: Path, name: str) -> tuple[list[DeviceData], dict[str, Any]]:
    table = pq.read_table(folder / f"{name}.parquet").to_pydict()
    device, y = np.array(table.pop("device")), np.array(table.pop("y"), dtype=float)
    X = np.column_stack([np.array(column, dtype=float) for column in table.values()])
    datas = [DeviceData.of(X[device == name], y[device == name]) for name in dict.fromkeys(device)]
    return datas, json.loads((folder / f"{name}.json").read_text())["posterior"]


@pytest.fixture(scope="module")
def case_two() -> list[DeviceData]:
    return read(REFERENCE, "case2_lasso")[0]


def posterior_means(coefficients: Sequence[Coefficients]) -> np.ndarray:
    marginals = [each.marginals for each in coefficients]
    return np.array([(each.weight * laplace_tilt(each.mean, each.variance, each.scale).mean).sum(axis=0) for each in marginals])


def included(marginals: Marginals) -> np.ndarray:
    """Whether the 90 % equal-tailed interval leaves out 0."""
    below = textbook.cdf(marginals, np.zeros(marginals.mean.shape[1]))
    return (below < 0.05) | (below > 0.95)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_phi_against_a_grid(case_two: list[DeviceData], model: Any) -> None:
    """With the model's own log f_k, which for ridge is exact."""
    fitted = textbook.expectation_propagation(model, case_two, tolerance=1e-4)
    sd = np.sqrt(fitted.covariance.diagonal())
    axes = [centre + spread * np.linspace(-5, 5, 25) for centre, spread in zip(fitted.mean, sd, strict=True)]
    phi = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_density = model.log_factor(model.prepare(case_two), phi).sum(axis=0) - 0.5 * (phi**2 / 9.0).sum(axis=1)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = weight @ phi
    assert np.abs((fitted.mean - mean) / sd).max() < (0.004 if isinstance(model, Horseshoe) else 0.002)
    assert sd == pytest.approx(np.sqrt(weight @ (phi - mean) ** 2), rel=0.005)


def test_ridge_factor_is_the_marginal_likelihood() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 5, 9):
        X, y = rng.standard_normal((n, 5)), rng.standard_normal(n)
        phi = np.array([[-1.0, 0.3], [2.0, -2.0]])
        found = Ridge().log_factor(Ridge().prepare([DeviceData.of(X, y)]), phi)[0]
        for value, (log_lambda, log_sigma2) in zip(found, phi, strict=True):
            variance = np.exp(0.5 * log_sigma2 - log_lambda)
            exact = multivariate_normal(np.zeros(n), variance * X @ X.T + np.exp(log_sigma2) * np.eye(n))
            assert value == pytest.approx(exact.logpdf(y), rel=1e-10)


def test_ridge_coefficients_given_phi() -> None:
    """With q and cavity all but a point, the mixture is the conjugate posterior."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((6, 4)), rng.standard_normal(6)
    phi = np.array([-0.5, -1.0])
    point = natural(phi[None], 1e12 * np.eye(2)[None])
    q = NaturalParams(point.shift[0], point.precision[0])
    (found,) = Ridge().coefficients(Ridge().prepare([DeviceData.of(X, y)]), q, point)
    variance, noise = np.exp(0.5 * phi[1] - phi[0]), np.exp(phi[1])
    covariance = np.linalg.inv(X.T @ X / noise + np.eye(4) / variance)
    np.testing.assert_allclose(found.joint.weight @ found.joint.mean, covariance @ X.T @ y / noise, rtol=1e-4)
    np.testing.assert_allclose(found.joint.covariance[0], covariance, rtol=1e-4)
    np.testing.assert_allclose(found.joint.noise, noise, rtol=1e-4)
    np.testing.assert_allclose(found.marginals.variance, np.diagonal(found.joint.covariance, axis1=1, axis2=2))


def against_nuts(datas: list[DeviceData], posterior: dict[str, Any]) -> None:
    fitted = textbook.expectation_propagation(Lasso(), datas)
    sd = np.sqrt(fitted.covariance.diagonal())
    for i, block in enumerate(("log_lambda", "log_sigma2")):
        assert fitted.mean[i] == pytest.approx(posterior[block]["mean"], abs=0.04 * sd[i])
        assert sd[i] == pytest.approx(posterior[block]["sd"], rel=0.03)
    theta = {name: np.array(values) for name, values in posterior["theta"].items()}
    assert np.abs((posterior_means(fitted.coefficients) - theta["mean"]) / theta["sd"]).max() < 0.03
    for k, each in enumerate(fitted.coefficients):
        assert np.array_equal(included(each.marginals), theta["q05"][k] * theta["q95"][k] > 0)
        for p, name in ((0.05, "q05"), (0.95, "q95")):
            off = (textbook.quantile(each.marginals, p) - theta[name][k]) / theta["sd"][k]
            assert np.sqrt((off**2).mean()) < 0.05  # of which NUTS' own noise is .02
        assert each.marginals.weight.min() > 0
        np.testing.assert_allclose(each.marginals.weight.sum(axis=0), 1.0)


def test_case_two_against_nuts() -> None:
    against_nuts(*read(REFERENCE, "case2_lasso"))


def test_student_against_nuts() -> None:
    folder = Path(os.environ.get("FEDLIN_DATA", "")).parent / "reference"
    if not os.environ.get("FEDLIN_DATA") or not (folder / "student_lasso.json").is_file():
        pytest.skip("there is no student_lasso.json in the folder reference beside the one that FEDLIN_DATA names")
    against_nuts(*read(folder, "student_lasso"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "false_inclusion", "error", "spread"),
    [("hm2-1", 0.093, 0.0520, 0.0001), ("hm2-2", 0.095, 0.0538, 0.0003), ("hm2-3", 0.096, 0.1012, 0.0011)],
)
def test_selection(case: str, false_inclusion: float, error: float, spread: float) -> None:
    """Means over 30 fleets, within 4 standard errors of a correct implementation's."""
    recall, wrong, errors = [], [], []
    for seed in range(30):
        fleet = simulate(case, seed)
        datas = list(fleet.devices.values())
        fitted = textbook.expectation_propagation(Lasso(), datas)
        chosen, real = np.array([included(each.marginals) for each in fitted.coefficients]), fleet.Theta[:, 0] != 0
        recall.append(chosen[:, real].mean())
        wrong.append(chosen[:, ~real].mean())
        means = zip(datas, posterior_means(fitted.coefficients), strict=True)
        errors.append(np.mean([np.sqrt(((data.test.y - data.test.X @ theta) ** 2).mean()) for data, theta in means]))
    assert min(recall) == 1.0
    assert np.mean(wrong) == pytest.approx(false_inclusion, abs=4 * 0.007)
    assert np.mean(errors) == pytest.approx(error, abs=4 * spread)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("n", [3, 12])
def test_a_device_is_the_same_alone_and_among_others(model: Any, n: int) -> None:
    rng = np.random.default_rng(2)
    datas = []
    for k in range(5):
        X = rng.standard_normal((n + k, 6))
        datas.append(DeviceData.of(X, X @ np.array([2.0, 0, 0, -1.0, 0, 0.3]) * 1.3**k + 0.5 * rng.standard_normal(n + k)))
    q = natural(np.array([0.5, -1.0]), np.diag([8.0, 12.0]))
    cavity = natural(np.repeat([[0.4, -0.9]], 5, axis=0), np.repeat(np.diag([6.0, 9.0])[None], 5, axis=0))
    together = model.tilted(model.prepare(datas), q, cavity)[1]
    assert together.proper.sum() >= 4
    mixtures, sites = model.coefficients(model.prepare(datas), q, cavity), model.start_sites(model.start(6), model.prepare(datas))
    factors = model.log_factor(model.prepare(datas), np.array([[0.0, 0.0], [1.0, -2.0]]))
    for k, data in enumerate(datas):
        private, own = model.prepare([data]), NaturalParams(cavity.shift[k : k + 1], cavity.precision[k : k + 1])
        for one, all_ in zip(model.tilted(private, q, own)[1], together, strict=True):
            assert np.array_equal(one[0], all_[k])
        (alone,) = model.coefficients(private, q, own)
        for part in ("marginals", "joint"):
            for one, other in zip(getattr(alone, part), getattr(mixtures[k], part), strict=True):
                assert np.array_equal(one, other)
        assert np.array_equal(model.start_sites(model.start(6), private).precision[0], sites.precision[k])
        assert np.array_equal(model.log_factor(private, np.array([[0.0, 0.0], [1.0, -2.0]]))[0], factors[k])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_evidence_of_the_tilted_distribution(model: Any) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((30, 3))
    private = model.prepare([DeviceData.of(X, X @ [1.0, 0.0, -0.5] + 0.5 * rng.standard_normal(30))])
    mean, precision = np.array([[0.5, -1.0]]), np.diag([20.0, 20.0])[None]
    cavity = natural(mean, precision)
    _, tilted = model.tilted(private, natural(np.array([0.4, -1.1]), np.diag([25.0, 30.0])), cavity)
    axis = np.linspace(-1.5, 1.5, 61)
    phi = mean + np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_density = model.log_factor(private, phi)[0] - 10.0 * ((phi - mean) ** 2).sum(axis=1) + np.log(20.0 / (2.0 * np.pi))
    weight = np.exp(log_density - log_density.max())
    assert tilted.log_evidence[0] == pytest.approx(log_density.max() + np.log(weight.sum() * (axis[1] - axis[0]) ** 2), abs=0.01)
    weight /= weight.sum()
    sd = np.sqrt(weight @ (phi - weight @ phi) ** 2)
    assert np.abs((tilted.mean[0] - weight @ phi) / sd).max() < 0.02
    assert np.sqrt(tilted.covariance[0].diagonal()) == pytest.approx(sd, rel=0.04)


def test_a_device_without_a_column_has_its_prior_there() -> None:
    """A column of zeros, on one device of three."""
    rng = np.random.default_rng(4)
    datas = []
    for k in range(3):
        X = rng.standard_normal((30, 4)) * (np.arange(4) != (1 if k == 0 else -1))
        datas.append(DeviceData.of(X, X @ [1.0, 1.0, 0.0, 0.0] + 0.3 * rng.standard_normal(30)))
    fitted = textbook.expectation_propagation(Lasso(), datas)
    marginals = fitted.coefficients[0].marginals
    moments = laplace_tilt(marginals.mean[:, 1], marginals.variance[:, 1], marginals.scale[:, 1])
    assert np.array_equal(moments.mean, np.zeros(len(moments.mean)))
    np.testing.assert_allclose(moments.variance, 2.0 * marginals.scale[:, 1] ** 2, rtol=1e-6)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_targets_in_other_units(model: Any, unit: float) -> None:
    """A prior that moves with the units gives the same fit in them."""
    rng = np.random.default_rng(5)
    X = [rng.standard_normal((20, 5)) for _ in range(6)]
    y = [each @ [1.0, 0.0, 0.0, 2.0, 0.0] + 0.3 * rng.standard_normal(20) for each in X]
    # Ridge's variance of sigma / lambda has the targets' units squared; elsewhere sigma / lambda has the targets' units.
    shift = -np.log(unit) if isinstance(model, Ridge) else 0.0
    moved = type(model)(log_lambda_mean=shift, log_sigma2_mean=2.0 * np.log(unit))
    one = textbook.expectation_propagation(model, [DeviceData.of(*each) for each in zip(X, y, strict=True)])
    other = textbook.expectation_propagation(moved, [DeviceData.of(a, b * unit) for a, b in zip(X, y, strict=True)])
    np.testing.assert_allclose(other.mean, one.mean + np.array([shift, 2.0 * np.log(unit)]), atol=1e-6)
    np.testing.assert_allclose(other.covariance, one.covariance, rtol=1e-4)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_what_a_start_meets(model: Any) -> None:
    """Too few rows for a residual, targets of zero, and one row alone."""
    rng = np.random.default_rng(6)
    few = [DeviceData.of(X := rng.standard_normal((3, 8)), X[:, 0] + 0.1 * rng.standard_normal(3)) for _ in range(10)]
    zero = [DeviceData.of(rng.standard_normal((5, 2)), np.zeros(5)) for _ in range(3)]
    single = [DeviceData.of(np.ones((1, 1)), np.ones(1))]
    for datas in (zero, single) if isinstance(model, Horseshoe) else (few, zero, single):
        fitted = textbook.expectation_propagation(model, datas)
        assert np.isfinite(fitted.mean).all()
        assert np.isfinite(fitted.covariance).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 15), st.integers(2, 8), st.sampled_from(["scaled", "equal", "nearly equal", "zero"]))
@example(28985, 1, 5, "scaled")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_log_factor_is_finite_whatever_the_columns(model: Any, seed: int, n: int, d: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if kind == "scaled":
        X *= 10.0 ** rng.uniform(-6, 6, d)
    elif kind == "zero":
        X[:, 0] = 0.0
    else:
        X[:, 0] = X[:, 1] * (1.0 + (1e-9 * rng.standard_normal(n) if kind == "nearly equal" else 0.0))
    y = X @ rng.laplace(size=d) + 10.0 ** rng.uniform(-4, 1) * rng.standard_normal(n)
    phi = rng.uniform(-9.0, 9.0, (4, 2))
    assert np.isfinite(model.log_factor(model.prepare([DeviceData.of(X, y)]), phi)).all()


def test_they_are_hierarchies() -> None:
    """By their types; a checker fails here if a method's signature is not the protocol's."""
    models: list[Hierarchy[Any, Any, Any]] = [Ridge(), Lasso(), ElasticNet(), Horseshoe()]
    for model in models:
        assert model.START == ("noise", "profile")
        assert model.blocks(3) == {"log_lambda": 1, "log_sigma2": 1}
        assert not model.another_mode(model.prior(3))
        assert np.array_equal(moments(model.prior(3)).covariance, np.diag([9.0, 9.0]))


def test_refusals() -> None:
    with pytest.raises(Misuse, match="log_lambda_sd is a number in"):
        Lasso(log_lambda_sd=0.0)
    with pytest.raises(Misuse, match="l1_ratio is a number in"):
        ElasticNet(l1_ratio=1.0)
    with pytest.raises(Misuse, match="squares of this device's values are not finite"):
        Lasso().prepare([DeviceData.of(np.full((2, 1), 1e300), np.ones(2))])
