"""`check_algorithm`: what every algorithm must keep, checked on small fleets.

A new algorithm's test is one call of it; the algorithm's own theory comes in tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np

from fedcore.algorithm import AnyAlgorithm, FleetSpec, Outcome
from fedcore.fit import InProcess, fit
from fedcore.messages import nbytes
from fedcore.rounds import DeviceRngs, RunState, Schedule, device_rng, rounds
from fedcore.rows import DeviceData, Floats
from fedcore.trees import pack, unpack

ROUNDS = 4


def check_algorithm(make: Callable[[], AnyAlgorithm]) -> None:
    """Check an algorithm against the protocol.

    Parameters
    ----------
    make
        Makes the algorithm, with the hyper-parameters to be checked.

    Raises
    ------
    AssertionError
        On the first promise that is broken; the message says which.
    """
    for fleet in (small_fleet(), small_fleet(rows=(3, 4, 3), d=5), small_fleet(rows=(9,))):
        _check_steps(make(), fleet)
        _check_states_are_stored(make(), fleet)
        _check_runs(make(), fleet)
    _check_resumed(make(), small_fleet())
    _check_order_of_devices(make(), small_fleet())
    _check_messages_do_not_grow(make())


def small_fleet(rows: tuple[int, ...] = (12, 7, 30), d: int = 3, seed: int = 0) -> dict[str, DeviceData]:
    """A fleet of devices "a", "b", ... with these numbers of training rows, standard normal X of d columns, noise sd 0.3."""
    rng = np.random.default_rng(seed)
    fleet: dict[str, DeviceData] = {}
    for k, n in enumerate(rows):
        X, X_test, theta = rng.standard_normal((n, d)), rng.standard_normal((5, d)), rng.standard_normal(d)
        y = X @ theta + 0.3 * rng.standard_normal(n)
        fleet[chr(ord("a") + k)] = DeviceData.of(X, y, X_test=X_test, y_test=X_test @ theta)
    return fleet


def equal(one: Any, other: Any) -> bool:
    """Whether two states or messages are equal to the last bit."""
    mine, theirs = pack(one), pack(other)
    return mine.keys() == theirs.keys() and all(
        np.array_equal(mine[name], theirs[name], equal_nan=mine[name].dtype.kind == "f") for name in mine
    )


def _setting(algorithm: AnyAlgorithm, fleet: dict[str, DeviceData]) -> tuple[FleetSpec, list[DeviceData], InProcess]:
    ids = tuple(sorted(fleet))
    datas = [fleet[device_id] for device_id in ids]
    spec = FleetSpec(ids, datas[0].train.d)
    return spec, datas, InProcess(algorithm, spec, datas, seed=0)


def _check_steps(algorithm: AnyAlgorithm, fleet: dict[str, DeviceData]) -> None:
    """A step repeats to the bit, changes nothing in place, and is the same alone and in a cohort."""
    spec, datas, _ = _setting(algorithm, fleet)
    server, cohort = algorithm.init_server(spec), range(len(datas))
    devices, downs = algorithm.init_devices(spec, datas), algorithm.broadcasts(server, cohort)
    before = [pack(device) for device in devices]
    states, ups, infos = algorithm.local_steps(downs, devices, datas, DeviceRngs(0, 1, spec.device_ids))
    steady = states is devices or all(map(is_, states, devices))
    assert steady or not algorithm.STEADY, "a step leads to another state, though rounds are said to leave states as they are"
    after = [pack(device) for device in devices]
    assert all(np.array_equal(one[name], other[name]) for one, other in zip(before, after, strict=True) for name in one), (
        "a step changed its input"
    )
    for k, data in enumerate(datas):
        assert equal(devices[k], algorithm.init_device(spec, data)), "init_devices differs from init_device"
        assert equal(downs[k], algorithm.broadcast(server, k)), "broadcasts differs from broadcast"
        state, up, info = algorithm.local_step(downs[k], devices[k], data, device_rng(0, 1, spec.device_ids[k]))
        assert equal(state, states[k]), "local_steps leaves a device in another state than local_step"
        assert equal(up, ups[k]), "local_steps sends another update than local_step"
        assert np.array_equal(info.loss, infos[k].loss), "local_steps reports another loss than local_step"
        assert equal(algorithm.accept(devices[k], states[k], 1.0), states[k]), "a receipt in full does not give the pending state"
    for fraction in (1.0, 0.5):
        for k, state in enumerate(algorithm.accepts(devices, states, fraction)):
            assert equal(state, algorithm.accept(devices[k], states[k], fraction)), "accepts differs from accept"
    results = algorithm.finalize_devices(downs, devices, datas)
    for k, data in enumerate(datas):
        assert equal(results[k], algorithm.finalize(downs[k], devices[k], data)), "finalize_devices differs from finalize"
    first, second = (algorithm.aggregate(server, cohort, ups) for _ in range(2))
    assert equal(first.server, second.server), "aggregate does not repeat"
    assert equal(server, algorithm.init_server(spec)), "aggregate changed the server state that it was given"
    assert 0 < first.fraction <= 1, "the fraction of an update that is applied is in (0, 1]"
    single = algorithm.aggregate(server, cohort, list(ups))
    assert equal(first.server, single.server), "aggregate depends on how the updates are held"


def _check_states_are_stored(algorithm: AnyAlgorithm, fleet: dict[str, DeviceData]) -> None:
    """Server and device states go to arrays and come back."""
    spec, datas, _ = _setting(algorithm, fleet)
    for state in (algorithm.init_server(spec), algorithm.init_device(spec, datas[0])):
        assert equal(unpack(pack(state)), state), "a state does not survive being stored"


def _check_runs(algorithm: AnyAlgorithm, fleet: dict[str, DeviceData]) -> None:
    """A run ends in an outcome with a sentence and in finite coefficients, with everybody and with one device a round."""
    for participation in (1.0, 1.0 / len(fleet)):
        result = fit(algorithm, fleet, rounds=ROUNDS, participation=participation)
        assert isinstance(result.outcome, Outcome)
        assert len(result.outcome.message) > 10, "an outcome's message is a full sentence"
        assert set(result.theta) == set(fleet), "some device has no result"
        assert all(np.isfinite(theta).all() for theta in result.theta.values()), "a result is not finite"


def _check_resumed(algorithm: AnyAlgorithm, fleet: dict[str, DeviceData]) -> None:
    """A server that is stored and restored after every round gives the same run."""
    spec, _, straight = _setting(algorithm, fleet)
    schedule = Schedule(rounds=ROUNDS, participation=0.67)
    state = RunState.initial(algorithm, spec)
    for report in rounds(algorithm, spec, straight, schedule, state):
        state = report.state
        assert not report.quarantined, f"an update is not of the algorithm's own form: {report.quarantined}"
    resumed, backend = RunState.initial(algorithm, spec), _setting(algorithm, fleet)[2]
    while report := next(rounds(algorithm, spec, backend, schedule, unpack(pack(resumed))), None):
        resumed = report.state
    assert equal(state, resumed), "a resumed run differs from the straight one"
    assert _same(straight.finalize(state), backend.finalize(resumed)), "a resumed run differs from the straight one"


def _check_order_of_devices(algorithm: AnyAlgorithm, fleet: dict[str, DeviceData]) -> None:
    """The order in which devices are given makes no difference to the bit."""
    other = dict(reversed(fleet.items()))
    assert _same(fit(algorithm, fleet, rounds=ROUNDS).theta, fit(algorithm, other, rounds=ROUNDS).theta), "the order of devices matters"


def _check_messages_do_not_grow(algorithm: AnyAlgorithm) -> None:
    """What is sent does not depend on the number of rows."""
    sizes: set[tuple[int, int, int]] = set()
    for n in (10, 200):
        spec, datas, _ = _setting(algorithm, small_fleet(rows=(n, n)))
        downs = algorithm.broadcasts(algorithm.init_server(spec), range(2))
        devices = algorithm.init_devices(spec, datas)
        _, ups, infos = algorithm.local_steps(downs, devices, datas, DeviceRngs(0, 1, spec.device_ids))
        sizes.add((nbytes(downs), nbytes(ups), nbytes(infos)))
    assert len(sizes) == 1, "messages grow with the number of rows"


def _same(one: dict[str, Floats], other: dict[str, Floats]) -> bool:
    return all(np.array_equal(one[device_id], other[device_id]) for device_id in one)
