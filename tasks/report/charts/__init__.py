"""The figures of a training run, one function each: None where the run has nothing to show in it."""

from __future__ import annotations

from collections.abc import Callable

from tasks.report.charts.benefit import benefit
from tasks.report.charts.calibration import calibration
from tasks.report.charts.coefficients import coefficients
from tasks.report.charts.correlation import correlation
from tasks.report.charts.hyperparameters import hyperparameters
from tasks.report.charts.participation import participation
from tasks.report.charts.progress import progress
from tasks.report.charts.selection import selection
from tasks.report.charts.trajectories import trajectories
from tasks.report.found import Found
from tasks.report.style import Chart

CHARTS: tuple[Callable[[Found], Chart | None], ...] = (
    benefit,
    trajectories,
    coefficients,
    correlation,
    hyperparameters,
    selection,
    calibration,
    progress,
    participation,
)
