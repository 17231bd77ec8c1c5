"""How a function that is put around a flow's function looks to Prefect."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def with_parameters_of(function: F, wrapper: Callable[..., Any]) -> F:
    """`wrapper`, with the parameters of the flow's function that it is put around.

    Prefect looks names in annotations up in the module that a function was written in, and that of the wrapper lacks them: they are looked
    up here. The return annotation is left out. Its class would belong to the module that named it first, and a worker that has imported
    another one first would not find it there when the flow is sent to it.
    """
    cast(Any, wrapper).__signature__ = inspect.signature(function, eval_str=True).replace(return_annotation=inspect.Signature.empty)
    return cast(F, wrapper)
