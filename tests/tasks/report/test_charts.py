"""The figures of a run: what they show, and that they can be drawn for any fleet."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Literal
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.text import Annotation, Text

from fedcore.covariance import LowRank
from tasks.report.charts import CHARTS
from tasks.report.charts.benefit import benefit
from tasks.report.charts.calibration import calibration
from tasks.report.charts.coefficients import coefficients
from tasks.report.charts.comparison import comparison
from tasks.report.charts.participation import participation
from tasks.report.charts.selection import selection
from tasks.report.clusters import clusters, silhouette
from tasks.report.found import ABSENT, ANSWERED, REFUSED, SILENT, Found, Scores
from tasks.report.style import THEMED, Chart, canvas, logarithmic, narrow, png, short, svg
from tasks.report.words import held

PNG = b"\x89PNG\r\n\x1a\n"
Made = Callable[..., Found]


def silent(found: Found, **rounds: tuple[str, ...]) -> Found:
    """The run with these devices silent, or not taken, in its first round."""
    first = {**found.history[0], "silent": [*rounds.get("silent", ()), *rounds.get("refused", ())]}
    first["reasons"] = dict.fromkeys(rounds.get("refused", ()), "not finite")
    return replace(found, history=[first, *found.history[1:]])


@pytest.mark.parametrize(("K", "d", "rounds"), [(2, 1, 1), (6, 3, 5), (45, 12, 70), (130, 3, 3), (1100, 2, 3)])
def test_every_figure_can_be_drawn_for_any_fleet(made: Made, K: int, d: int, rounds: int) -> None:
    found = silent(made(K, d, rounds), silent=("d0000",), refused=("d0001",))
    charts = [chart for draw in CHARTS if (chart := draw(found))]
    assert {chart.name for chart in charts} == {draw.__name__ for draw in CHARTS if K > 2 or draw.__name__ != "correlation"}
    for chart in charts:
        assert png(chart.figure).startswith(PNG)
        assert chart.title
        assert chart.caption.endswith(".")
        assert chart.alt.endswith(".")
        text = svg(chart)
        element = ElementTree.fromstring(text)
        ids = [each.get("id") for each in element.iter() if each.get("id")]
        assert all(name is not None and name.startswith(f"{chart.name}-") for name in ids)
        assert len(ids) == len(set(ids))
        # An element that a page shows at any width, in its own colours; thousands of marks would make it slow to open.
        assert element.get("width") is None
        assert "viewBox" in element.attrib
        assert not any(colour in text for colour in THEMED)
        assert len(text) < 1_500_000


def test_what_a_run_does_not_have_is_not_drawn(made: Made) -> None:
    nobody = Scores((), *(np.zeros(0) for _ in range(3)), np.zeros(0, dtype=bool), None)
    bare = made(scores=nobody, known=None, prior=None, phi=(), Omega=None, history=[], trajectories={})
    assert [draw.__name__ for draw in CHARTS if draw(bare)] == ["coefficients"]
    assert participation(made()) is None  # everybody was there


def test_names_are_text_whatever_they_hold(made: Made) -> None:
    odd = "<script>&$\\frac{1}{0}$"
    found = made(d=2)
    found = replace(found, coefficients=(odd, "温度"))
    for draw in (coefficients, selection):
        chart = draw(found)
        assert chart is not None
        png(chart.figure)
        element = svg(chart)
        assert "<script" not in element
        assert any(odd in (text.text or "") for text in ElementTree.fromstring(element).iter("{http://www.w3.org/2000/svg}text"))


def test_the_benefit_names_those_who_are_hurt(made: Made) -> None:
    for K in (6, 60, 500):
        chart = benefit(made(K))
        assert chart is not None
        assert f"smaller with the fleet on {K - 1} of them" in chart.alt
        assert chart.alt.endswith(f"Hurt: d{K - 1:04d}.")


@pytest.mark.parametrize("reach", [0.002, 0.02, 0.2, 2.0])
def test_the_benefit_of_many_has_ticks_at_any_scale(made: Made, reach: float) -> None:
    found = made(300)
    change = np.expm1(np.linspace(-reach, reach / 3, 300))
    chart = benefit(replace(found, scores=found.scores._replace(rmse=found.scores.alone * (1 + change))))
    assert chart is not None
    panel = chart.figure.axes[0]
    low, high = panel.get_ylim()
    ticks = [tick for tick in panel.get_yticks() if low <= tick <= high]
    assert 3 <= len(ticks) <= 9
    labels = [panel.yaxis.get_major_formatter()(tick) for tick in ticks]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(("low", "high"), [(-3.2, 0.55), (-0.3, 0.05), (-0.05, 3.0), (-0.01, 0.2), (-2.0, 2.0)])
def test_the_benefit_has_ticks_on_both_sides_of_none(made: Made, low: float, high: float) -> None:
    found = made(100)
    change = np.expm1(np.linspace(low, high, 100))
    chart = benefit(replace(found, scores=found.scores._replace(rmse=found.scores.alone * (1 + change), hurt=change > 0.01)))
    assert chart is not None
    panel = chart.figure.axes[0]
    chart.figure.draw_without_rendering()
    ends = panel.get_ylim()
    told = {label.get_text(): label for label in panel.get_yticklabels() if ends[0] <= label.get_position()[1] <= ends[1]}
    assert told["0 %"].get_fontweight() == "bold"
    for sign, end in (("−", low), ("+", high)):
        assert any(name.startswith(sign) for name in told) or abs(end) < (high - low) / 8
    marks = next(line for line in panel.lines if line.get_marker() == "v")
    assert len(marks.get_xdata()) == (change > 0.01).sum()  # pyright: ignore[reportArgumentType]


def words(chart: Chart) -> list[Text]:
    """All that is written in a figure which has been drawn, by panel."""
    found: list[Text] = []
    for panel in (panel for panel in chart.figure.axes if panel.get_visible()):
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [axis.label, *(tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)]
        found += [text for text in panel.get_children() if isinstance(text, Text) and not isinstance(text, Annotation)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("form", ["wide", "narrow"])
@pytest.mark.parametrize(("K", "d"), [(4, 3), (6, 3), (25, 12), (45, 12)])
def test_long_names_neither_overlap_nor_are_cut(made: Made, K: int, d: int, form: str) -> None:
    found = made(K, d)
    fleet, columns = tuple(f"pump-station-north-hall-{k:06d}" for k in range(K)), tuple(f"temperature_of_bearing_{j}" for j in range(d))
    scores, courses = found.scores._replace(devices=fleet), dict(zip(fleet, found.trajectories.values(), strict=True))
    phi = tuple(each._replace(feature=columns[0]) for each in found.phi if each.feature)
    named = replace(found, fleet=fleet, devices=fleet, scores=scores, trajectories=courses, coefficients=columns, phi=phi)
    named = silent(replace(named, units={columns[0]: "kilowatt hours"}), silent=fleet[:1])
    for draw in CHARTS:
        chart = draw(named)
        assert chart is not None
        drawn = chart if form == "wide" else narrow(chart)
        drawn.figure.draw_without_rendering()
        boxes = [(text.get_text(), text.get_window_extent()) for text in words(drawn)]
        whole = drawn.figure.bbox.padded(1.0)
        assert [name for name, box in boxes if not (whole.x0 <= box.x0 and box.x1 <= whole.x1)] == [], draw.__name__
        both = [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.padded(-1.0).overlaps(other.padded(-1.0))]
        assert both == [], draw.__name__


def test_names_are_shortened_in_the_middle() -> None:
    assert short("pump-7") == "pump-7"
    assert short("pump-station-north-000017", 14) == "pump-st…000017"
    assert len(short("a" * 41, 20)) == 20


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(("low", "high"), [(3.1, 4.4), (0.21, 0.87), (1.3, 8.7), (0.06, 1.9), (0.004, 1.0), (1e-7, 1e3)])
def test_logarithmic_axes_have_labels_in_any_range(low: float, high: float, axis: Literal["x", "y"]) -> None:
    figure = canvas(2.0, 3.0)
    panel = figure.subplots()
    values = np.geomspace(low, high, 20)
    panel.plot(values, values)
    logarithmic(panel, axis, values)
    figure.draw_without_rendering()
    ends, told = getattr(panel, f"get_{axis}lim")(), getattr(panel, f"get_{axis}ticklabels")()
    shown = [label for label in told if ends[0] <= label.get_position()[axis == "y"] <= ends[1]]
    assert 2 <= len([label for label in shown if label.get_text()]) <= 9
    assert all(float(label.get_text()) == pytest.approx(label.get_position()[axis == "y"]) for label in shown)


def test_coverage_is_of_all_rows_with_an_error_over_devices(made: Made) -> None:
    scores = made(2).scores._replace(n=np.array([10, 30]), covered=np.array([[5, 8, 9, 10], [15, 24, 27, 30]]))
    share, se = held(scores)
    np.testing.assert_allclose(share, [0.5, 0.8, 0.9, 1.0])
    np.testing.assert_allclose(se, 0.0, atol=1e-15)
    uneven = held(scores._replace(covered=np.array([[10, 10, 10, 10], [10, 24, 27, 30]])))
    assert uneven[0][0] == 0.5
    assert uneven[1][0] == pytest.approx(np.sqrt(2 / 1 * (5.0**2 + 5.0**2)) / 40)
    chart = calibration(made(2, scores=scores))
    assert chart is not None
    assert chart.alt.startswith("Of the test rows, 50 % intervals hold 50.0 %, 80 % intervals hold 80.0 %, ")


def test_participation_tells_silent_refused_and_not_drawn_apart(made: Made) -> None:
    found = silent(made(4, rounds=2), silent=("d0001",), refused=("d0002",))
    np.testing.assert_array_equal(found.participation[:, 0], [ANSWERED, SILENT, REFUSED, ANSWERED])
    np.testing.assert_array_equal(found.participation[:, 1], [ANSWERED] * 4)
    settings = {**found.settings, "participation": 0.5}
    half = replace(made(4, rounds=20), settings=settings)
    half = replace(half, history=[{**entry, "cohort": 2} for entry in half.history])
    assert ((half.participation == ANSWERED).sum(axis=0) == 2).all()
    assert ((half.participation == ABSENT).sum(axis=0) == 2).all()
    assert (half.participation == ANSWERED).any(axis=1).all()


@pytest.mark.parametrize("low_rank", [False, True])
def test_groups_and_outliers_are_those_that_were_put_in(made: Made, low_rank: bool) -> None:
    factor = np.array([[1.0, 1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0]])
    Omega = LowRank(factor, 0.1) if low_rank else factor.T @ factor + 0.1 * np.eye(9)
    known = clusters(made(9, Omega=Omega))
    assert known is not None
    assert sorted(map(sorted, known.groups)) == [[f"d{k:04d}" for k in part] for part in (range(4), range(4, 8))]
    assert known.outliers == ["d0008"]
    np.testing.assert_allclose(known.correlation.diagonal(), 1.0)


def test_no_groups_where_none_are_clear(made: Made) -> None:
    known = clusters(made(9, Omega=np.eye(9)))
    assert known is not None
    assert len(known.groups) == 1
    assert not known.outliers


def test_the_silhouette_is_rousseeuws() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.standard_normal((7, 2)), 4 + rng.standard_normal((5, 2)), [[20.0, 20.0]]])
    distance, label = np.linalg.norm(points[:, None] - points, axis=2), np.array([3] * 7 + [1] * 5 + [2])
    each: list[float] = []
    for i, own in enumerate(label):
        mine = [distance[i, j] for j in range(13) if label[j] == own and j != i]
        other = min(np.mean([distance[i, j] for j in range(13) if label[j] == name]) for name in {1, 2, 3} - {own})
        each.append((other - np.mean(mine)) / max(other, np.mean(mine)) if mine else 0.0)
    assert silhouette(distance, label) == pytest.approx(np.mean(each), rel=1e-12)


def test_runs_are_compared_on_the_devices_that_all_of_them_scored(made: Made) -> None:
    one, other = made(6), made(4, seed=1, run_id="run-2", algorithm="eb")
    chart = comparison([one, other])
    assert chart is not None
    assert "Errors of the 4 devices" in chart.caption
    means = [float(value) for value in re.findall(r"(?:1: hm2|2: eb|run 1): ([\d.]+\d)", chart.alt)]
    np.testing.assert_allclose(means, [one.scores.rmse[:4].mean(), other.scores.rmse.mean(), one.scores.alone[:4].mean()], rtol=1e-3)
