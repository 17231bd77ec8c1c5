"""The table of section 6.1 of the paper: grades of students in two schools, and the predictors that are included, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedcore.fit import fit
from fedcore.hm2.hm2 import Hm2
from fedcore.inclusion import included_signs
from fedcore.reproduce.methods import scored, why
from fedcore.reproduce.published import STUDENT
from fedcore.reproduce.table import Cell, Reproduction, Table
from fedcore.reproduce.verdict import Reached
from fedcore.rows import DeviceData, Floats, Rows

TITLE = "Table of section 6.1: grades of students in two schools"

PREDICTORS = 38
ROUNDS, LEVEL = 30, 0.9

DROPPED, WHOLE = "without grade 0", "all rows"
ROWS = (DROPPED, WHOLE)

LASSO, RIDGE, CENTRAL_LASSO, CENTRAL_RIDGE, MEAN = "HM2 lasso", "HM2 ridge", "Centralised lasso", "Centralised ridge", "Training mean"
PRIORS = {LASSO: "lasso", RIDGE: "ridge"}

RMSE, SCHOOLS = "A-RMSE", ("school 1", "school 2")

CONVENTIONS = (
    "A device is a school, Gabriel Pereira or Mousinho da Silveira. Each run draws 60 % of its rows to train and tests on the others."
    " 29 predictors are 38 columns, categories without their first level; numbers are standardised by means and standard deviations"
    " of all training rows, and so is the grade, whose unit A-RMSE is in. There is no intercept.",
    "15 students have grade 0: they left. The headline leaves them out, since only then are errors of the size that the paper reports"
    " possible; the other table has them.",
    "theta_ki ~ Laplace(0, sigma / lambda) or N(0, sigma / lambda), log lambda and log sigma^2 ~ N(0, 3^2). Predictions are by posterior"
    f" means; a predictor is included where the {LEVEL:.0%} equal-tailed interval of its coefficient leaves out zero.",
    "Centralised lasso and ridge are scikit-learn's LassoCV and RidgeCV on the stacked training rows. The lasso includes what is not zero;"
    " ridge leaves nothing out, and the paper does not say how it counts.",
)


class Schools(NamedTuple):
    """Both schools in one run, prepared, and what centralised methods make of the stacked training rows.

    Attributes
    ----------
    devices
        By school.
    central
        Coefficients by method, shape (d,).
    """

    devices: Mapping[str, DeviceData]
    central: Mapping[str, Floats]


StudentRun = Mapping[str, Mapping[str, Reached]]
"""One run: by method, its A-RMSE and how many predictors it includes in each school."""


def standardised(devices: Mapping[str, DeviceData], *, dropped: bool) -> dict[str, DeviceData]:
    """Devices with grades in units of the training rows' standard deviation, around their mean; without grades of 0 where `dropped`."""
    kept = {name: DeviceData(*(_without_zeros(part) if dropped else part for part in data)) for name, data in devices.items()}
    y = np.concatenate([data.train.y for data in kept.values()])
    mean, sd = y.mean(), y.std(ddof=1)
    return {name: DeviceData(*(Rows(part.X, (part.y - mean) / sd) for part in data)) for name, data in kept.items()}


def _without_zeros(rows: Rows) -> Rows:
    return Rows(rows.X[rows.y != 0], rows.y[rows.y != 0])


def student_run(schools: Schools, seed: int) -> StudentRun:
    """Fit both priors, and score them and the centralised methods on each school's test rows."""
    devices, ids = schools.devices, sorted(schools.devices)
    tests = [devices[each].test for each in ids]
    found: dict[str, dict[str, Reached]] = {}
    for label, prior in PRIORS.items():
        result = fit(Hm2(prior=prior), devices, rounds=ROUNDS, seed=seed)  # pyright: ignore[reportArgumentType]
        if not result.outcome.ok:
            found[label] = dict.fromkeys((RMSE, *SCHOOLS), Reached(np.nan, failure=why(result.outcome)))
            continue
        counts = [int(np.count_nonzero(included_signs(result.posterior[each], LEVEL))) for each in ids]
        found[label] = _reached(np.array([result.theta[each] for each in ids]), tests, counts)
    for label, theta in schools.central.items():
        found[label] = _reached(np.array([theta] * len(ids)), tests, [int(np.count_nonzero(theta))] * len(ids))
    found[MEAN] = {RMSE: Reached(scored(np.zeros((len(ids), tests[0].d)), tests))}
    return found


def _reached(thetas: Floats, tests: Sequence[Rows], counts: Sequence[int]) -> dict[str, Reached]:
    return {RMSE: Reached(scored(thetas, tests))} | {school: Reached(float(n)) for school, n in zip(SCHOOLS, counts, strict=True)}


def tabulated(results: Mapping[str, Sequence[StudentRun]], seed: int) -> Reproduction:
    """The tables, from the runs with each choice of rows."""
    tables = (
        Table("A-RMSE on test rows, in standard deviations of the grade", tuple(_cells(results, RMSE, (*STUDENT, MEAN)))),
        *(Table(f"Included predictors of {PREDICTORS}, {school}", tuple(_cells(results, school, tuple(STUDENT)))) for school in SCHOOLS),
    )
    return Reproduction("student", TITLE, len(results[DROPPED]), seed, CONVENTIONS, tables, tuple(_findings(tables)))


def _cells(results: Mapping[str, Sequence[StudentRun]], column: str, methods: Sequence[str]) -> Iterator[Cell]:
    for part in ROWS:
        for method in methods:
            published = STUDENT[method][column] if method in STUDENT else None
            yield Cell.of(part, method, published, [run[method][column] for run in results[part]])


def _findings(tables: Sequence[Table]) -> Iterator[str]:
    rmse = tables[0].means()[DROPPED]
    yield (
        f"The federated lasso is {rmse[LASSO] / rmse[CENTRAL_LASSO] - 1.0:+.1%} from the centralised one, ridge"
        f" {rmse[RIDGE] / rmse[CENTRAL_RIDGE] - 1.0:+.1%}: the paper's order and size."
    )
    counts = "; ".join(
        f"{school} {table.means()[DROPPED][LASSO]:.1f} of {PREDICTORS}" for school, table in zip(SCHOOLS, tables[1:], strict=True)
    )
    yield f"{LEVEL:.0%} intervals of the lasso's posterior leave out zero for few predictors ({counts}), and not for 21 and 23."
