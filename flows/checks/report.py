"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedcore.errors import FedlinError
from flows.checks.finding import Check, Finding
from flows.checks.packages import packages
from flows.checks.places import datasets, disk, folders, permissions
from flows.checks.servers import clock, deployments, events, mlflow, prefect, registry, stack
from flows.workspace import Workspace

CHECKS: Sequence[Check] = (packages, folders, disk, datasets, permissions, mlflow, registry, prefect, clock, deployments, events, stack)


def examined(workspace: Workspace, checks: Sequence[Check]) -> Iterator[Finding]:
    """What the checks find, each as soon as it is known; one that cannot be carried out is an error of its own, and others go on."""
    for check in checks:
        name = check.__name__
        try:
            yield from check(workspace)
        except FedlinError as error:
            yield Finding("error", name, str(error))
        except Exception as error:
            yield Finding(
                "error", name, f"unexpected {type(error).__name__}: the check could not be carried out, which a run may not either"
            )
