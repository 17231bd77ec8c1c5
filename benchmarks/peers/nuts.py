"""The posterior of a Gaussian hierarchy by NumPyro's NUTS: `nuts.py FLEET.npz SIGMA WARMUP DRAWS CHAINS SEED`.

FLEET.npz has X (K, n, d) and y (K, n). theta_k ~ N(mu, diag tau) with mu_i and log tau_i standard normal; the noise sd SIGMA of rows is
known. Rows pin coefficients down much better than their prior does, so the centred form is the one that mixes. Chains go one after the
other; the first one compiles, so that the time of all but that is their number times the median of the others. The sampler makes new
functions for each chain: without a cache JAX would compile the same again, for as long as the chain itself takes.
"""

import json
import statistics
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

jax.config.update("jax_enable_x64", True)
compiled = tempfile.TemporaryDirectory()
jax.config.update("jax_compilation_cache_dir", compiled.name)
with np.load(sys.argv[1]) as stored:
    X, y = jnp.asarray(stored["X"]), jnp.asarray(stored["y"])
sigma, warmup, draws, chains, seed = float(sys.argv[2]), *map(int, sys.argv[3:])
K, _, d = X.shape


def model(X: jax.Array, y: jax.Array) -> None:
    """The hierarchy."""
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([d]).to_event(1))
    log_tau = numpyro.sample("log_tau", dist.Normal(0, 1).expand([d]).to_event(1))
    with numpyro.plate("devices", K):
        theta = numpyro.sample("theta", dist.Normal(mu, jnp.exp(log_tau / 2)).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.einsum("knd,kd->kn", X, theta), sigma).to_event(1), obs=y)


sampler = MCMC(NUTS(model), num_warmup=warmup, num_samples=draws, num_chains=1, progress_bar=False)
times, drawn = [], []
for key in jax.random.split(jax.random.PRNGKey(seed), chains):
    begun = time.perf_counter()
    sampler.run(key, X, y)
    samples = jax.block_until_ready(sampler.get_samples())
    times.append(time.perf_counter() - begun)
    drawn.append(np.concatenate([samples["mu"], samples["log_tau"]], axis=1))
joined, chain = np.stack(drawn), statistics.median(times[1:])
told = {
    "seconds": chains * chain,
    "compile": times[0] - chain,
    "mean": joined.mean(axis=(0, 1)).tolist(),
    "sd": joined.reshape(-1, 2 * d).std(axis=0).tolist(),
    "ess": float(effective_sample_size(joined).min()),
    "rhat": float(split_gelman_rubin(joined).max()),
}
print(json.dumps(told))
