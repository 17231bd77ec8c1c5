"""Pooled: the regression on the stacked rows of all devices, exactly, from one message of each.

Objective: min sum_k |y_k - X_k theta|^2 + alpha |theta|^2, with alpha the option `penalty`. That is scikit-learn's Ridge(alpha,
fit_intercept=False) on the stacked table: a sum over rows and not a mean, and an intercept among the columns is penalised as they
all are.

Each device sends the triangular factor R_k of X_k = Q_k R_k and Q_k'y_k, d (d + 3) / 2 numbers for any number of rows. They
say exactly what X_k'X_k = R_k'R_k and X_k'y_k say: sufficient statistics of a device's rows, and the reason for the disclosure
rule `parameters`, since with few rows for the width of the design rows can be recovered from them. Neither y_k'y_k nor n_k is
sent, as the solution needs neither.

Why factors: the server stacks them and takes the factor of the stack, so that errors grow with the condition number of the
stacked table; the sum of the X_k'X_k would have them grow with its square, and a table of condition 1e8 would be lost. A
device takes its factor from X_k'X_k only where its own columns are far from dependent.

A device's factor is taken once: whoever is drawn again sends the same again, and it adds nothing. The run has converged once
every device was heard, in one round where all take part; before that theta is the solution for those heard so far.

Where the stacked table has not full rank (columns in proportion count as dependent whatever their units) theta is the
solution of the least norm, and the outcome says so.

Source: stacked QR as in Golub and Van Loan, "Matrix Computations", chapter 5 (least squares, column scaling, minimum norm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dtrcon

from fedcore.algorithm import Aggregated, BatchedAlgorithm, Continue, DeviceResult, FleetSpec, Outcome
from fedcore.errors import Misuse
from fedcore.linear import training_rows
from fedcore.messages import DeviceInfo, Stacked, stacked
from fedcore.options import number
from fedcore.rows import Booleans, DeviceData, Floats, Rows, Scalar

RANK_TOLERANCE = 1e-12
"""Singular values below this share of the largest count as zero, once the columns are scaled alike."""


WELL_CONDITIONED = 0.01
"""The reciprocal condition number, in the norm of column sums, from which on a matrix with columns of length 1 is far from singular."""

BLOCK = 2**16
"""Values in a block of rows, half a megabyte: the cache still has them when they are multiplied by the targets. Wide rows take more."""


class Server(NamedTuple):
    """What the server knows.

    Attributes
    ----------
    factor
        R and Q'y of the stacked rows of those heard so far, side by side, shape (d, d + 1).
    heard
        Which devices these are, shape (K,).
    theta
        The solution for them, shape (d,).
    rank
        The rank of their stacked table, with the penalty's rows below it.
    failed
        Whether an update or its solution was not finite, which ends the run with the last theta from before it.
    """

    factor: Floats
    heard: Booleans
    theta: Floats
    rank: int
    failed: bool


class Device(NamedTuple):
    """A device's message, and the mean squared error of its own solution."""

    up: Up
    loss: Scalar


class Down(NamedTuple):
    """To every device: the solution so far, shape (d,)."""

    theta: Floats


class Up(NamedTuple):
    """From device k: the upper triangle of R_k, and Q_k'y_k, row by row, shape (d (d + 3) / 2,)."""

    factor: Floats


class Info(NamedTuple):
    """Of a round: how many devices have been heard by its end."""

    heard: float


