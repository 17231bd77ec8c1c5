"""What is known of one device's coefficients once phi is integrated out.

Given phi's value at a quadrature node they are normal, or normal tilted by a prior with a kink at zero; over the nodes they are a mixture
of these. Single coefficients are described by their marginals, and linear combinations by the mixture of joint normals.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Coefficients(NamedTuple):
    """The posterior of a device's coefficients.

    Attributes
    ----------
    marginals
        Of single coefficients.
    joint
        For linear combinations and predictions. Where the prior has a kink its marginals are normal approximations of `marginals`.
    """

    marginals: Marginals
    joint: Joint
