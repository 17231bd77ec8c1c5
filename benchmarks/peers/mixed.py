"""Maximum likelihood of a random intercept and slope by statsmodels: `mixed.py ROWS.csv FITS`. A fit before the timed ones warms up."""

import json
import statistics
import sys
import time

import numpy as np
import pandas as pd
from statsmodels.regression.mixed_linear_model import MixedLM

rows = pd.read_csv(sys.argv[1], dtype={"device": str})
X = np.column_stack([np.ones(len(rows)), rows["days"]])


def one() -> float:
    """Fit; the log likelihood."""
    return MixedLM(rows["y"].to_numpy(), X, rows["device"].to_numpy(), exog_re=X).fit(reml=False).llf


found, times = one(), []
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter()
    found = one()
    times.append(time.perf_counter() - begun)
print(json.dumps({"seconds": statistics.median(times), "log_likelihood": float(found)}))
