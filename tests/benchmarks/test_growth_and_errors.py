"""What parts of the benchmarks make of what they measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.alone import ALGORITHMS, run
from benchmarks.growth import axes, exponent
from benchmarks.million import Cost, tables
from benchmarks.results import Part
from benchmarks.to_error import METHODS, Course, course, middle
from benchmarks.where import STAGES, Clock, split, wrapped
from fedcore.simulate import simulate


def test_an_exponent_is_of_the_upper_points():
    sizes = [10, 100, 1_000, 10_000]
    assert exponent(sizes, [50.0, 100.0, 10_000.0, 1_000_000.0]) == pytest.approx(2.0)


def test_hm2_grows_as_far_as_its_cost_allows():
    devices = {name: sizes[-1][0] for name, sizes in axes(quick=False)[0].sizes.items()}
    assert devices == {"fedavg": 100_000, "hm1": 100_000, "eb": 100_000, "hm2": 10_000, "pooled": 100_000}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_tells_what_messages_take(algorithm):
    once, twice = (run(ALGORITHMS[algorithm], K, 20, 3, 2) for K in (10, 20))
    assert twice.up == 2 * once.up > 0
    assert twice.down == 2 * once.down > 0
    assert once.round > 0


def course_of(errors: list[float]) -> Course:
    zeros = np.zeros(len(errors))
    return Course(np.array(errors), np.array(errors), zeros, zeros, "completed")


def test_an_error_is_reached_where_it_stays():
    assert course_of([3.0, 1.0, 2.0, 1.0, 0.9]).reached(1.0) == 4
    assert course_of([1.0, 0.5]).reached(1.0) == 1
    assert course_of([0.5, 2.0]).reached(1.0) is None


def test_never_is_above_every_round():
    assert middle([3, None, 5]) == 5
    assert middle([3, None, None]) is None


def test_a_course_adds_up_its_bytes():
    told = course(METHODS["hm1"], simulate("demo", 0), 0)
    assert (np.diff(told.up) == told.up[0]).all()
    assert told.errors[-1] < told.errors[0]


def test_a_million_devices_are_taken_on_from_the_largest_fleet():
    row = ("hm1", "K", "1,000 to 100,000", 2.0, 1.0, 50.0, 0.8, 300.0, 1.0, 8_000.0, 1.0, 9_600.0, 1.0)
    part = Part(name="growth", title="", about="", columns=(), rows=(row, ("hm1", "d", "2 to 8", *row[3:])))
    each, million = tables(part).split("At a million devices:")
    assert "| hm1 | 100,000 | 20 µs | 0.492 µs | 3.07 KiB | 80 bytes | 96 bytes |" in each
    assert "| hm1 | 100,000 | 20 s | 0.493 s | 2.93 GiB | 80 MB | 96 MB |" in million
    assert tables(part).count("| hm1 |") == 2


@pytest.mark.parametrize("power", [0.5, 1.0, 1.3])
def test_costs_are_taken_on_from_the_largest_fleet(power):
    cost = Cost(8.0, power, 10, 1_000)
    assert cost.at(1_000) == pytest.approx(8.0)
    assert cost.at(2_000) >= 8.0 + 1_000 * cost.each * (1 - 1e-12)


def test_fixed_costs_are_not_multiplied():
    fixed, each = 100.0, 0.01
    power = np.log((fixed + 1_000 * each) / (fixed + 10 * each)) / np.log(100.0)
    cost = Cost(fixed + 1_000 * each, float(power), 10, 1_000)
    assert cost.each == pytest.approx(each)
    assert cost.at(1_000_000) == pytest.approx(fixed + 1_000_000 * each)


def test_stages_add_up_to_the_round():
    clock = Clock()
    for begun in (0.0, 1.0, 3.0):
        clock.start()
        clock.begun[-1] = begun
        for stage, seconds in {"devices asked": 0.5, "server asked": 0.1, "maths": 0.2, "aggregation": 0.05, "checkpoint": 0.1}.items():
            clock.add(stage, seconds)
    clock.end()
    clock.begun[-1] = 5.0
    total, stages = split(clock)
    assert total == 2.0
    assert set(stages) == set(STAGES)
    assert stages["orchestration"] == pytest.approx(0.35 / 2.0)
    assert sum(stages.values()) == pytest.approx(1.0)


def test_what_follows_the_last_round_is_no_rounds():
    clock = Clock()
    clock.add("maths", 1.0)
    clock.start()
    clock.end()
    clock.add("maths", 1.0)
    assert not clock.rounds[0]


def test_what_was_wrapped_is_as_it_was():
    class Product:
        def step(self) -> int:
            return 1

    plain = Product.step
    with wrapped(Product, "step", lambda step: lambda self: step(self) + 1):
        assert Product().step() == 2
    assert Product.step is plain
