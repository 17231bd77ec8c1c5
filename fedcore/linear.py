"""Linear regression on one device: its compression, its stable rates, and T local gradient steps.

All functions work on m devices at once, with a leading device axis, and never pad: what one device computes does not
depend on which others share the call.

Gradients are means over the rows of a batch: theta <- theta + 2 rate mean_i x_i (y_i - x_i' theta). A step of rate eta
along the *sum* over b rows is the same step at rate eta b, so that one form serves both conventions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from fedcore.deadline import check_deadline
from fedcore.errors import Misuse
from fedcore.options import choice, number, whole
from fedcore.rows import Booleans, DeviceData, Floats, Rows

RANK_TOLERANCE = 1e-12
"""Eigenvalues of X'X / n below this share of the largest count as zero: about the rounding of forming X'X."""

SAFETY = 0.5
"""The default rate as a share of the largest stable one: where the fastest direction converges in one step."""


class LocalProblem(NamedTuple):
    """Least squares on one device, compressed; with a leading axis m where it stands for m devices.

    Attributes
    ----------
    gram
        X'X / n, shape (d, d).
    moment
        X'y / n, shape (d,).
    power
        y'y / n.
    n
        Number of training rows.
    noise_variance
        Residual variance of the device's own least squares, rss / (n - rank). Without residual degrees of freedom y'y /
        n, the largest value that the rows allow.
    eta
        The learning rate as the user states it.
    rate
        The same for mean gradients: eta, or eta times the batch size where gradients are sums.
    gain
        rate times the sum over t < T of (1 - 2 rate l)^t, averaged over the eigenvalues l of `gram`: T rate for small steps, and
        less the nearer T steps come to the device's own least squares. What a prior must be weighed by beside T such steps.
    map_matrix, map_offset
        T full-batch steps as one affine map theta -> map_matrix theta + map_offset, shapes (d, d) and (d,); (0, 0) and
        (0,) where steps are stochastic.
    """

    gram: Floats
    moment: Floats
    power: Floats
    n: Floats
    noise_variance: Floats
    eta: Floats
    rate: Floats
    gain: Floats
    map_matrix: Floats
    map_offset: Floats

    @property
    def calibrated_rate(self) -> Floats:
        """The step size of a shrinkage towards a prior, after these local steps, that is consistent with sum |y - X theta|^2 /
        sigma^2 and that prior: gain noise_variance / n."""
        return self.gain * self.noise_variance / self.n


class Pull(NamedTuple):
    """A penalty lambda / 2 |v - centre|^2 beside a device's mean squared error, settled for T steps; with a leading axis m.

    Attributes
    ----------
    shrink
        1 / (1 + rate lambda), the penalty's proximal step on v - centre.
    map_matrix, map_solver
        T full-batch steps as one map v - centre -> map_matrix (v - centre) + map_solver (moment - gram centre), shapes (d, d)
        each; (0, 0) where steps are stochastic.
    """

    shrink: Floats
    map_matrix: Floats
    map_solver: Floats


@dataclass(frozen=True)
class LocalSteps:
    """T gradient steps on the device's own rows, the local half of a communication round (paper, Algorithm 1).

    Attributes
    ----------
    eta
        Learning rate; "safe" takes half of the largest rate that is stable on the device's own rows.
    steps
        T, the number of steps a round.
    batch
        Rows a step, drawn with replacement; "full" takes all rows.
    gradient
        Whether a step follows the "mean" or the "sum" of its rows' gradients.
    """

    eta: float | Literal["safe"] = "safe"
    steps: int = 20
    batch: int | Literal["full"] = "full"
    gradient: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        number("eta", self.eta, 0, np.inf, above=True, below=True, words=("safe",))
        whole("steps", self.steps, 1, 1_000_000)
        if self.batch != "full":
            whole('batch (unless "full")', self.batch, 1, 1_000_000_000)
        choice("gradient", self.gradient, ("mean", "sum"))

    def prepare(self, datas: Sequence[DeviceData]) -> LocalProblem:
        """Compress m devices' training rows and settle their learning rates.

        Raises
        ------
        Misuse
            Where a stated `eta` is not stable on a device's rows (names the largest rate that is), or values are so large that
        their squares overflow.
        """
        rows = training_rows(datas)
        n = np.array([float(part.n) for part in rows])
        with np.errstate(over="ignore", invalid="ignore"):
            gram = np.array([part.X.T @ part.X for part in rows]) / n[:, None, None]
            moment = np.array([part.X.T @ part.y for part in rows]) / n[:, None]
            power = np.array([part.y @ part.y for part in rows]) / n
        if not (np.isfinite(gram).all() and np.isfinite(power).all()):
            raise Misuse("the squares of this device's values are not finite: scale features and target, and fill missing values")
        values, vectors, kept = _spectrum(gram)

        per_eta = self._per_eta(n)
        limit = self._largest_stable_rates(rows, values, vectors, kept)
        eta = self._etas(limit / per_eta)
        rate = eta * per_eta

        least_squares = _apply(vectors, np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0), moment)
        residual = [part.y - part.X @ theta for part, theta in zip(rows, least_squares, strict=True)]
        freedom = n - kept.sum(axis=1)
        rss = np.array([r @ r for r in residual])
        noise_variance = np.where(freedom > 0, rss / np.maximum(freedom, 1.0), power)

        gain = 0.5 * _powers(values, rate, self.steps)[1].mean(axis=1)
        if self.batch == "full":
            map_matrix, map_offset = affine_map(values, vectors, moment, rate, self.steps)
        else:
            map_matrix, map_offset = np.empty((len(rows), 0, 0)), np.empty((len(rows), 0))
        return LocalProblem(gram, moment, power, n, noise_variance, eta, rate, gain, map_matrix, map_offset)

    def run(self, theta: Floats, problem: LocalProblem, datas: Sequence[DeviceData], rngs: Sequence[Generator]) -> Floats:
        """T steps from theta, shape (m, d), on each device's training rows.

        An estimate that overflows comes back non-finite; the caller decides what that means.
        """
        if self.batch == "full":
            return _matvec(problem.map_matrix, theta) + problem.map_offset
        with np.errstate(over="ignore", invalid="ignore"):
            return self._stochastic(theta, problem, np.ones_like(problem.n), [data.train for data in datas], rngs)

    def pull(self, problem: LocalProblem, penalty: float) -> Pull:
        """Settle a penalty lambda / 2 |v - centre|^2 beside f, the mean squared error over the rows of a step, or where gradients
        are sums their sum.

        A step is the gradient step on f at the device's rate r, followed by the penalty's proximal step: v <- (v - r grad f(v) +
        r lambda centre) / (1 + r lambda). It is the gradient step on both at the rate r / (1 + r lambda), and contracts for every
        lambda where r is stable for f.
        """
        weight = penalty / self._per_eta(problem.n)
        rate = 1.0 / (1.0 / problem.rate + weight)
        shrink, m = rate / problem.rate, len(problem.n)
        if self.batch != "full":
            return Pull(shrink, np.empty((m, 0, 0)), np.empty((m, 0, 0)))
        values, vectors, _ = _spectrum(problem.gram)
        # With (2 r l + r lambda) / (1 + r lambda) for 2 r l the powers are those of steps on the mean squared error alone.
        power, total = _powers(values + 0.5 * weight[:, None], rate, self.steps)
        return Pull(shrink, _matrix(vectors, power), _matrix(vectors, total))

    def run_pulled(
        self, v: Floats, centre: Floats, problem: LocalProblem, pull: Pull, datas: Sequence[DeviceData], rngs: Sequence[Generator]
    ) -> Floats:
        """T steps from v with a penalty on the distance to `centre`, shapes (m, d); see `pull`.

        In v - centre they are steps on what the centre leaves of the targets.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            if self.batch == "full":
                left = problem.moment - _matvec(problem.gram, centre)
                return centre + _matvec(pull.map_matrix, v - centre) + _matvec(pull.map_solver, left)
            rows = [Rows(data.train.X, data.train.y - data.train.X @ theta) for data, theta in zip(datas, centre, strict=True)]
            return centre + self._stochastic(v - centre, problem, pull.shrink, rows, rngs)

    def loss(self, theta: Floats, problem: LocalProblem) -> Floats:
        """Mean squared training error at theta, shape (m,), from the compression alone."""
        with np.errstate(over="ignore", invalid="ignore"):
            fit = ((_matvec(problem.gram, theta) - 2.0 * problem.moment) * theta).sum(axis=-1)
            return np.maximum(problem.power + fit, 0.0)

    def _rows_a_step(self, n: Floats) -> Floats:
        return n if self.batch == "full" else np.minimum(float(self.batch), n)

    def _per_eta(self, n: Floats) -> Floats:
        """How many mean-gradient steps one step of the user's convention is."""
        return self._rows_a_step(n) if self.gradient == "sum" else np.ones_like(n)

    def _stochastic(self, theta: Floats, problem: LocalProblem, shrink: Floats, rows: Sequence[Rows], rngs: Sequence[Generator]) -> Floats:
        groups: dict[int, list[int]] = {}
        for position, size in enumerate(self._rows_a_step(problem.n).astype(int).tolist()):
            groups.setdefault(size, []).append(position)
        result = theta.copy()
        for size, members in groups.items():
            draws = [rng.integers(part.n, size=(self.steps, size)) for part, rng in ((rows[k], rngs[k]) for k in members)]
            X = np.array([rows[k].X[draw] for k, draw in zip(members, draws, strict=True)])
            y = np.array([rows[k].y[draw] for k, draw in zip(members, draws, strict=True)])
            step, shrunk = (2.0 * problem.rate[members] / size)[:, None], shrink[members, None]
            estimate = result[members]
            for t in range(self.steps):
                check_deadline()
                batch = X[:, t]
                estimate = shrunk * (estimate + step * _matvec(batch.swapaxes(1, 2), y[:, t] - _matvec(batch, estimate)))
            result[members] = estimate
        return result

    def _largest_stable_rates(self, rows: Sequence[Rows], values: Floats, vectors: Floats, kept: Booleans) -> Floats:
        """Rates below which steps contract, shape (m,), for mean gradients.

        Full batch: 1 / lambda_max(C) with C = X'X / n. Batches of b with replacement contract in mean square below the
        inverse of the largest eigenvalue of M / b + (1 - 1/b) C^2 relative to C, with M = mean_i |x_i|^2 x_i x_i'.
        """
        if self.batch == "full":
            largest = values[:, -1]
        else:
            largest = np.array([self._noise_curvature(*each) for each in zip(rows, values, vectors, kept, strict=True)])
        return np.where(largest > 0, 1.0 / np.where(largest > 0, largest, 1.0), np.inf)

    def _noise_curvature(self, rows: Rows, values: Floats, vectors: Floats, kept: Booleans) -> float:
        b = min(int(self.batch), rows.n)
        whitened = (rows.X @ vectors[:, kept]) / np.sqrt(values[kept])
        squares = (rows.X**2).sum(axis=1)
        relative = whitened.T @ (squares[:, None] * whitened) / rows.n / b + (1.0 - 1.0 / b) * np.diag(values[kept])
        return float(np.linalg.eigvalsh(relative)[-1]) if kept.any() else 0.0

    def _etas(self, largest: Floats) -> Floats:
        if self.eta == "safe":
            return np.where(np.isfinite(largest), SAFETY * largest, 1.0)
        if np.any(self.eta >= largest):
            raise Misuse(
                f"eta={self.eta:g} is not stable on this device's rows: with {self.gradient} gradients and batch={self.batch} "
                f"it must stay below {float(largest.min()):.3g}; choose a smaller eta, or eta=safe"
            )
        return np.full_like(largest, self.eta)


