"""`Hm2`: expectation propagation with a model chosen by name.

Source: Yue, Al Kontar and Estrada Gomez, "Federated Data Analytics: A Study on Linear Models", section 4; see `fedcore.hm2.algorithm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal

from fedcore.errors import Misuse
from fedcore.hm2.algorithm import ExpectationPropagation
from fedcore.hm2.hierarchy import Hierarchy
from fedcore.options import choice, number

PRIORS = {
    "gaussian": "fedcore.hm2.gaussian:Gaussian",
    "isotropic": "fedcore.hm2.isotropic:Isotropic",
    "lasso": "fedcore.hm2.sited:Lasso",
    "ridge": "fedcore.hm2.penalised:Ridge",
    "elastic_net": "fedcore.hm2.sited:ElasticNet",
    "horseshoe": "fedcore.hm2.horseshoe:Horseshoe",
}
"""Model by the name of the prior that coefficients have: the module and the class."""

NORMAL = ("gaussian", "isotropic")
"""Those whose noise may be known, or a device's own; the others have a shared one in phi."""


@dataclass(frozen=True)
class Hm2(ExpectationPropagation):
    """A posterior of the fleet's hyper-parameters, and from it one of each device's coefficients.

    Attributes
    ----------
    prior
        Of a device's coefficients: "gaussian", around mean coefficients, with a variance between devices for each; "isotropic", with one
        variance for all; "lasso", "ridge", "elastic_net" and "horseshoe", around zero, with a strength that the fleet learns. The horseshoe
        needs devices with more rows than columns.
    sigma
        Standard deviation of the noise, in target units, where it is known.
    noise
        Where it is not: "shared" by all devices and one of the hyper-parameters, or each "device"'s own, of which nothing is sent.
    lambda_prior
        Of the strength lambda of the priors around zero: "log_normal", or "half_cauchy", with the scale 1.
    """

    SEARCH: ClassVar[Mapping[str, Sequence[Any]]] = {"prior": ("gaussian", "isotropic", "lasso", "ridge", "elastic_net")}

    prior: Literal["gaussian", "isotropic", "lasso", "ridge", "elastic_net", "horseshoe"] = "gaussian"
    sigma: float | Literal["unknown"] = "unknown"
    noise: Literal["shared", "device"] = "shared"
    lambda_prior: Literal["log_normal", "half_cauchy"] = "log_normal"

    def __post_init__(self) -> None:
        """Raises Misuse on an option out of bounds."""
        super().__post_init__()
        choice("prior", self.prior, tuple(PRIORS))
        number("sigma", self.sigma, 1e-100, 1e100, words=("unknown",))
        choice("noise", self.noise, ("shared", "device"))
        choice("lambda_prior", self.lambda_prior, ("log_normal", "half_cauchy"))
        if self.prior not in NORMAL and (self.sigma != "unknown" or self.noise != "shared"):
            raise Misuse(f"prior={self.prior} has a shared, unknown noise variance in phi: leave sigma and noise out")
        if self.sigma != "unknown" and self.noise != "shared":
            raise Misuse("noise=device is for a noise that is not known: leave sigma out, or noise")
        if self.prior in NORMAL and self.lambda_prior != "log_normal":
            raise Misuse(f"prior={self.prior} has no lambda: leave lambda_prior out, or choose a prior around zero, such as lasso")
        _ = self.hierarchy  # states are read back only once the classes of their parts are known

    def __reduce__(self) -> tuple[type[Hm2], tuple[Any, ...]]:
        """Copies in other processes are made by the constructor as well, for the same reason."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self))

    @property
    def hierarchy(self) -> Hierarchy[Any, Any, Any]:
        return _hierarchy(self.prior, self.sigma, self.noise, self.lambda_prior)


@cache
def _hierarchy(prior: str, sigma: float | str, noise: str, lambda_prior: str) -> Hierarchy[Any, Any, Any]:
    module, _, name = PRIORS[prior].partition(":")
    kind = getattr(import_module(module), name)
    return kind(sigma=sigma, noise=noise) if prior in NORMAL else kind(lambda_prior=lambda_prior)
