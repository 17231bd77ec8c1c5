"""What is known of one device's coefficients once phi is integrated out.

Given phi's value at a quadrature node they are normal, or normal tilted by a prior with a kink at zero; over the nodes they are a mixture
of these. Single coefficients are described by their marginals, and linear combinations by the mixture of joint normals.

What can be asked of them is in `fedcore.posterior`, the same as of other algorithms' posteriors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.hm2.mixture import Mixture
from fedcore.rows import Floats


class Marginals(NamedTuple):
    """The d coefficients one by one, each a mixture of C components with density proportional to N(t; mean, variance) exp(-|t| / scale).

    Attributes
    ----------
    weight
        Shape (C, d), above 0, each column summing to 1: of the normalised components.
    mean, variance
        Of the normal factor, shape (C, d).
    scale
        Shape (C, d); inf for components that are normal.
    """

    weight: Floats
    mean: Floats
    variance: Floats
    scale: Floats

    @property
    def mixture(self) -> Mixture:
        """The coefficients as d unknowns, to be evaluated."""
        return Mixture.of(*self)


class Joint(NamedTuple):
    """All coefficients at once, a mixture of J normal distributions, and the noise of a row.

    Attributes
    ----------
    weight
        Shape (J,), summing to 1.
    mean, covariance
        Shapes (J, d) and (J, d, d).
    noise
        sigma^2, shape (J,), in squared target units.
    """

    weight: Floats
    mean: Floats
    covariance: Floats
    noise: Floats

    def combinations(self, rows: Floats, noise: Floats | float) -> Mixture:
        """Linear combinations of the coefficients, one a row of shape (q, d), each with independent noise of a variance by component."""
        products = self.mean @ rows.T
        variances = np.einsum("jqd,qd->jq", rows @ self.covariance, rows) + np.reshape(noise, (-1, 1))
        return Mixture.normal(self.weight, products, np.maximum(variances, 0.0))

    @property
    def total_covariance(self) -> Floats:
        """Of the mixture as a whole, shape (d, d)."""
        spread = self.mean - self.weight @ self.mean
        return np.einsum("j,jab->ab", self.weight, self.covariance) + (self.weight[:, None] * spread).T @ spread


class Coefficients(NamedTuple):
    """The posterior of a device's coefficients, d in number: `mean` and `sd` have shape (d,).

    Attributes
    ----------
    marginals
        Of single coefficients.
    joint
        For linear combinations and predictions. Where the prior has a kink its marginals are normal approximations of `marginals`.
    """

    marginals: Marginals
    joint: Joint

    @property
    def mean(self) -> Floats:
        """Posterior means of the coefficients, shape (d,), of the marginals."""
        weight, mean, _, scale = self.marginals
        return (weight * mean).sum(axis=0) if np.isinf(scale).all() else self.marginals.mixture.mean

    @property
    def sd(self) -> Floats:
        """Their standard deviations, shape (d,)."""
        return np.sqrt(self.marginals.mixture.variance)
