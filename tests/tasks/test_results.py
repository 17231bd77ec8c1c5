"""What a run with posteriors writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedcore import Posterior, coefficient_summary
from fedcore.algorithm import ALGORITHMS, FleetSpec, algorithm_class
from fedcore.data import Fitted
from fedcore.hm2.coefficients import Coefficients, Joint, Marginals
from fedcore.metrics import Score
from fedcore.posterior import AnyPosterior
from fedcore.selection import Paired
from fedcore.trees import from_npz, npz, pack, unpack
from tasks.device import DeviceReport
from tasks.results import FLEET, write_results

EXCESS = Paired(-0.5, 0.1)
NAMES = ("intercept", "x")
FITTED = Fitted(n=10, means={"x": 3.0}, scales={"x": 2.0}, categories={}, marked=(), design=NAMES, intercept=True, interactions={})


def normal(seed: int) -> Posterior:
    root = np.random.default_rng(seed).standard_normal((2, 4))
    return Posterior(root[:, 0], root @ root.T, 0.5, 6.0)


def mixture(seed: int) -> Coefficients:
    """Of a number of components that differs by device."""
    rng = np.random.default_rng(seed)
    C, J = 3 + seed, 2 + seed
    roots = rng.standard_normal((J, 2, 4))
    marginals = Marginals(
        rng.dirichlet(np.ones(C), size=2).T, rng.standard_normal((C, 2)), rng.uniform(0.1, 1, (C, 2)), rng.uniform(0.1, 1, (C, 2))
    )
    joint = Joint(rng.dirichlet(np.ones(J)), rng.standard_normal((J, 2)), roots @ roots.swapaxes(1, 2), rng.uniform(0.1, 1, J))
    return Coefficients(marginals, joint)


def written(folder: Path, posteriors: dict[str, AnyPosterior | None], fitted: Fitted | None = None) -> None:
    reports = [
        DeviceReport(device, 5, np.zeros(2), Score(2, 1.0), Score(2, 2.0), posterior, EXCESS, (1, 2, 2, 2) if posterior else None, None)
        for device, posterior in sorted(posteriors.items())
    ]
    write_results(folder, reports, NAMES, Score(1, 1.0), device_ids=sorted(posteriors), fitted=fitted, gaps={})


@pytest.mark.parametrize("made", [normal, mixture])
def test_a_row_for_each_device_and_coefficient(made: type, tmp_path: Path) -> None:
    known = {"a": made(0), "b": made(1)}
    written(tmp_path, {**known, "c": None}, FITTED)
    table = pq.read_table(tmp_path / "posteriors.parquet")
    assert table.column_names == ["device", "feature", "mean", "sd", "lower", "upper", "p_positive", "included"]
    assert table["device"].to_pylist() == ["a", "a", "b", "b"]
    assert table["feature"].to_pylist() == ["intercept", "x"] * 2
    for k, posterior in enumerate(known.values()):
        for name, values in coefficient_summary(posterior, 0.9)._asdict().items():
            np.testing.assert_array_equal(table[name].to_numpy()[2 * k : 2 * k + 2], values)
    devices = pq.read_table(tmp_path / "devices.parquet")
    assert devices["theta_sd"].to_pylist() == [known["a"].sd.tolist(), known["b"].sd.tolist(), None]
    assert devices["covered.0.5"].to_pylist() == [1, 1, None]
    assert devices["hurt"].to_pylist() == [False] * 3


def test_normal_posteriors_are_stored_as_they_are(tmp_path: Path) -> None:
    known = {"a": normal(0), "b": normal(1)}
    written(tmp_path, dict(known))
    with np.load(tmp_path / "posterior.npz") as stored:
        assert sorted(stored) == ["coefficients", "covariance", "devices", "freedom", "mean", "noise"]
        for name in Posterior._fields:
            np.testing.assert_array_equal(stored[name], [getattr(each, name) for each in known.values()])


def test_mixtures_are_stored_by_their_moments(tmp_path: Path) -> None:
    known = {"a": mixture(0), "b": mixture(1)}
    written(tmp_path, dict(known), FITTED)
    with np.load(tmp_path / "posterior.npz") as stored:
        assert sorted(stored) == ["coefficients", "coefficients_original", "covariance", "covariance_original", "devices", "mean", "noise"]
        U = FITTED.original(np.eye(2)).T
        for k, each in enumerate(known.values()):
            np.testing.assert_array_equal(stored["mean"][k], each.mean)
            np.testing.assert_array_equal(stored["covariance"][k], each.joint.total_covariance)
            np.testing.assert_allclose(stored["covariance_original"][k], U.T @ each.joint.total_covariance @ U, rtol=1e-12)
            assert stored["noise"][k] == pytest.approx(each.joint.weight @ each.joint.noise)


def test_without_posteriors_there_are_no_files_of_them(tmp_path: Path) -> None:
    written(tmp_path, {"a": None})
    assert {file.name for file in tmp_path.iterdir()} == {"theta.npz", "server.npz", "devices.parquet"}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_server_s_state_is_found_again_beside_the_fleet(name: str, tmp_path: Path) -> None:
    """No part of it has the name of what is beside it."""
    spec = FleetSpec(("a", "b", "c"), 2)
    server = algorithm_class(name)().init_server(spec)
    reports = [DeviceReport("a", 5, np.zeros(2), Score(2, 1.0), Score(2, 2.0), None, EXCESS, None, None)]
    write_results(tmp_path, reports, NAMES, server, device_ids=spec.device_ids, gaps={})
    stored = from_npz((tmp_path / "server.npz").read_bytes())
    assert stored[FLEET].tolist() == list(spec.device_ids)
    assert npz(pack(unpack(stored))) == npz(pack(server))
