"""Numbers from one unit to another.

Units are text until two differ; only then have they to be known. Pint knows them, and takes half a second to load.
"""

# pyright: standard
# (pint's types are those of any registry, and not of one)

from __future__ import annotations

import re
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedcore.data.checks import exact_floats
from fedcore.data.contract import Column
from fedcore.errors import DataError
from fedcore.rows import Floats

if TYPE_CHECKING:
    import pint

_NAME = r"[^\W\d]\w*|[°%‰]\w*"
_POWER = r"(\s*(\*\*|\^)\s*-?\d{1,2})?"
# Products, quotients and small powers of names, and nothing that pint would work out: 9**9**9 has no end.
_FORM = re.compile(rf"(?!.*[\d⁰¹²³⁴-⁹]{{3}})(1\s*/\s*)?({_NAME}){_POWER}(\s*[*/·⋅]\s*({_NAME}){_POWER})*")

# Registries learn names while they are asked, and devices are read on several threads.
_asking = Lock()


def in_unit(column: pl.Series, unit: str, declared: Column, where: str) -> pl.Series:
    """The column in the unit that its contract declares; as it is where the two are the same.

    Parameters
    ----------
    column
        Numbers, gaps allowed. Whole ones are taken where the contract says float64; another type is left to `checked_frame`.
    unit
        The unit that it is in.
    where
        How errors call its file.

    Raises
    ------
    DataError
        Where units differ and one of the two is none, unknown, or of another kind, the contract's type is not float64, or values
        overflow.
    """
    if unit == declared.unit:
        return column
    differ = f"{where}: column {column.name!r} is in {unit!r} and the contract says {declared.unit!r}"
    if not unit:
        raise DataError(
            f"{where}: column {column.name!r} states no unit and the contract says {declared.unit!r}: see unstated_unit in [columns]"
        )
    if not declared.unit:
        raise DataError(f"{where}: column {column.name!r} is in {unit!r} and the contract states no unit: state one in [columns]")
    if declared.type != "float64":
        raise DataError(f"{differ}: only float64 is converted: declare it as that, or bring the file in that unit")
    if column.dtype not in (pl.Float64, pl.Int64):
        return column
    floats = exact_floats(column) if column.dtype == pl.Int64 else column
    if inexact := floats.null_count() - column.null_count():
        raise DataError(f"{differ}: {inexact} whole numbers that float64 does not hold exactly: bring the file in that unit")
    values = floats.to_numpy()
    with _asking, np.errstate(all="ignore"):
        source, target = _known(unit), _known(declared.unit)
        if source is None or target is None:
            strange = unit if source is None else declared.unit
            raise DataError(f"{differ}: {strange!r} is no unit known to convert: write it as pint does, such as degC, kPa or m^3/h")
        converted = _converted(values, source, target)
    if converted is None:
        raise DataError(f"{differ}: the one does not convert to the other: correct the unit")
    if lost := np.count_nonzero(np.isfinite(values) & ~np.isfinite(converted)):
        raise DataError(f"{differ}: {lost} values have no finite counterpart there: correct them, or the unit")
    return pl.Series(column.name, converted).set(column.is_null(), None)


@cache
def _registry() -> pint.UnitRegistry:
    import pint

    return pint.UnitRegistry()


@cache
def _known(name: str) -> pint.Unit | None:
    try:
        return _registry().parse_units(name) if _FORM.fullmatch(name) else None
    except Exception:  # pint's parser raises what it stumbles over
        return None


def _converted(values: Floats, source: pint.Unit, target: pint.Unit) -> Floats | None:
    try:
        # Pint calls angles, counts and bits dimensionless; as root units they stay apart.
        if _registry().get_root_units(source)[1] != _registry().get_root_units(target)[1]:
            return None
        return _registry().convert(values, source, target)
    except Exception:  # as above
        return None