@dataclass(frozen=True)
class Pooled(BatchedAlgorithm[Server, Device, Down, Up]):
    """Least squares or ridge regression on the stacked rows of all devices.

    Attributes
    ----------
    penalty
        alpha, at least 0, in the squared units of the features: weighs |theta|^2 beside the sum of squared errors.
    """

    STEADY: ClassVar[bool] = True
    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {"penalty": (0.0, 0.1, 1.0, 10.0, 100.0)}

    penalty: float = 0.0

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        number("penalty", self.penalty, 0, np.inf, below=True)

    def init_server(self, spec: FleetSpec) -> Server:
        K, d = len(spec.device_ids), spec.d
        return Server(np.zeros((d, d + 1)), np.zeros(K, dtype=bool), np.zeros(d), 0, False)

    def init_devices(self, spec: FleetSpec, datas: Sequence[DeviceData]) -> Sequence[Device]:
        compressed = [self._compressed(rows) for rows in training_rows(datas)]
        factors, losses = (np.array(parts) for parts in zip(*compressed, strict=True))
        return Stacked(Device(Up(factors[:, *_triangle(spec.d)]), losses), len(datas))

    def _compressed(self, rows: Rows) -> tuple[Floats, float]:
        factor = _factor_of_rows(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            if not self.penalty and _independent(factor[:-1, :-1]):
                loss = float(factor[-1, -1] ** 2) / rows.n  # the residual of the solution, which is not needed for it
            else:
                theta, _ = solve(factor[:-1], self.penalty)
                residual = factor[:, -1] - factor[:, :-1] @ theta
                loss = float(residual @ residual) / rows.n
        if not np.isfinite(loss):
            raise Misuse("least squares on its rows overflow: scale features and target")
        return factor[:-1], loss

    def broadcasts(self, server: Server, cohort: Sequence[int]) -> Sequence[Down]:
        return Stacked(Down(np.tile(server.theta, (len(cohort), 1))), len(cohort))

    def local_steps(
        self, downs: Sequence[Down], devices: Sequence[Device], datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> tuple[Sequence[Device], Sequence[Up], Sequence[DeviceInfo]]:
        device, m = stacked(devices), len(devices)
        return devices, Stacked(device.up, m), Stacked(DeviceInfo(device.loss), m)

    def form(self, spec: FleetSpec, server: Server) -> Up:
        d = len(server.theta)
        return Up(np.zeros(d * (d + 3) // 2))

    def aggregate(self, server: Server, cohort: Sequence[int], ups: Sequence[Up]) -> Aggregated:
        chosen, heard, d = np.asarray(cohort), server.heard.copy(), len(server.theta)
        new = ~heard[chosen]
        heard[chosen] = True
        factors = np.zeros((int(new.sum()), d, d + 1))
        factors[:, *_triangle(d)] = stacked(ups).factor[new]
        factor = _factor(np.concatenate([server.factor, *factors]), d)
        theta, rank = solve(factor, self.penalty)
        if not np.isfinite(theta).all():
            return Aggregated(server._replace(failed=True), 1.0, Info(float(server.heard.sum())))
        return Aggregated(Server(factor, heard, theta, rank, False), 1.0, Info(float(heard.sum())))

    def status(self, server: Server) -> Continue | Outcome:
        if server.failed:
            return Outcome("diverged", "an update or the solution is not finite: scale features and target", ok=False)
        if not server.heard.all():
            return Continue()
        K, d = len(server.heard), len(server.theta)
        which = "" if server.rank == d else f", the one of the least norm, since only {server.rank} of {d} columns are independent"
        return Outcome("converged", f"the coefficients are the exact solution for the rows of all {K} devices{which}", ok=True)

    def newcomer(self, server: Server) -> Down:
        return self.broadcast(server, 0)

    def finalize(self, down: Down, device: Device, data: DeviceData) -> DeviceResult:
        return DeviceResult(down.theta)


@np.errstate(over="ignore", invalid="ignore")
def solve(factor: Floats, penalty: float) -> tuple[Floats, int]:
    """Minimise |b - A theta|^2 + penalty |theta|^2 for `factor` = (A, b); of several minimisers that of the least norm.

    A is upper triangular where it is square.

    Returns
    -------
    theta, rank
        Shape (d,), not finite where it overflows or `factor` is not finite; and the rank of A with the penalty's rows below it.
    """
    d = factor.shape[1] - 1
    if not np.isfinite(factor).all():
        return np.full_like(factor[0, :-1], np.nan), 0
    if penalty:
        factor = np.concatenate([factor, np.sqrt(penalty) * np.eye(d, d + 1)])
    if len(factor) != d:
        factor = _factor(factor, d)
    A, b = factor[:, :-1], factor[:, -1]
    if _independent(A):
        return solve_triangular(A, b), d
    # Columns are scaled alike, so that features in small units do not count as absent.
    scale = np.abs(A).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    U, values, Vt = np.linalg.svd(A / scale, full_matrices=False)
    kept = values > RANK_TOLERANCE * values[0]
    theta = Vt[kept].T @ ((U.T @ b)[kept] / values[kept]) / scale
    # A (v / scale) = 0 for the other v, and what lies along these only adds to the norm.
    null = np.linalg.qr((Vt[~kept] / scale).T)[0]
    return theta - null @ (null.T @ theta), int(kept.sum())


def _factor(matrix: Floats, size: int) -> Floats:
    """The first `size` rows of the triangular factor of a matrix, zeros where it has fewer."""
    factor = np.linalg.qr(matrix, mode="r")[:size]
    return np.concatenate([factor, np.zeros((size - len(factor), matrix.shape[1]))])


def _factor_of_rows(rows: Rows) -> Floats:
    """The triangular factor of a device's rows and targets side by side, shape (d + 1, d + 1), with zeros below where rows are fewer.

    That of the matrix of squares takes a fraction of the time, and is taken where columns of length 1 are so far from dependent, and the
    targets so far from explained, that squaring costs two digits at most.
    """
    X, y, d = rows.X, rows.y, rows.d
    if rows.n > 2 * d:
        squares, block = np.zeros((d + 1, d + 1)), max(d, BLOCK // d)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, rows.n, block):
                part, targets = X[start : start + block], y[start : start + block]
                squares[:d, :d] += part.T @ part
                squares[:d, d] += targets @ part
                squares[d, d] += targets @ targets
            squares[d, :d] = squares[:d, d]
            length = np.sqrt(np.diagonal(squares))
        if np.isfinite(squares).all() and length.all() and np.isfinite(length**2).all():
            root, failed = dpotrf(squares / np.outer(length, length), clean=True)
            if not failed and min(dtrcon(root[:d, :d])[0], root[d, d]) >= WELL_CONDITIONED:
                return root * length
    return _factor(np.column_stack(rows), d + 1)


def _independent(A: Floats) -> bool:
    """Whether a triangular matrix with columns of length 1 is far from singular, so that its system can be solved as it is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = A / np.sqrt((A**2).sum(axis=0))
    return bool(np.isfinite(scaled).all()) and dtrcon(scaled)[0] >= WELL_CONDITIONED


def _triangle(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a factor of shape (d, d + 1) is not zero."""
    return np.triu_indices(d, m=d + 1)
