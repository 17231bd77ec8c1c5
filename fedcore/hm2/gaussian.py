"""Gaussian: coefficients theta_k ~ N(mu, diag tau), each with a variance of its own between devices."""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.compression import Compressed
from fedcore.hm2.axis import axis_integral
from fedcore.hm2.conditional import Conditional, Integral
from fedcore.hm2.normal import Normal
from fedcore.rows import Floats


@dataclass(frozen=True)
class Gaussian(Normal):
    """theta_k ~ N(mu, diag tau); phi = (mu, log tau), both of length d, and log sigma^2 where it is shared. Options as in `Normal`."""

    def axes(self, d: int) -> int:
        """One for each coefficient."""
        return d

    def integrate(self, rows: Compressed, noise: Floats, cavity: Conditional, centre: Floats, scale: Floats) -> Integral:
        """By rank-one quadrature along the axes."""
        return axis_integral(rows, noise, cavity, centre, scale)
