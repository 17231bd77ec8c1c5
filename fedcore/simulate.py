"""Simulated fleets with known truth: the paper's HM1 cases and its HM2 cases of selection, and one in which sharing pays.

Test targets of HM1's cases and the demo are free of noise, so that a device's test error measures its coefficients alone; those of HM2's
cases have the noise of the training rows, as in the paper. Validation rows are like those that train,
one for every four of them. They have random numbers of their own, so a fleet's other rows are the same with and without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedcore.errors import Misuse
from fedcore.rows import DeviceData, Floats, Rows

TEST_ROWS = 1000
VALIDATION_SHARE = 0.2
"""Of the rows that train and validate together."""


@dataclass(frozen=True)
class Fleet:
    """A simulated fleet.

    Attributes
    ----------
    devices
        Data by device id.
    Theta
        True coefficients, shape (d, K), columns in the order of the sorted ids.
    Omega
        Device covariance that Theta was drawn with, shape (K, K); zero where it was not drawn.
    """

    devices: dict[str, DeviceData]
    Theta: Floats
    Omega: Floats


@dataclass(frozen=True)
class Case:
    """A recipe: rows X ~ N(0, I), Theta ~ MN(0, I, Omega) or the same on each device, y = X theta_k + noise.

    Attributes
    ----------
    d
        Number of coefficients.
    rows
        Training rows of each device.
    noise
        Standard deviation of the noise.
    coefficients
        What draws Omega, shape (K, K), for K devices; or every device's theta.
    test_rows
        Of each device.
    test_noise
        Standard deviation of the noise of test targets.
    """

    d: int
    rows: tuple[int, ...]
    noise: float
    coefficients: Callable[[int, Generator], Floats] | tuple[float, ...]
    test_rows: int = TEST_ROWS
    test_noise: float = 0.0


def _two_devices(K: int, rng: Generator) -> Floats:
    return np.array([[1.0, 0.7], [0.7, 1.0]])


def _random_positive_definite(K: int, rng: Generator) -> Floats:
    """Eigenvalues uniform on (1, 10), eigenvectors the Householder reflection of one uniform vector (the default of R's
    clusterGeneration)."""
    eigenvalues = rng.uniform(1.0, 10.0, K)
    vectors = np.linalg.qr(rng.uniform(0.0, 1.0, (K, 1)), mode="complete")[0]
    return (vectors * eigenvalues) @ vectors.T


def _two_factors(K: int, rng: Generator) -> Floats:
    """Two shared factors and a little of each device's own."""
    F = rng.standard_normal((K, 2))
    return 0.02 * np.eye(K) + F @ F.T


THREE_OF_EIGHT = (3.0, 1.5, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0)
TWENTY_OF_THIRTY = (3.0,) * 10 + (0.0,) * 10 + (3.0,) * 10

CASES = {
    "demo": Case(d=8, rows=(12,) * 100, noise=0.5, coefficients=_two_factors),
    "hm1-1": Case(d=5, rows=(20, 200), noise=0.05, coefficients=_two_devices),
    "hm1-2": Case(d=8, rows=(40,) * 30 + (275,) * 70, noise=0.1, coefficients=_random_positive_definite),
    "hm1-3": Case(d=8, rows=(20,) * 100, noise=0.1, coefficients=_random_positive_definite),
    "hm1-4": Case(d=8, rows=(200,) * 100, noise=0.1, coefficients=_random_positive_definite),
    "hm2-1": Case(d=8, rows=(100,) * 10, noise=0.05, coefficients=THREE_OF_EIGHT, test_noise=0.05),
    "hm2-2": Case(d=8, rows=(20,) * 2 + (200,) * 8, noise=0.05, coefficients=THREE_OF_EIGHT, test_noise=0.05),
    "hm2-3": Case(d=30, rows=(40,) * 20, noise=0.05, coefficients=TWENTY_OF_THIRTY, test_rows=400, test_noise=0.05),
}
"""`demo` is a fleet in which sharing pays; `hm1-1` to `hm1-4` are Cases I to IV of the paper's section 5.1, `hm2-1` to `hm2-3` its Cases
I to III of selection."""


def simulate(case: str, seed: int) -> Fleet:
    """Draw a fleet.

    Parameters
    ----------
    case
        A name of `CASES`.
    seed
        Root of all draws.

    Raises
    ------
    Misuse
        Where there is no such case.
    """
    if case not in CASES:
        raise Misuse(f"no simulated case {case!r}: choose one of {', '.join(CASES)}")
    recipe, root = CASES[case], np.random.SeedSequence(seed)
    rng, own = np.random.default_rng(root), np.random.default_rng(root.spawn(1)[0])
    K, d = len(recipe.rows), recipe.d
    if callable(recipe.coefficients):
        Omega = recipe.coefficients(K, rng)
        Theta = rng.standard_normal((d, K)) @ np.linalg.cholesky(Omega).T
    else:
        Omega, Theta = np.zeros((K, K)), np.repeat(np.array(recipe.coefficients)[:, None], K, axis=1)
    devices: dict[str, DeviceData] = {}
    for k, n in enumerate(recipe.rows):
        X, X_test = rng.standard_normal((n, d)), rng.standard_normal((recipe.test_rows, d))
        y = X @ Theta[:, k] + recipe.noise * rng.standard_normal(n)
        y_test = X_test @ Theta[:, k]
        if recipe.test_noise:
            y_test += recipe.test_noise * rng.standard_normal(len(X_test))
        X_validation = own.standard_normal((round(n * VALIDATION_SHARE / (1 - VALIDATION_SHARE)), d))
        y_validation = X_validation @ Theta[:, k] + recipe.noise * own.standard_normal(len(X_validation))
        devices[f"{k + 1:03d}"] = DeviceData(Rows(X, y), Rows(X_validation, y_validation), Rows(X_test, y_test))
    return Fleet(devices, Theta, Omega)