def training_rows(datas: Sequence[DeviceData]) -> list[Rows]:
    """The rows that train, of each device.

    Raises
    ------
    Misuse
        Where a device has none.
    """
    rows = [data.train for data in datas]
    if not all(part.n for part in rows):
        raise Misuse("a device without training rows cannot take part: leave it out, or change the split")
    return rows


def affine_map(values: Floats, vectors: Floats, moment: Floats, rate: Floats, steps: int) -> tuple[Floats, Floats]:
    """`steps` full-batch steps as one map theta -> matrix theta + offset.

    With C = U L U' and q = 1 - 2 rate l, the matrix is U q^T U' and the offset U diag((1 - q^T) / l) U' moment, whose
    limit for l -> 0 is 2 rate T.

    Parameters
    ----------
    values, vectors
        Eigenvalues L, shape (m, d), and eigenvectors U, shape (m, d, d), of X'X / n.
    moment
        X'y / n, shape (m, d).
    rate
        Mean-gradient learning rates, shape (m,).
    steps
        T.

    Returns
    -------
    matrix, offset
        Shapes (m, d, d) and (m, d).
    """
    power, total = _powers(values, rate, steps)
    return _matrix(vectors, power), _apply(vectors, total, moment)


def _spectrum(gram: Floats) -> tuple[Floats, Floats, Booleans]:
    """Eigenvalues, shape (m, d), zero where they are below the rounding of `gram`; eigenvectors; which are not zero."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > RANK_TOLERANCE * values[:, -1:]
    return np.where(kept, values, 0.0), vectors, kept


def _powers(values: Floats, rate: Floats, steps: int) -> tuple[Floats, Floats]:
    """q^T and (1 - q^T) / l for q = 1 - 2 rate l, each of shape (m, d); the second is 2 rate T at l = 0."""
    step = 2.0 * rate[:, None] * values
    power = (1.0 - step) ** steps
    small = step < SAFETY
    # Near l = 0 the difference 1 - q^T cancels; expm1 and log1p keep its digits.
    shrunk = np.where(small, -np.expm1(steps * np.log1p(-np.where(small, step, 0.0))), 1.0 - power)
    return power, np.where(values > 0, shrunk / np.where(values > 0, values, 1.0), 2.0 * steps * rate[:, None])


def _matrix(vectors: Floats, values: Floats) -> Floats:
    """U diag(values) U', device by device."""
    return (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2)


def _matvec(matrix: Floats, vector: Floats) -> Floats:
    return (matrix @ vector[..., None])[..., 0]


def _apply(vectors: Floats, values: Floats, vector: Floats) -> Floats:
    """U diag(values) U' vector, device by device."""
    return _matvec(vectors, values * _matvec(vectors.swapaxes(1, 2), vector))
