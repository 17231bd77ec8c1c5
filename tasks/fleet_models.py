"""A run's fleet model as one file: made from what the run has left, and read back without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcore.algorithm import FleetSpec, algorithm_class
from fedcore.data import Contract, Fitted
from fedcore.data.places import is_file, read_file
from fedcore.data.scoring import FleetModel, fleet_model
from fedcore.errors import Misuse
from fedcore.hm2.coefficients import Coefficients
from fedcore.posterior import AnyPosterior, Posterior
from fedcore.rows import Floats
from fedcore.trees import Arrays, from_npz, npz, unpack
from tasks.checkpoint import RunFolder
from tasks.newcomers import fleet_prior
from tasks.results import FLEET

FIELDS = ("mean", "covariance", "noise")


def build_model(folder: RunFolder) -> FleetModel:
    """The model of a training run.

    Mixtures are taken for normal distributions with their moments, as `posterior.npz` holds them.

    Raises
    ------
    Misuse
        Where the run is no training, has left no results, or scales by each device's own range (see `fleet_model`).
    """
    config, manifest = folder.trained()["resolved"], folder.manifest()
    if not is_file(folder.results / "theta.npz"):
        raise Misuse(f"run {folder.run_id} has left no results yet: fedlin status {folder.run_id} says how far it is")
    stored, server = (from_npz(read_file(folder.results / name)) for name in ("theta.npz", "server.npz"))
    devices: list[str] = stored["devices"].tolist()
    posteriors: dict[str, Posterior] = {}
    if is_file(folder.results / "posterior.npz"):
        known = from_npz(read_file(folder.results / "posterior.npz"))
        arrays = zip(*(known[name] for name in FIELDS), strict=True)
        posteriors = {device: _posterior(*each) for device, each in zip(known["devices"].tolist(), arrays, strict=True)}
    algorithm, spec = (
        algorithm_class(config["algorithm"])(**config["options"]),
        FleetSpec(tuple(server[FLEET].tolist()), len(stored["Theta"])),
    )
    algorithm.init_server(spec)  # its state's classes are known from then on
    found = fleet_prior(algorithm, spec, unpack(server))
    fitted = Fitted.model_validate(manifest["preprocessing"]) if manifest["preprocessing"] else None
    estimates = dict(zip(devices, stored["Theta"].T, strict=True))
    prior = None if found is None else found.theta if found.posterior is None else _normal(found.posterior)
    return fleet_model(Contract.model_validate(manifest["contract"]), fitted, estimates, posteriors, prior)


def dump_model(model: FleetModel) -> bytes:
    """A model as the bytes of an npz file."""
    about = {"contract": model.contract.model_dump(mode="json"), "fitted": model.fitted.model_dump(mode="json") if model.fitted else None}
    arrays: Arrays = {"about": np.array(json.dumps(about)), "devices": np.array(list(model.estimates))}
    arrays["Theta"] = np.array(list(model.estimates.values())).T
    if model.posteriors:
        arrays["posterior.devices"] = np.array(list(model.posteriors))
        arrays |= {f"posterior.{name}": np.array([getattr(each, name) for each in model.posteriors.values()]) for name in FIELDS}
    if isinstance(model.prior, Posterior):
        arrays |= {f"prior.{name}": np.asarray(getattr(model.prior, name)) for name in FIELDS}
    elif model.prior is not None:
        arrays["prior.theta"] = model.prior
    return npz(arrays)


def load_model(raw: bytes) -> FleetModel:
    """The model that `dump_model` stored.

    Raises
    ------
    Misuse
        Where the bytes hold none.
    """
    try:
        arrays = from_npz(raw)
        about = json.loads(str(arrays["about"]))
        contract = Contract.model_validate(about["contract"])
        fitted = Fitted.model_validate(about["fitted"]) if about["fitted"] else None
        estimates: Mapping[str, Floats] = dict(zip(arrays["devices"].tolist(), arrays["Theta"].T, strict=True))
        rows = zip(*(arrays[f"posterior.{name}"] for name in FIELDS), strict=True) if "posterior.devices" in arrays else ()
        names = arrays["posterior.devices"].tolist() if "posterior.devices" in arrays else []
        posteriors = {device: _posterior(*each) for device, each in zip(names, rows, strict=True)}
        prior: Any = arrays.get("prior.theta")
        if "prior.mean" in arrays:
            prior = _posterior(*(arrays[f"prior.{name}"] for name in FIELDS))
    except (OSError, KeyError, ValueError, TypeError):
        raise Misuse("the file does not hold a fleet model of this version of fedlin: make it anew from its run") from None
    return FleetModel(contract, fitted, estimates, posteriors, prior)


def _posterior(mean: Floats, covariance: Floats, noise: Any) -> Posterior:
    return Posterior(mean, covariance, float(noise), 0.0)  # intervals are asked of it as it stands


def _normal(posterior: AnyPosterior) -> Posterior:
    if not isinstance(posterior, Coefficients):
        return posterior
    joint = posterior.joint
    return _posterior(posterior.mean, joint.total_covariance, joint.weight @ joint.noise)
