"""What a fleet has learned of its columns before training: the constants that every device prepares its rows with."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedcore.rows import Floats

INTERCEPT = "intercept"


class Category(BaseModel):
    """The dummy columns of one category.

    Attributes
    ----------
    reference
        The level that has none.
    levels
        The fleet's other levels, sorted as text, one column each.
    dummies
        Names of the columns: one a level, and one more where unknown levels have their own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reference: str
    levels: tuple[str, ...]
    dummies: tuple[str, ...]


class Fitted(BaseModel):
    """The preprocessing of a fleet; it belongs to a model as much as its coefficients.

    `model_dump(mode="json")` and `model_validate` store it and bring it back, to the bit.

    Attributes
    ----------
    n
        Rows of all devices' training segments.
    means
        By numeric feature, in its unit: what fills a gap, and what "global" scaling subtracts.
    scales
        By feature of "global" scaling, in its unit: the standard deviation that it divides by.
    categories
        By string feature.
    marked
        Features with a column that marks their gaps.
    design
        Names of the d design columns.
    intercept
        Whether the first of them is the intercept.
    interactions
        By name of a column that is a product: its features, each with the column that is linear in it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    n: int
    means: dict[str, float]
    scales: dict[str, float]
    categories: dict[str, Category]
    marked: tuple[str, ...]
    design: tuple[str, ...]
    intercept: bool
    interactions: dict[str, tuple[str, str]]

    @property
    def original_design(self) -> tuple[str, ...]:
        """Names of the columns of the raw design: the same columns with "global" scaling undone.

        It starts with an intercept, also where the design has none, since what was subtracted has to go somewhere.
        """
        return self.design if self.intercept or not self.scales else (INTERCEPT, *self.design)

    def original(self, theta: Floats) -> Floats:
        """Coefficients for features in their own units, which predict what `theta` does for the scaled ones.

        Parameters
        ----------
        theta
            Coefficients of the design, shape (d,) or (d, K).

        Returns
        -------
        Floats
            Coefficients of `original_design`, per unit of each feature; the target stays as it was trained on.
        """
        return self._unscaling().T @ theta

    def _unscaling(self) -> Floats:
        """U of shape (d, d'), with design = raw design @ U.T."""
        place = {name: i for i, name in enumerate(self.original_design)}
        U = np.zeros((len(self.design), len(place)))
        for row, name in zip(U, self.design, strict=True):
            first, second = self.interactions.get(name, (name, None))
            center, scale = self._affine(first)
            if second is None:
                row[place[name]] = 1 / scale
                if center:
                    row[0] -= center / scale
                continue
            # (a - m) (b - l) = ab - l a - m b + ml
            other_center, other_scale = self._affine(second)
            both = scale * other_scale
            row[place[name]] = 1 / both
            for constant, column in ((other_center, place[first]), (center, place[second]), (-center * other_center, 0)):
                if constant:
                    row[column] -= constant / both
        return U

    def _affine(self, name: str) -> tuple[float, float]:
        """What was subtracted from a column of the design, and what it was divided by."""
        return (self.means[name], self.scales[name]) if name in self.scales else (0.0, 1.0)
