"""Versions: of what is installed, and of a server beside our own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from flows.checks.finding import Finding
from flows.workspace import Workspace

LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"
REMEDY = "pip install --require-hashes --requirement requirements.lock"


def packages(_: Workspace) -> Iterator[Finding]:
    """Whether what fedlin needs is installed, in versions that it works with, and as it was locked."""
    installed: dict[str, str] = {canonicalize_name(each.name): each.version for each in metadata.distributions()}
    needed = [Requirement(each) for each in metadata.requires("fedlin") or ()]
    findings = [*unmet(needed, installed), *unlocked(LOCK.read_text() if LOCK.exists() else "", installed)]
    yield from findings
    if not findings:
        yield Finding("ok", "packages", f"fedlin {metadata.version('fedlin')} with all that it needs, as locked")


def unmet(needed: Iterable[Requirement], installed: Mapping[str, str]) -> Iterator[Finding]:
    """What is missing, or outside of the bounds that fedlin declares.

    Parameters
    ----------
    needed
        Requirements; those of extras are passed over.
    installed
        Versions by canonical name.
    """
    for each in needed:
        if each.marker and not each.marker.evaluate({"extra": ""}):
            continue
        found = installed.get(canonicalize_name(each.name))
        if found is None:
            yield Finding("error", "packages", f"{each.name} is not installed, needs {each.specifier}: {REMEDY}")
        elif not each.specifier.contains(found, prereleases=True):
            yield Finding("error", "packages", f"{each.name} is {found}, needs {each.specifier}: {REMEDY}")


def unlocked(lock: str, installed: Mapping[str, str]) -> Iterator[Finding]:
    """What is installed in another version than the lock's; packages that are not installed may be for other systems or for development.

    Parameters
    ----------
    lock
        Text of the lock, empty where there is none.
    installed
        Versions by canonical name.
    """
    lines = (line.partition("\\")[0].strip() for line in lock.splitlines() if "==" in line and not line.startswith((" ", "#")))
    pins = [pin for pin in map(Requirement, lines) if not pin.marker or pin.marker.evaluate()]
    others = [
        (pin.name, found)
        for pin in pins
        if (found := installed.get(canonicalize_name(pin.name))) and not pin.specifier.contains(found, prereleases=True)
    ]
    if others:
        shown = ", ".join(f"{name} {found}" for name, found in others[:3])
        rest = f" and {len(others) - 3} more" if len(others) > 3 else ""
        yield Finding("warning", "packages", f"not as locked: {shown}{rest}: {REMEDY}")


def beside(check: str, name: str, server: str, own: str) -> Finding | None:
    """What is wrong with a server's version beside ours, None for nothing: the major one has to agree, and the server may be newer."""
    theirs, ours = Version(server), Version(own)
    if theirs.major != ours.major:
        return Finding("error", check, f"the {name} server is {server}, here is {own}: use one major version")
    if theirs < ours:
        return Finding("warning", check, f"the {name} server is {server}, older than {own} here: upgrade the server")
    return None
