# SPDX-License-Identifier: Apache-2.0
"""The help of each public name: it is not empty, describes all parameters and no others, and its examples run.

The site's reference, which is generated from it, has all public names.
"""

from __future__ import annotations

import builtins
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest

import pagetable
import pinning
from folders import ROOT
from installed import run

MODULES = (
    "pagetable",
    "pinning",
    "pinning.arena",
    "pinning.arrays",
    "pinning.build",
    "pinning.copies",
    "pinning.files",
    "pinning.locking.mapped",
    "pinning.memory",
    "pinning.plugin",
    "pinning.plugin.native",
    "pinning.plugin.native_plugin",
    "pinning.queues",
    "pinning.sleeping",
)
NAMES = [(module, name) for module in MODULES for name in getattr(import_module(module), "__all__", ["NativeDevice"])]


def is_called(thing: object) -> bool:
    """Whether users call it with arguments, rather than name it, catch it or implement it."""
    named = isinstance(thing, type) and issubclass(thing, (BaseException, Enum, tuple))
    return callable(thing) and not named and not getattr(thing, "_is_protocol", False)


PUBLIC = [getattr(module, name) for module in (pagetable, pinning) for name in module.__all__]
# Every parameter of these must be described; of the others, all or none.
EVERYDAY = [
    member
    for thing in filter(is_called, PUBLIC)
    for member in (thing, *(vars(thing).values() if isinstance(thing, type) else ()))
    if callable(member)
]


def members(owner: type) -> Iterator[tuple[str, object]]:
    """The public members of a class that our own classes define."""
    for name in dir(owner):
        home = next((each for each in owner.__mro__ if name in vars(each)), object)
        if not name.startswith("_") and home.__module__.startswith(("pinning", "pagetable")):
            member = vars(home)[name]
            yield name, member.__func__ if isinstance(member, (classmethod, staticmethod)) else member


def parameters(function: object) -> set[str]:
    """The names of the parameters of a caller; none if there is no signature, as for some of Python's own classes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return set()
    return {name for name in signature.parameters if name not in ("self", "cls")}


def described(text: str, section: str) -> list[str]:
    """The names under a numpydoc heading."""
    found = re.search(rf"^{section}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    lines = [] if found is None else found[1].splitlines()
    heads = [line.partition(" :")[0] for line in lines if line[:1].strip()]
    return [name.strip(" *") for head in heads for name in head.split(",")]


def problems(name: str, thing: object) -> Iterator[str]:
    text = inspect.getdoc(thing) or ""
    if isinstance(thing, type):
        texts = [inspect.getdoc(each) or "" for each in thing.__mro__]
        fields = {field for each in texts for part in ("Attributes", "Parameters") for field in described(each, part)}
        if not (vars(thing).get("__doc__") or "").strip():
            yield f"{name} says nothing"
        for member_name, member in members(thing):
            told = member_name in fields or member_name in getattr(thing, "_fields", ())
            if callable(member) or not told:
                yield from problems(f"{name}.{member_name}", member)
    elif callable(thing) or isinstance(thing, property) or inspect.isdatadescriptor(thing):
        if not text.strip():
            yield f"{name} says nothing"
    else:
        return  # a plain value
    if not callable(thing) or (isinstance(thing, type) and issubclass(thing, (BaseException, Enum, tuple))):
        return
    taken = parameters(thing)
    if section := described(text, "Parameters"):
        if unknown := set(section) - taken:
            yield f"{name} describes parameters that it does not have: {sorted(unknown)}"
        if missing := taken - set(section):
            yield f"{name} does not describe {sorted(missing)}"
    elif thing in EVERYDAY and (untold := {each for each in taken if f"`{each}`" not in text}):
        yield f"{name} does not describe {sorted(untold)}"
    for error in described(text, "Raises"):
        if error.isidentifier() and not any(hasattr(module, error) for module in (pagetable, pinning, builtins)):
            yield f"{name} says that it raises {error}, which is no error"


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_help_says_what_it_is_and_what_it_takes(module: str, name: str) -> None:
    thing = getattr(import_module(module), name)
    assert [problem for problem in problems(name, thing) if name not in ("ENTRY_POINT_GROUP", "MemoryKindLike")] == []


def in_reference() -> tuple[set[str], set[int]]:
    """The modules that the reference pages document as a whole, and the ids of all public objects that they show."""
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    modules, shown = set(), set()
    for kind, name in re.findall(r"^\.\. auto(\w+):: ([\w.]+)$", text, re.MULTILINE):
        if kind == "module":
            modules.add(name)
            shown |= {id(getattr(import_module(name), each)) for module, each in NAMES if module == name}
        else:
            module, _, each = name.rpartition(".")
            shown.add(id(getattr(import_module(module), each)))
    return modules, shown


def test_the_reference_has_each_public_name() -> None:
    modules, shown = in_reference()
    assert {f"pinning.{name}" for name in pinning._ON_DEMAND} <= modules | set(MODULES)
    names = {f"{module}.{name}" for module, name in NAMES if id(getattr(import_module(module), name)) not in shown}
    assert names == set()


EXAMPLES = """
import doctest, inspect, pathlib, sys
import numpy, pinning
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
for name in pinning.__all__:
    text = inspect.getdoc(getattr(pinning, name)) or ""
    names = {"numpy": numpy, "pinning": pinning, "Path": pathlib.Path}
    runner.run(doctest.DocTestParser().get_doctest(text, names, name, None, 0))
sys.exit(runner.failures > 0 or runner.tries < 40)
"""


def test_examples_of_the_help(tmp_path: Path) -> None:
    run(sys.executable, "-P", "-W", "error", "-c", EXAMPLES, folder=tmp_path)
