"""The report of a run: what it says, and what it does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from fedcore.algorithm import Outcome
from fedcore.errors import Misuse
from tasks.report.found import Found, Scores
from tasks.report.page import page
from tasks.report.tabular import devices_table
from tasks.report.words import intervals, verdict

Made = Callable[..., Found]


def scored(found: Found, change: np.ndarray, hurt: bool = False) -> Found:
    """The run with these changes of the RMSE."""
    scores = found.scores._replace(rmse=found.scores.alone * (1 + change), hurt=np.full(len(found.devices), hurt))
    return replace(found, scores=scores)


def test_the_answer_is_that_of_a_paired_test(made: Made) -> None:
    found = made(20)
    rng = np.random.default_rng(0)
    clear, noise = np.full(20, -0.2) + 0.01 * rng.standard_normal(20), rng.standard_normal(20)
    noise = 0.1 * (noise - noise.mean())
    assert (verdict(scored(found, clear)).answer, verdict(scored(found, clear)).headline) == ("yes", "Yes")
    assert verdict(scored(found, clear, hurt=True)).headline == "Yes, but not for every device"
    assert verdict(scored(found, -clear)).answer == "no"
    assert verdict(scored(found, noise)).answer == "unclear"
    # Two devices are two pairs, and two standard errors of them are nothing.
    assert verdict(scored(made(2), np.array([-0.2, -0.3]))).answer == "unclear"
    assert verdict(scored(made(1), np.array([-0.9]))).answer == "unclear"


def test_a_sure_difference_of_no_size_is_no_help(made: Made) -> None:
    answer = verdict(scored(made(20), np.full(20, -0.002) + 1e-4 * np.random.default_rng(0).standard_normal(20)))
    assert (answer.answer, answer.headline) == ("unclear", "Hardly")
    assert "0.2 % less" in answer.sentences[0]
    assert answer.sentences[-1] == "That is no chance, but less than 1 %: too little to matter."


@pytest.mark.parametrize(
    ("algorithm", "rival"), [("hm1", "as many local steps on its own rows"), ("eb", "exact least squares on its own rows")]
)
def test_it_says_what_it_is_compared_with_and_all_that_was_sent(algorithm: str, rival: str, made: Made) -> None:
    found = made(6, rounds=5, algorithm=algorithm)
    shown = page(found)
    assert f"Alone: {rival}." in shown
    assert found.sent == (1_000 + 5 * 80 * 6, 2_000 + 5 * 100 * 6)
    assert "Devices sent 3.4 kB and were sent 5 kB, of which 1 kB and 2 kB in the exchange before the rounds" in shown
    assert "3.4 kB" in shown
    assert "4 + 1 to warm up" in shown
    assert "all 4 rounds were run" in shown
    assert "Mean error with the fleet, bar" in shown
    assert "x0 (kW)" in shown
    assert "on test rows, in bar." in shown
    assert "on test rows, in units of the target." in page(replace(found, unit=""))


@pytest.mark.parametrize(
    ("share", "told", "caution"),
    [
        (0.69, "90 % intervals hold 69 % of test rows: they are too narrow.", True),
        (0.84, "90 % intervals hold 84 % of test rows: they are too narrow.", False),
        (0.91, "90 % intervals hold 91 % of test rows: about as often as they say.", False),
        (1.0, "90 % intervals hold 100 % of test rows: they are wider than need be.", False),
    ],
)
def test_it_says_how_many_rows_intervals_hold(share: float, told: str, caution: bool, made: Made) -> None:
    found = made(10)
    covered = np.tile([50.0, 60.0, 100 * share, 100.0], (10, 1))
    found = replace(found, scores=found.scores._replace(n=np.full(10, 100.0), covered=covered))
    assert intervals(found.scores) == (told, caution)
    assert (f'<p class="caution">{told}</p>' in page(found)) == caution
    assert told in page(found)


def test_an_exact_rival_has_the_penalty_of_the_run(made: Made) -> None:
    found = made(2, algorithm="pooled")
    assert replace(found, settings={**found.settings, "penalty": 0.5}).rival.endswith(", with the same penalty")


def test_devices_are_in_the_order_of_their_numbers(made: Made) -> None:
    found = replace(made(3), fleet=("d1", "d10", "d2"), devices=("d1", "d10", "d2"))
    assert [row[0].text for row in devices_table(found, None, []).rows] == ["d1", "d2", "d10"]


def test_without_scores_it_says_so_and_what_to_do(made: Made) -> None:
    nobody = Scores((), *(np.zeros(0) for _ in range(3)), np.zeros(0, dtype=bool), None)
    answer = verdict(made(scores=nobody))
    assert answer.headline == "This run cannot say"
    assert "[split]" in answer.sentences[0]
    assert "This run cannot say" in page(made(scores=nobody))


def test_what_may_not_be_told_is_not(made: Made) -> None:
    found = made(4)
    kept = replace(found, scores=Scores(*(value[:3] for value in found.scores)))  # the last device has too few test rows
    text = page(kept)
    row = re.search(r"<th scope=\"row\">d0003</th>.*?</tr>", text, re.DOTALL)
    assert row is not None
    assert row.group().count("not told") == 4
    assert "no score" in row.group()
    assert "1 device is not counted" in text


def test_it_asks_nothing_of_the_network_and_escapes_names(made: Made) -> None:
    text = page(replace(made(d=1), coefficients=("<img src=//x onerror=alert(1)>",), target="</title><script>alert(1)</script>"))
    tags: list[tuple[str, dict[str, str | None]]] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attrs)))

    Tags().feed(text)
    assert [tag for tag, _ in tags].count("script") == 1
    assert "img" not in {tag for tag, _ in tags}
    addresses = [value for _, attributes in tags for name, value in attributes.items() if name in ("src", "href", "xlink:href", "action")]
    assert addresses
    assert all(address and address.startswith(("#", "data:")) for address in addresses)
    assert all(address.startswith("#") for address in re.findall(r"url\(([^)]*)\)", text))
    assert "default-src 'none'" in text


def test_a_run_that_failed_gives_no_answer(made: Made) -> None:
    found = made(20, outcome=Outcome("diverged", "the steps overflow", ok=False))
    answer = verdict(found)
    assert (answer.answer, answer.headline) == ("unknown", "This run cannot say")
    assert answer.caution == "The run ended as diverged, so its figures are of little use: the steps overflow."
    text = page(found)
    assert text.index(answer.headline) < text.index(answer.caution) < text.index(answer.sentences[1])
    # Scores that are not finite are none, and it is not the contract's fault.
    nobody = Scores((), *(np.zeros(0) for _ in range(3)), np.zeros(0, dtype=bool), None)
    assert verdict(replace(found, scores=nobody)) == answer._replace(sentences=())
    assert answer.caution in page(replace(found, scores=nobody))


def helped(found: Found, worse: int = 0, hurt: int = 0) -> Found:
    """The run where federation surely helps in the mean, and makes so many devices a little worse, of which so many are hurt."""
    K = len(found.devices)
    change = np.where(np.arange(K) < worse, 0.01, -0.8) + 1e-3 * np.arange(K)
    scores = found.scores._replace(rmse=found.scores.alone * (1 + change), hurt=np.arange(K) < hurt)
    return replace(found, scores=scores, history=[{**entry, "loss": 1.0} for entry in found.history])


def test_a_good_answer_on_firm_ground_has_no_caution(made: Made) -> None:
    found = helped(made(100), worse=12, hurt=9)
    assert (verdict(found).answer, verdict(found).caution) == ("yes", "")
    assert 'class="caution"' not in page(found)


def test_an_answer_that_is_not_favourable_needs_no_caution(made: Made) -> None:
    shaky = made(20, outcome=Outcome("exact_fit", "the rows are fitted without residual", ok=True), caution="little is known")
    assert verdict(scored(shaky, np.full(20, 0.2) + 0.01 * np.random.default_rng(0).standard_normal(20))).answer == "no"
    assert verdict(scored(shaky, np.full(20, 0.2) + 0.01 * np.random.default_rng(0).standard_normal(20))).caution == ""
    assert verdict(scored(made(1), np.array([-0.9]))).caution == ""


@pytest.mark.parametrize(
    ("fields", "worse", "hurt", "told"),
    [
        ({}, 12, 10, "10 of 100 devices are hurt, and another method may hurt fewer: fedlin compare tries them all."),
        ({}, 51, 0, "Most devices are worse off, and the mean is carried by the few that gain much."),
        ({"outcome": Outcome("exact_fit", "nothing is left", ok=True)}, 0, 0, "The run ended as exact_fit: nothing is left."),
        ({"caution": "phi has not settled"}, 0, 0, "The run says of itself that phi has not settled."),
        ({"beyond": True, "algorithm": "eb"}, 0, 0, "Test rows come after all training rows, where exact least squares alone may run far"),
        ({"beyond": True, "algorithm": "hm1"}, 0, 0, ""),
        ({"beyond": True, "algorithm": "pooled", "settings": {"penalty": 1.0, "seed": 0, "participation": 1.0}}, 0, 0, ""),
        (
            {"caution": "phi has not settled"},
            12,
            11,
            "11 of 100 devices are hurt, and another method may hurt fewer: fedlin compare tries them all; the run says of itself",
        ),
    ],
)
def test_a_good_answer_on_shaky_ground_has_a_caution(fields: dict[str, Any], worse: int, hurt: int, told: str, made: Made) -> None:
    found = helped(made(100, **fields), worse, hurt)
    answer = verdict(found)
    assert answer.answer == "yes"
    assert answer.caution.startswith(told)
    assert bool(answer.caution) == bool(told)
    assert answer.caution not in answer.sentences
    if told:
        text = page(found)
        assert text.index("</h2>") < text.index(f'<p class="caution">{answer.caution}</p>') < text.index(answer.sentences[1])


def test_an_error_that_still_fell_at_the_end_is_cautioned_about(made: Made) -> None:
    told = "The training error had not settled when the rounds were over, so with more of them the answer may be another."
    rng = np.random.default_rng(0)

    def of(rounds: int, **fields: Any) -> str:
        return verdict(scored(made(20, rounds=rounds, **fields), np.full(20, -0.2) + 0.01 * rng.standard_normal(20))).caution

    assert of(5) == told
    assert of(30) == told
    assert of(1) == told
    assert of(5, outcome=Outcome("converged", "nothing moves", ok=True)) == ""
    # Where devices are drawn, the error of a round is that of others.
    assert of(5, settings={"seed": 0, "participation": 0.5}) == ""


def test_runs_of_other_targets_are_not_compared(made: Made) -> None:
    with pytest.raises(Misuse, match="run run-1 has target 'pressure' of 'pumps', run run-2 has target 'flow' of 'pumps'"):
        page(made(), [made(run_id="run-2", target="flow")])


def test_it_names_in_what_other_runs_differ_besides_their_method(made: Made) -> None:
    found, alike = made(4), made(4, seed=1, run_id="run-2", algorithm="eb")
    told = "Errors cannot be compared where runs differ from run 1 in more than their method: "
    assert told not in page(found, [alike])
    other = replace(alike, rests={**found.rests, "split.seed": 7, "missing.policy": "mean"})
    assert f'<p class="caution">{told}run 2 (run-2) in split.seed and missing.policy.</p>' in page(found, [other])
    moved = replace(alike, run_id="run-3", prints={**found.prints, "d0001": "1", "new": "2"})
    assert f"{told}run 3 (run-3) in the rows of 1 device." in page(found, [alike, moved])


def test_another_run_stands_beside_each_device(made: Made) -> None:
    text = page(made(3), [made(3, seed=1, run_id="run-2", algorithm="eb")])
    assert "Error in run 2 (eb)" in text
    assert 'id="runs"' in text


def test_courses_that_devices_may_not_tell_are_said_to_be_missing(made: Made) -> None:
    missing = "How pressure goes over hour is not shown: the contract's disclosure rules"
    assert missing.replace("'", "&#39;") in page(made(trajectories={}))
    assert "is not shown" not in page(made())
    assert '<section id="trajectories"' not in page(made(trajectories={}, time=""))
