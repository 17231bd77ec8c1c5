"""The maths kernels are not slower than they were by more than a quarter, and the test would notice.

Nothing is held against a clock: times are multiples of those of floors in the same run, in the thread's own time, and calls are
counted. What is usual is what `python -m benchmarks.kernels` prints; it is to be lowered here where a kernel gets faster, and raised
only where a slower one is worth it.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from benchmarks.kernels import Kernel, Program, calls, compression, eb_expectation, fedavg_round, hm1_round, hm2_sites, ratios, settled
from fedcore import Hm1
from fedcore.compression import compress

MOST = 1.25
ATTEMPTS, SECONDS = 3, 0.3
"""A kernel that has become slower is so each time; what else the machine does may look like it once."""

USUAL = {
    fedavg_round: (1.19, 33),
    hm1_round: (1.10, 84),
    eb_expectation: (1.59, 71),
    hm2_sites: (2.85, 350),
    compression: (0.15, 134),
}
"""Time as a multiple of the floor's, and calls."""


def slower(kernel: Kernel, usual: float) -> bool:
    """Whether it takes more than a quarter longer than usual, as often as it is tried."""
    return all(ratios(kernel.floor, [kernel.work], SECONDS)[0] > MOST * usual for _ in range(ATTEMPTS))


def with_four_thirds_of_the_work(work: Program) -> Program:
    times = cycle((1, 1, 2))

    def slowed() -> None:
        for _ in range(next(times)):
            work()

    return slowed


@pytest.fixture(scope="module", params=USUAL, ids=lambda maker: maker.__name__)
def maker(request):
    return request.param


@pytest.fixture(scope="module")
def kernel(maker):
    return maker(1)


def test_array_work_has_not_grown_by_a_quarter(maker, kernel):
    assert not slower(kernel, USUAL[maker][0])


def test_a_third_more_array_work_is_noticed(kernel):
    def noticed() -> bool:
        usual, slowed = ratios(kernel.floor, [kernel.work, with_four_thirds_of_the_work(kernel.work)], 3 * SECONDS)
        return slowed > MOST * usual

    assert any(noticed() for _ in range(ATTEMPTS))


def test_calls_have_not_grown_by_a_quarter(maker, kernel):
    assert calls(kernel.work) <= MOST * USUAL[maker][1]


@pytest.mark.parametrize("maker", [maker for maker in USUAL if maker is not compression])
def test_steps_of_a_cohort_do_not_loop_over_devices(maker):
    assert calls(maker(2).work) == calls(maker(1).work)


def test_compression_makes_as_many_calls_for_each_device():
    once, twice, thrice = (calls(compression(scale).work) for scale in (1, 2, 3))
    assert thrice - twice == twice - once > 0


def test_a_loop_over_devices_is_noticed():
    at = settled(Hm1(tolerance=0.0), 50, 20, 8, 2)
    downs = at.algorithm.broadcasts(at.state.server, range(50))

    def one_by_one() -> object:
        return [at.algorithm.local_steps([downs[k]], [at.devices[k]], [at.datas[k]], [np.random.default_rng(0)]) for k in range(50)]

    assert calls(one_by_one) > MOST * calls(at.local)


def test_a_repeated_call_is_noticed():
    at = settled(Hm1(tolerance=0.0), 50, 20, 8, 2)
    once = calls(lambda: compress(at.datas))
    assert calls(lambda: (compress(at.datas), compress(at.datas[:15]))) > MOST * once
