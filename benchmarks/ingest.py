"""Peak memory and time of `fedlin data import`, as the source file grows: memory is to stay flat.

Each import is a process of its own, which reports the most memory that it ever held. Run with `python -m benchmarks.ingest`; `--large`
goes up to 1 GB and takes a few minutes and 2.5 GB of disk.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

DEVICES = 100
MB = 10**6
SIZES = (5, 50, 200)
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="go up to 1 GB")
    print(f"{DEVICES} devices\n{'MB':>6}{'rows':>12}{'peak MB':>10}{'s':>8}{'MB/s':>8}")
    for megabytes in LARGE if parser.parse_args().large else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.csv"
            rows = write_csv(file, megabytes * MB)
            words = [sys.executable, "-c", IMPORT, str(Path(folder) / "datasets"), str(file), str(DEVICES)]
            peak, took = map(float, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
            print(f"{megabytes:6}{rows:12}{peak:10.0f}{took:8.1f}{megabytes / took:8.1f}", flush=True)


if __name__ == "__main__":
    main()
