# SPDX-License-Identifier: Apache-2.0
"""Test files for a stand-in driver, standin_*.py: each runs in a process of its own that has loaded that driver.

The process that collects such a file may have the vendor's real driver, and cannot change it. So it does not import the
file, but lists its tests by name, with the result of each in the child. A folder's conftest.py names the driver::

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return on_standin(module_path, parent, {"": Run(DRIVER, "devices=4")})
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import pytest

from run_folder import made_once, run_folder
from standins.standin import Driver

TIMEOUT = 1500  # seconds for all tests of a file
TEST = ("test_", "Test")  # how the names of tests begin

Test = TypeVar("Test", bound=Callable[..., None])
Cases = dict[str, list[ElementTree.Element]]  # the child's results of the cases, by test


@dataclass(frozen=True)
class Run:
    """What a child needs besides a file: a driver and its configuration, variables, and the vendor's Python bindings.

    `bindings` are a distribution, such as ``"cuda-bindings"``.
    """

    driver: Driver
    configuration: str
    bindings: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def require(self) -> None:
        """Skip if the bindings are not installed."""
        if self.bindings:
            try:
                importlib.metadata.distribution(self.bindings)
            except importlib.metadata.PackageNotFoundError:
                pytest.skip(f"needs {self.bindings}: pip install {self.bindings}")


def on_standin(path: Path, parent: pytest.Collector, runs: Mapping[str, Run]) -> pytest.Collector | None:
    """Collect the tests of a standin_*.py, each in every one of `runs`; None for other files, and in the child."""
    if not path.name.startswith("standin_") or any(run.driver.variable in os.environ for run in runs.values()):
        return None
    file: StandInFile = StandInFile.from_parent(parent, path=path)
    file.runs = runs
    return file


class StandInFile(pytest.File):
    runs: Mapping[str, Run] = {}

    def collect(self) -> Iterator[pytest.Item]:
        for run in self.runs:
            child = _Child(self.path, self.runs[run])
            for name in dict.fromkeys(_tests(self.path, run)):
                own_name = f"{name}[{run}]" if run else name
                item: StandInTest = StandInTest.from_parent(self, name=own_name, callobj=child.test(name))
                item.add_marker(pytest.mark.timeout(TIMEOUT + 60))  # it may run all of them
                child.items[item.nodeid] = name
                yield item


class StandInTest(pytest.Function):
    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class _Child:
    """One run of a file with all its selected tests, started by the first of them.

    The first of xdist's processes that reaches one of the tests runs the file, and the others read the results.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path, self.run = path, run
        self.items: dict[str, str] = {}  # test names by node id
        self.done: tuple[Cases, str] | None = None  # the cases by test, and the output

    def test(self, name: str) -> Callable[..., None]:
        def test(
            request: pytest.FixtureRequest, build: Callable[[Driver], Path], tmp_path_factory: pytest.TempPathFactory
        ) -> None:
            self.run.require()
            if self.done is None:
                first = hashlib.sha256(min(self.items).encode()).hexdigest()[:16]
                told = run_folder(request.config, tmp_path_factory) / f"{self.path.stem}-{first}"
                with made_once(told) as made:
                    if not made:
                        selected = {item.nodeid for item in request.session.items}
                        names = [name for item, name in self.items.items() if item in selected]
                        self.start(build(self.run.driver), names, told)
                self.done = self.read(told)
            cases, output = self.done
            _tell(cases[name], output)

        return test

    def start(self, folder: Path, names: list[str], told: Path) -> None:
        part = Path(f"{told}.part")
        part.mkdir(exist_ok=True)
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={part}/report"]
        done = subprocess.run(
            [*command, *(f"{self.path}::{name}" for name in names)],
            env={**self.run.driver.environment(folder, self.run.configuration), **self.run.variables},
            text=True,
            capture_output=True,
            timeout=TIMEOUT,
        )
        (part / "output").write_text(done.stdout + done.stderr)
        part.rename(told)

    def read(self, told: Path) -> tuple[Cases, str]:
        cases: Cases = defaultdict(list)
        if (told / "report").exists():
            for case in ElementTree.parse(told / "report").iter("testcase"):
                parts = [*case.get("classname", "").split("."), case.get("name", "").partition("[")[0]]
                cases[next((part for part in parts if part.startswith(TEST)), "")].append(case)
        return cases, (told / "output").read_text()


def only(*runs: str) -> Callable[[Test], Test]:
    """Decorator for a test of a file with several runs: those that include it, as literals."""
    return lambda test: test


def _tests(path: Path, run: str) -> Iterator[str]:
    """The names of a run's tests in a file and in modules that it imports with ``*``, in source order."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith(TEST):
            if all(run in runs for runs in map(_only, node.decorator_list) if runs):
                yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id.startswith(TEST):  # the TestCase of a hypothesis machine
                yield node.targets[0].id
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            module = importlib.util.find_spec(str(node.module))
            assert module and module.origin, node.module
            yield from _tests(Path(module.origin), run)


def _only(decorator: ast.expr) -> list[str]:
    """The arguments of a decorator `only`; empty for any other."""
    call = decorator if isinstance(decorator, ast.Call) else None
    ours = call and isinstance(call.func, ast.Name) and call.func.id == "only"
    return [ast.literal_eval(argument) for argument in call.args] if call and ours else []


def _tell(cases: list[ElementTree.Element], output: str) -> None:
    """Fail or skip as the cases did."""
    if not cases:
        pytest.fail(output, pytrace=False)
    bad = [each for case in cases for each in (*case.iter("failure"), *case.iter("error"))]
    if bad:
        pytest.fail("\n".join(each.text or "" for each in bad), pytrace=False)
    skipped: list[Any] = [each for case in cases for each in case.iter("skipped")]
    if len(skipped) == len(cases):
        pytest.skip(skipped[0].get("message"))
