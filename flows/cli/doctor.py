"""`fedlin doctor`: what is wrong with a project's surroundings, and what to do about it."""

from __future__ import annotations

import json

import typer

from flows.cli import options
from flows.terminal import console
from flows.workspace import Workspace


def command(as_json: options.AsJson = False) -> None:
    """Check stores, servers, versions, clock, disk and permissions; status 1 where something has to be mended."""
    from flows.checks.report import CHECKS, examined

    out, findings = console(), []
    for each in examined(Workspace.find(), CHECKS):
        findings.append(each)
        if not as_json:
            out.print(f"{each.level:<8} {each.check}: {' '.join(each.text.split())}", soft_wrap=True)
    errors = sum(each.level == "error" for each in findings)
    if as_json:
        print(json.dumps({"ok": not errors, "findings": [each._asdict() for each in findings]}), flush=True)
    if errors:
        raise typer.Exit(1)
