"""One run in memory in a process of its own, which tells what it took.

Memory is the largest that the process had beyond what it had with the fleet's rows in it, so the rows themselves do not count. Time is the
processor's, so that what else the machine does counts little.
"""

from __future__ import annotations

import tasks as tasks  # one BLAS thread, before numpy is imported  # isort: skip

import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from pydantic import BaseModel, ConfigDict

from benchmarks.kernels import fleet
from fedcore import Eb, FedAvg, Hm1, Hm2, Pooled
from fedcore.algorithm import AnyAlgorithm
from fedcore.fit import InProcess
from fedcore.rounds import RunState, Schedule, rounds

ALGORITHMS: dict[str, AnyAlgorithm] = {
    "fedavg": FedAvg(tolerance=0.0),
    "hm1": Hm1(tolerance=0.0),
    "eb": Eb(tolerance=0.0),
    "hm2": Hm2(certificate="off", start="warm", tolerance=1e-12),
    "pooled": Pooled(),
}
"""None stops before its rounds are over, but for `pooled`, which has one."""

FRESH = get_context("forkserver")
"""Of processes that have imported what they need, and nothing else: importing takes longer than most runs."""

FRESH.set_forkserver_preload([__name__])

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Took(BaseModel):
    """What a run took.

    Attributes
    ----------
    enrolment
        Seconds in which all devices compressed their rows.
    round
        Median seconds of the second half of its main rounds.
    memory
        Bytes at the most, beyond the rows.
    up, down
        Bytes that all devices sent, and were sent, in the last round.
    """

    model_config = ConfigDict(frozen=True)
    enrolment: float
    round: float
    memory: float
    up: float
    down: float


def alone(algorithm: str, K: int, n: int, d: int, count: int) -> Took:
    """What a run of so many main rounds takes, on K devices of n rows and d columns."""
    with FRESH.Pool(1) as process:
        return process.apply(run, (ALGORITHMS[algorithm], K, n, d, count))


def run(algorithm: AnyAlgorithm, K: int, n: int, d: int, count: int) -> Took:
    """The same in this process."""
    spec, datas = fleet(K, n, d)
    RESET.write_text("5")  # the most that was in use is from here on
    before, begun = _most(), time.process_time()
    backend, state = InProcess(algorithm, spec, datas, 0), RunState.initial(algorithm, spec)
    enrolled = moment = time.process_time()
    times, up, down = [], 0, 0
    for report in rounds(algorithm, spec, backend, Schedule(count), state):
        ended = time.process_time()
        if report.phase == "main":
            times.append(ended - moment)
            up, down = report.uplink_bytes, report.downlink_bytes
        moment = time.process_time()
    return Took(enrolment=enrolled - begun, round=median(times[len(times) // 2 :]), memory=_most() - before, up=up, down=down)


def _most() -> float:
    """The most memory that was in use, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return 1024.0 * int(line.split()[1])
