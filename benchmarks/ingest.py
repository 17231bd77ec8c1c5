"""Peak memory and time of `fedlin data import`, as the source file grows: memory is to stay flat.

Each import is a process of its own, which reports the most memory that it ever held. A part of `make bench`; `python -m benchmarks.ingest`
goes up to 1 GB, and takes a few minutes and 2.5 GB of disk.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.page import figure
from benchmarks.results import Bar, Part

DEVICES = 100
MB = 10**6
SIZES, SMALL = (25, 100), (25, 50)
LARGE = (50, 200, 1000)

# In a process of its own, since the most that a process ever held does not go down again.
IMPORT = """
import resource, sys, time
from pathlib import Path
from fedcore.data import import_file

begun = time.perf_counter()
dataset = import_file(Path(sys.argv[1]), Path(sys.argv[2]), "bench", device="device", target="y")
took = time.perf_counter() - begun
assert len(dataset.device_ids) == int(sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, took)
"""


def write_csv(file: Path, size: int) -> int:
    """Write rows of 100 devices in turn until the file has `size` bytes; the number of rows."""
    block = "".join(f"{i % DEVICES:03},{i},{i * 0.37:.6f},{i * 1.7 % 11:.6f},{i * 2.3 % 13:.6f},{i * 0.1:.6f}\n" for i in range(20000))
    header = "device,hour,speed,load,heat,y\n"
    blocks = max(1, (size - len(header)) // len(block))
    with file.open("w") as stream:
        stream.write(header)
        for _ in range(blocks):
            stream.write(block)
    return blocks * 20000


def measure(quick: bool) -> Part:
    """Peak memory and seconds by size."""
    return measured(SMALL, 1) if quick else measured(SIZES, 5)


def measured(sizes: Sequence[int], repeats: int) -> Part:
    """The same of any sizes, in MB."""
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory() as folder:
        files = {size: Path(folder) / f"{size}.csv" for size in sizes}
        rows = {size: write_csv(file, size * MB) for size, file in files.items()}
        for _ in range(repeats):
            for size, file in files.items():
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    words = [sys.executable, "-c", IMPORT, own, str(file), str(DEVICES)]
                    peak, took = map(float, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
                found[size].append((peak, took))
    peaks, seconds = ({size: median(each[i] for each in runs) for size, runs in found.items()} for i in (0, 1))
    smallest, largest = sizes[0], sizes[-1]
    return Part(
        name="ingest",
        title="Importing a file",
        about=(
            f"`fedlin data import` of a CSV with rows of {DEVICES} devices in turn, each time a process of its own. Medians of {repeats} "
            "runs in turns; peak is the most memory that the process ever held, its libraries included."
        ),
        columns=("MB", "peak / that of the smallest", "peak MB", "rows", "s", "MB/s"),
        rows=tuple((size, peaks[size] / peaks[smallest], peaks[size], rows[size], seconds[size], size / seconds[size]) for size in sizes),
        bars=(Bar(what=f"peak of {largest} MB / peak of {smallest} MB", value=peaks[largest] / peaks[smallest], limit=1.1),),
    )


def main() -> None:
    """Print the table of large files."""
    part = measured(LARGE, 1)
    for row in (part.columns, *part.rows):
        print("  ".join(f"{figure(cell):>28}" for cell in row))


if __name__ == "__main__":
    main()
