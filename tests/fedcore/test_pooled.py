"""Pooled against the regression on the stacked table; and the rival that works alone, for algorithms with local steps and without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import DeviceData, Ditto, FedAvg, Misuse, Pooled, Separate, fit
from fedcore.algorithm import FleetSpec
from fedcore.messages import nbytes
from fedcore.pooled import BLOCK
from fedcore.separate import separate_rival
from fedcore.testing import equal, small_fleet


def table(fleet: dict[str, DeviceData]) -> tuple[np.ndarray, np.ndarray]:
    X, y = (np.concatenate(parts) for parts in zip(*(data.train for data in fleet.values()), strict=True))
    return X, y


def split(X: np.ndarray, y: np.ndarray, parts: int) -> dict[str, DeviceData]:
    pieces = zip(np.array_split(X, parts), np.array_split(y, parts), strict=True)
    return {chr(ord("a") + k): DeviceData.of(*piece) for k, piece in enumerate(pieces)}


fleets = st.builds(
    small_fleet, rows=st.lists(st.integers(1, 30), min_size=1, max_size=6).map(tuple), d=st.integers(1, 8), seed=st.integers(0, 2**32)
)


def assert_close(ours: np.ndarray, expected: np.ndarray, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@given(fleets)
def test_is_least_squares_on_the_stacked_table(fleet: dict[str, DeviceData]) -> None:
    """Also the one of least norm, where all rows together are fewer than columns."""
    X, y = table(fleet)
    singular = np.linalg.svd(X, compute_uv=False)
    result = fit(Pooled(), fleet)
    assert result.outcome.name == "converged"
    assert len(result.history) == 1
    for theta in result.theta.values():
        # A square table of random numbers can be of any condition.
        assert_close(theta, np.linalg.lstsq(X, y)[0], max(1e-10, 1e-13 * (singular[0] / singular[-1]) ** 2))


@given(fleets, st.floats(1e-3, 1e6))
def test_is_ridge_on_the_stacked_table(fleet: dict[str, DeviceData], penalty: float) -> None:
    X, y = table(fleet)
    expected = np.linalg.solve(X.T @ X + penalty * np.eye(X.shape[1]), X.T @ y)
    assert_close(fit(Pooled(penalty=penalty), fleet).theta["a"], expected)


def test_an_ill_conditioned_table_keeps_its_digits() -> None:
    """Where the normal equations have lost nearly all of them: condition 1e7."""
    rng = np.random.default_rng(0)
    U, _ = np.linalg.qr(rng.standard_normal((60, 4)))
    V, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    X = U * np.geomspace(1, 1e-7, 4) @ V.T
    truth = np.array([1.0, -2.0, 3.0, 0.5])
    result = fit(Pooled(), split(X, X @ truth, 5))
    assert_close(result.theta["a"], truth, 1e-8)
    assert "least norm" not in result.outcome.message
    normal = np.linalg.solve(X.T @ X, X.T @ (X @ truth))
    assert np.abs(normal - truth).max() > 1e-4


def test_units_of_features_do_not_matter() -> None:
    """A polynomial in raw time: columns that differ by sixteen orders are not dependent."""
    t = np.arange(1.0, 301.0)
    scaled = np.vander(t / 300, 5, increasing=True)
    y = scaled @ np.array([1.0, -2.0, 0.5, 1.0, 3.0]) + 0.1 * np.sin(t)
    units = np.array([1.0, 1e4, 1e8, 1e12, 1e-4])
    one, other = fit(Pooled(), split(scaled, y, 4)), fit(Pooled(), split(scaled * units, y, 4))
    np.testing.assert_allclose(other.theta["a"] * units, one.theta["a"], rtol=1e-10)
    np.testing.assert_allclose(one.theta["a"], np.linalg.lstsq(scaled, y)[0], rtol=1e-10)
    assert one.outcome == other.outcome


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_dependent_columns_give_the_solution_of_least_norm(penalty: float) -> None:
    X, y = table(small_fleet(rows=(12, 30), d=3))
    X = np.column_stack([X, X[:, 0] - 2 * X[:, 1], np.zeros(len(X)), 1e3 * X[:, 2]])
    result = fit(Pooled(penalty=penalty), split(X, y, 3))
    expected = np.linalg.lstsq(X, y)[0] if penalty == 0 else np.linalg.solve(X.T @ X + penalty * np.eye(6), X.T @ y)
    assert_close(result.theta["a"], expected)
    assert result.outcome.name == "converged"
    assert ("the one of the least norm, since only 3 of 6 columns are independent" in result.outcome.message) == (penalty == 0)


def test_the_penalty_goes_to_its_limits() -> None:
    X, y = table(small_fleet(rows=(3,), d=6))
    fleet = split(X, y, 3)
    assert_close(fit(Pooled(penalty=1e-300), fleet).theta["a"], np.linalg.lstsq(X, y)[0])
    assert np.abs(fit(Pooled(penalty=1e300), fleet).theta["a"]).max() < 1e-290


def test_intercepts_are_penalised_as_all_columns_are() -> None:
    """As by Ridge(alpha=3.0, fit_intercept=False); the figures are those that scikit-learn gives for these five rows."""
    X = np.column_stack([np.ones(5), [0.0, 1.0, 2.0, 3.0, 4.0]])
    y = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    theta = fit(Pooled(penalty=3.0), split(X, y, 2)).theta["a"]
    np.testing.assert_allclose(X.T @ (y - X @ theta), 3.0 * theta, rtol=1e-12)
    np.testing.assert_allclose(theta, [0.7012195121951216, 0.9390243902439025], rtol=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_goes_on_until_everybody_was_heard_and_counts_each_once(seed: int) -> None:
    fleet = small_fleet(rows=(12, 7, 30, 9, 4))
    result = fit(Pooled(), fleet, rounds=500, participation=0.4, seed=seed)
    assert result.outcome.name == "converged"
    heard = [each["heard"] for each in result.history]
    assert heard[-1] == 5
    assert all(each < 5 for each in heard[:-1])
    assert sum(each["answered"] for each in result.history) > 5, "somebody was drawn twice"
    assert_close(result.theta["a"], np.linalg.lstsq(*table(fleet))[0])
    again = fit(Pooled(), fleet, rounds=1, participation=0.4, seed=seed)
    assert again.outcome.name == "completed"
    drawn = {name: fleet[name] for name, heard in zip("abcde", again.server.heard, strict=True) if heard}
    assert len(drawn) == 2
    assert_close(again.theta["a"], np.linalg.lstsq(*table(drawn))[0])


@pytest.mark.parametrize("rows", [(1, 1), (10, 200)])
def test_what_a_device_sends(rows: tuple[int, ...]) -> None:
    """d (d + 3) / 2 numbers and its loss, whatever its rows; and of the factor's signs nothing depends on."""
    fleet = small_fleet(rows=rows, d=4)
    spec, datas = FleetSpec(("a", "b"), 4), list(fleet.values())
    devices = Pooled().init_devices(spec, datas)
    _, ups, infos = Pooled().local_steps(Pooled().broadcasts(Pooled().init_server(spec), range(2)), devices, datas, [])
    assert nbytes(ups[0]) + nbytes(infos[0]) == 8 * (4 * 7 // 2 + 1)


def test_the_loss_is_that_of_the_devices_own_solution() -> None:
    fleet = small_fleet()
    losses = [np.mean((data.train.y - data.train.X @ np.linalg.lstsq(*data.train)[0]) ** 2) for data in fleet.values()]
    assert fit(Pooled(), fleet).history[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize(("n", "d"), [(150_001, 1), (50_003, 3), (1_000, 200)])
def test_rows_of_several_blocks(n: int, d: int) -> None:
    assert n > 2 * max(d, BLOCK // d)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.geomspace(0.1, 10.0, d)
    y = X @ rng.standard_normal(d) + rng.standard_normal(n)
    expected, (squares,), *_ = np.linalg.lstsq(X, y)
    found = fit(Pooled(), {"a": DeviceData.of(X, y)})
    assert_close(found.theta["a"], expected)
    assert found.history[0]["loss"] == pytest.approx(squares / n, rel=1e-12)


@pytest.mark.parametrize("penalty", [0.0, 3.0])
@pytest.mark.parametrize("noise", [1.0, 1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("near", [1.0, 0.1, 1e-2, 1e-4, 1e-7])
def test_squares_are_taken_where_they_lose_nothing(near: float, noise: float, penalty: float) -> None:
    """Many rows, two columns as near to one another as you like, targets explained as well as you like; against a solution by QR."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    X[:, 1] = X[:, 0] + near * X[:, 1]
    y = X @ np.ones(5) + noise * rng.standard_normal(400)
    result = fit(Pooled(penalty=penalty), {"a": DeviceData.of(X, y)})
    stacked = np.concatenate([X, np.sqrt(penalty) * np.eye(5)]), np.append(y, np.zeros(5))
    Q, R = np.linalg.qr(stacked[0])
    expected = np.linalg.solve(R, Q.T @ stacked[1])
    rounding = 1e-13 + 1e-15 * noise / near  # of any method: what is not explained weighs in with the square of the condition
    assert_close(X @ result.theta["a"], X @ expected, rounding)
    assert_close(result.theta["a"], expected, rounding / near)
    assert result.history[0]["loss"] == pytest.approx(np.mean((y - X @ expected) ** 2), rel=1e-9 / min(noise, 1.0))


@pytest.mark.parametrize("power", [-500, -20, 10, 500])
@pytest.mark.parametrize("penalty", [0.0, 3.0])
def test_targets_in_other_units_give_the_same_coefficients(power: int, penalty: float) -> None:
    fleet = small_fleet()
    scaled = {name: (data.train.X, data.train.y * 2.0**power) for name, data in fleet.items()}
    one, other = fit(Pooled(penalty=penalty), fleet), fit(Pooled(penalty=penalty), scaled)
    assert one.outcome == other.outcome
    np.testing.assert_allclose(other.theta["a"], one.theta["a"] * 2.0**power, rtol=1e-13)


def test_what_is_not_finite_is_an_outcome() -> None:
    pooled, fleet = Pooled(), small_fleet()
    spec = FleetSpec(tuple(sorted(fleet)), 3)
    server = pooled.init_server(spec)
    devices = pooled.init_devices(spec, list(fleet.values()))
    _, ups, _ = pooled.local_steps(pooled.broadcasts(server, range(3)), devices, list(fleet.values()), [])
    aggregated = pooled.aggregate(server, range(3), [ups[0], ups[1]._replace(factor=ups[1].factor * np.nan), ups[2]])
    outcome = pooled.status(aggregated.server)
    assert (outcome.name, outcome.ok) == ("diverged", False)
    assert equal(aggregated.server._replace(failed=False), server)


def test_devices_that_cannot_take_part() -> None:
    fleet = small_fleet()
    X, y = fleet["b"].train
    for rows in ((X, 1e160 * y), (1e-200 * X, 1e140 * y)):
        with pytest.raises(Misuse, match="device b: least squares on its rows overflow: scale features and target"):
            fit(Pooled(), fleet | {"b": rows})
    with pytest.raises(Misuse, match="device b: a device without training rows cannot take part"):
        fit(Pooled(), fleet | {"b": fleet["b"]._replace(train=fleet["b"].test.empty(3))})


@pytest.mark.parametrize("penalty", [-1.0, float("inf"), float("nan"), "1"])
def test_options_out_of_bounds(penalty: object) -> None:
    with pytest.raises(Misuse, match=r"penalty is a number in \[0, inf\)"):
        Pooled(penalty=penalty)


def test_rivals_that_work_alone() -> None:
    assert separate_rival(FedAvg(steps=7, batch=3)) == Separate(steps=7, batch=3)
    assert separate_rival(Ditto(eta=0.01, gradient="sum", penalty=5.0)) == Separate(eta=0.01, gradient="sum")
    assert separate_rival(Pooled(penalty=2.0)) == Pooled(penalty=2.0)
