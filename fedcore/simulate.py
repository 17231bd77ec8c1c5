"""Simulated fleets with known truth: the paper's HM1 cases, and one in which sharing pays.

Test targets are free of noise, so that a device's test error measures its coefficients alone. Validation rows are like those that train,
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
        Device covariance that Theta was drawn with, shape (K, K).
    """

    devices: dict[str, DeviceData]
    Theta: Floats
    Omega: Floats


@dataclass(frozen=True)
class Case:
    """A recipe: rows X ~ N(0, I), Theta ~ MN(0, I, Omega), y = X theta_k + noise.

    Attributes
    ----------
    d
        Number of coefficients.
    rows
        Training rows of each device.
    noise
        Standard deviation of the noise.
    omega
        Draws Omega, shape (K, K), for K devices.
    """

    d: int
    rows: tuple[int, ...]
    noise: float
    omega: Callable[[int, Generator], Floats]


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


CASES = {
    "demo": Case(d=8, rows=(12,) * 100, noise=0.5, omega=_two_factors),
    "hm1-1": Case(d=5, rows=(20, 200), noise=0.05, omega=_two_devices),
    "hm1-2": Case(d=8, rows=(40,) * 30 + (275,) * 70, noise=0.1, omega=_random_positive_definite),
    "hm1-3": Case(d=8, rows=(20,) * 100, noise=0.1, omega=_random_positive_definite),
    "hm1-4": Case(d=8, rows=(200,) * 100, noise=0.1, omega=_random_positive_definite),
}
"""`demo` is a fleet in which sharing pays; `hm1-1` to `hm1-4` are Cases I to IV of the paper's section 5.1."""


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
    Omega = recipe.omega(K, rng)
    Theta = rng.standard_normal((d, K)) @ np.linalg.cholesky(Omega).T
    devices: dict[str, DeviceData] = {}
    for k, n in enumerate(recipe.rows):
        X, X_test = rng.standard_normal((n, d)), rng.standard_normal((TEST_ROWS, d))
        y = X @ Theta[:, k] + recipe.noise * rng.standard_normal(n)
        X_validation = own.standard_normal((round(n * VALIDATION_SHARE / (1 - VALIDATION_SHARE)), d))
        y_validation = X_validation @ Theta[:, k] + recipe.noise * own.standard_normal(len(X_validation))
        devices[f"{k + 1:03d}"] = DeviceData(Rows(X, y), Rows(X_validation, y_validation), Rows(X_test, X_test @ Theta[:, k]))
    return Fleet(devices, Theta, Omega)
