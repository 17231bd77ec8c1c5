"""The table of section 5.2 of the paper: which predictors HM2's lasso selects on simulated fleets, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedcore.fit import fit
from fedcore.hm2.hm2 import Hm2
from fedcore.inclusion import included_signs, refit
from fedcore.reproduce.limits import least_squares
from fedcore.reproduce.methods import scored, why
from fedcore.reproduce.published import TABLE_2
from fedcore.reproduce.table import Cell, Reproduction, Table
from fedcore.reproduce.verdict import Reached
from fedcore.rows import Floats
from fedcore.simulate import simulate

TITLE = "Table of section 5.2: predictors that HM2's lasso selects on simulated fleets"

CASES = {"Case I": "hm2-1", "Case II": "hm2-2", "Case III": "hm2-3"}
ROUNDS, LEVEL = 30, 0.9

RMSE, CORRECT, FALSE = "A-RMSE", "correct inclusion", "false inclusion"

MEAN, REFIT, OLS, KNOWN = "HM2 lasso", "HM2 lasso, refit on the selected", "OLS", "OLS on the true predictors"
RECALL, PRECISION, FALSE_RATE = (
    "share of the true that is selected",
    "share of the selected that is true",
    "share of the null that is selected",
)

TABLES: dict[str, tuple[str, dict[str, bool]]] = {
    RMSE: ("A-RMSE on noisy test rows", {MEAN: True, REFIT: True, OLS: False, KNOWN: False}),
    CORRECT: ("Averaged correct inclusion rate", {RECALL: True, PRECISION: True}),
    FALSE: ("Averaged false inclusion rate", {FALSE_RATE: True}),
}
"""By the paper's column: a title, and its rows, with whether each is held against the paper."""

CONVENTIONS = (
    "Every device has the same coefficients. Rows are standard normal; the noise of 0.05 is a standard deviation, in test targets too.",
    "theta_ki ~ Laplace(0, sigma / lambda), log lambda and log sigma^2 ~ N(0, 3^2): the paper names log-normal priors without figures.",
    f"A predictor is selected on a device where the {LEVEL:.0%} equal-tailed interval of its coefficient leaves out zero.",
    "The paper says neither by which coefficients it predicts nor what an averaged correct inclusion rate is. So posterior means and least"
    " squares on what a device has selected are both held against its A-RMSE; and the share of true predictors that are selected and the"
    " share of selected predictors that are true, averaged over devices, against its correct inclusion rate.",
    "OLS on the true predictors is what nothing that has to select can be better than on average, without sharing.",
)

SelectionRun = Mapping[str, Reached]
"""One run of a case: what each row of the tables reached."""


def selection_run(case: str, seed: int) -> SelectionRun:
    """Draw a fleet of a case of `CASES`, and select on it; `seed` is the root of all random numbers."""
    fleet = simulate(CASES[case], seed)
    ids = sorted(fleet.devices)
    rows, tests = [fleet.devices[each].train for each in ids], [fleet.devices[each].test for each in ids]
    result = fit(Hm2(prior="lasso"), fleet.devices, rounds=ROUNDS, seed=seed)
    if not result.outcome.ok:
        return dict.fromkeys((MEAN, REFIT, RECALL, PRECISION, FALSE_RATE), Reached(np.nan, failure=why(result.outcome)))
    selected = np.array([included_signs(result.posterior[each], LEVEL) != 0 for each in ids])
    true = fleet.Theta.T != 0
    refitted = np.array([refit(part, chosen) for part, chosen in zip(rows, selected, strict=True)])
    known = np.array([refit(part, chosen) for part, chosen in zip(rows, true, strict=True)])
    thetas: dict[str, Floats] = {MEAN: np.array([result.theta[each] for each in ids]), REFIT: refitted}
    thetas |= {OLS: least_squares(rows), KNOWN: known}
    found = {label: scored(theta, tests) for label, theta in thetas.items()}
    found[RECALL] = float((selected & true).sum(axis=1).mean() / true.sum(axis=1).mean())
    found[PRECISION] = float(((selected & true).sum(axis=1) / selected.sum(axis=1)).mean())
    found[FALSE_RATE] = float((selected & ~true).sum(axis=1).mean() / (~true).sum(axis=1).mean())
    return {label: Reached(value) for label, value in found.items()}


def tabulated(results: Mapping[str, Sequence[SelectionRun]], seed: int) -> Reproduction:
    """The tables, from the runs of each case by its label."""
    tables = tuple(Table(title, tuple(_cells(results, column, rows))) for column, (title, rows) in TABLES.items())
    runs = len(next(iter(results.values())))
    return Reproduction("hm2-selection", TITLE, runs, seed, CONVENTIONS, tables, tuple(_findings(tables)))


def _cells(results: Mapping[str, Sequence[SelectionRun]], column: str, rows: Mapping[str, bool]) -> Iterator[Cell]:
    for part, runs in results.items():
        for label, held in rows.items():
            yield Cell.of(part, label, TABLE_2[part][column] if held else None, [run[label] for run in runs])


def _findings(tables: Sequence[Table]) -> Iterator[str]:
    rmse, correct, false = (table.means() for table in tables)
    recall = min(row[RECALL] for row in correct.values())
    yield (
        f"At least {recall:.1%} of the true predictors are selected in every case: with this noise none is near zero by its own standard"
        " error, so a correct inclusion rate of .88 cannot be that share."
    )
    rates = ", ".join(f"{part} {row[FALSE_RATE]:.3f}" for part, row in false.items())
    yield f"Null predictors are selected about as often as a {LEVEL:.0%} interval misses by design: {rates}."
    gaps = ", ".join(f"{part} {row[MEAN] / row[KNOWN] - 1.0:+.1%} and {row[REFIT] / row[KNOWN] - 1.0:+.1%}" for part, row in rmse.items())
    yield f"A-RMSE above that of least squares on the true predictors, by posterior means and by the refit: {gaps}."
