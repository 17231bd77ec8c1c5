"""What is public says what it does; functions on arrays their shapes, functions that refuse how, methods where they come from.

Griffe reads the sources, as it does for the reference in the documentation.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module

import griffe
import pytest

from fedcore import errors
from fedcore.algorithm import ALGORITHMS

LOADER = griffe.GriffeLoader()
PACKAGES = [LOADER.load(name) for name in ("fedcore", "tasks", "flows")]
LOADER.resolve_aliases()

ARRAY = re.compile(r"\b(Floats|Booleans|Indices|NDArray|ArrayLike)\b")
SIZE = r"(?:[A-Za-z]{1,2}|\d+|\.\.\.|axes)(?: ?[-+*/] ?\w+)*"
SHAPE = re.compile(rf"\({SIZE},(?: {SIZE}(?:, {SIZE})*)?\)|\bshape\b|\bscalar|\bnumbers\b|\bd K\b")
"""As in (n,) and (d, K), or in words: what has the shape of something else, so many numbers."""

ERRORS = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.FedlinError)}


def public(parent: griffe.Object) -> Iterator[griffe.Object]:
    """What is defined below and has no underscore, but for attributes, and the command line, whose docstrings are its help."""
    for name, member in parent.members.items():
        if member.is_alias or name.startswith("_") or member.is_attribute or member.path == "flows.cli":
            continue
        yield member
        if not member.is_function:
            yield from public(member)


PUBLIC = [each for package in PACKAGES for each in (package, *public(package))]
FUNCTIONS = [each for each in PUBLIC if each.is_function]
CLASSES = [each for each in PUBLIC if each.is_class]


def text(thing: griffe.Object) -> str:
    """The docstring; of a method also those of its base classes, and of the protocol whose methods its class says it has."""
    said = [thing.docstring]
    for base in (thing.parent, *thing.parent.mro()) if thing.parent and thing.parent.is_class else ():
        others = re.findall(r"Methods are those of `([\w.]+)`", base.docstring.value if base.docstring else "")
        owners = (base, *(LOADER.modules_collection[other] for other in others))
        said += [owner.members[thing.name].docstring for owner in owners if thing.name in owner.members]
    return "\n".join(each.value for each in said if each)


def told(problem: str, wrong: list[str]) -> str:
    return f"{len(wrong)} {problem}: {', '.join(wrong)}"


def test_the_packages_are_read() -> None:
    assert {"fedcore.hm1.Hm1", "fedcore.hm2.normal", "tasks.device.device_check", "flows.train.train"} <= {each.path for each in PUBLIC}


def test_everything_public_has_a_docstring() -> None:
    wrong = [each.path for each in PUBLIC if not text(each)]
    assert not wrong, told("without a docstring", wrong)


def test_functions_on_arrays_tell_shapes() -> None:
    """In fedcore, where arrays are: of what comes in and goes out, unless the class says so of itself."""
    wrong = []
    for function in FUNCTIONS:
        if not function.path.startswith("fedcore."):
            continue
        annotations = [str(each.annotation) for each in function.parameters] + [str(function.returns)]
        whole = text(function) + (text(function.parent) if function.parent.is_class else "")
        if any(ARRAY.search(each) for each in annotations) and not SHAPE.search(whole):
            wrong.append(function.path)
    assert not wrong, told("without shapes", wrong)


def test_records_of_arrays_tell_shapes() -> None:
    wrong = []
    for each in CLASSES:
        fields = [member for member in each.members.values() if member.is_attribute and ARRAY.search(str(member.annotation))]
        if each.path.startswith("fedcore.") and fields and not SHAPE.search(text(each)):
            wrong.append(each.path)
    assert not wrong, told("without shapes", wrong)


def raised(function: griffe.Object) -> set[str]:
    """The project's own errors that a function raises itself."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(function.source))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            names.add(node.exc.func.id)
    return names & ERRORS


def test_functions_that_refuse_say_so() -> None:
    wrong = [f"{each.path} ({error})" for each in FUNCTIONS for error in sorted(raised(each)) if error not in text(each)]
    assert not wrong, told("errors that are not told", wrong)


def test_times_say_their_unit() -> None:
    """Numbers that stand for a time are in seconds, and say so."""
    times = re.compile(r"^(timeout|.*_timeout|patience|seconds|deadline|limit|patience_s|wait)$")
    wrong = [
        f"{function.path}({each.name})"
        for function in FUNCTIONS
        for each in function.parameters
        if times.match(each.name) and "float" in str(each.annotation) and not re.search(r"\bseconds?\b", text(function))
    ]
    assert not wrong, told("times without a unit", wrong)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_methods_name_their_source(name: str) -> None:
    module = import_module(ALGORITHMS[name].partition(":")[0])
    assert re.search(r"^Sources?: ", module.__doc__ or "", re.MULTILINE)
