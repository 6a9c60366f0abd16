# SPDX-License-Identifier: Apache-2.0
"""``python tools/planted [--check] [--fast] [NAME ...]``: how many of the bugs in bugs.toml the tests catch.

All bugs are planted into one copy of the sources, each behind its number in the environment variable PLANTED, so that
one build serves them all. Then the tests that each bug names run with it; a test that fails must pass without it. A bug
that no test fails for survives. With ``--fast`` slow tests are left out, as in ``make test``; with ``--check`` only the
places of the bugs are looked for. Results go to build/planted/results.json; bugs that have one are not tried again
unless they are named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build/planted"
SITE, TREE, RESULTS = WORK / "site", WORK / "tree", WORK / "results.json"
FLAGS = f"{os.environ.get('CXXFLAGS', '')} -include {WORK}/planted.hpp"
LIMIT = 900  # seconds for the tests of a bug: some bugs hang

HEADER = """#pragma once
#include <cstdlib>
[[maybe_unused]] static int const pinning_planted = [] {
  char const* const number = std::getenv("PLANTED");
  return number == nullptr ? 0 : std::atoi(number);
}();
"""
IN_CYTHON = "cdef extern from *:\n    int pinning_planted\n\n"
IN_PYTHON = '(__import__("os").environ.get("PLANTED") == "{}")'


@dataclass(frozen=True)
class Bug:
    """A bug: in `file`, where it is planted, `new` replaces `old`; ``{bug}`` in `new` is whether this bug is in effect.

    `kind` is one of the kinds of mistakes; `tests` are the paths of the fast tests that should catch it.
    """

    number: int
    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: str


def bugs() -> list[Bug]:
    """All bugs. Raises ValueError if a place is not found exactly once, also after the bugs before it are planted."""
    table = tomllib.loads((Path(__file__).parent / "bugs.toml").read_text())
    found = [Bug(number, **bug) for number, bug in enumerate(table["bug"], 1)]
    texts: dict[str, str] = {}
    for bug in found:
        text = texts.setdefault(bug.file, (ROOT / bug.file).read_text())
        if (times := text.count(bug.old)) != 1:
            raise ValueError(f"{bug.name}: its place is {times} times in {bug.file}; it must be there once")
        texts[bug.file] = text.replace(bug.old, bug.new)
        if "{bug}" not in bug.new:
            raise ValueError(f"{bug.name}: new has no {{bug}}")
    return found


def plant(all_bugs: list[Bug]) -> None:
    """Copy the sources, with all bugs."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)
    (WORK / "planted.hpp").write_text(HEADER)
    for bug in all_bugs:
        path = TREE / bug.file
        condition = IN_PYTHON.format(bug.number) if path.suffix == ".py" else f"(pinning_planted == {bug.number})"
        text = path.read_text().replace(bug.old, bug.new.replace("{bug}", condition))
        if path.suffix == ".pyx" and IN_CYTHON not in text:
            begin = re.search(r"^((cimport|from|import|cdef|cpdef|def|class)\b|@)", text, re.MULTILINE)
            assert begin
            text = text[: begin.start()] + IN_CYTHON + text[begin.start() :]
        if path.suffix == ".py":
            compile(text, path, "exec")  # otherwise the tests of other bugs could not import it either
        path.write_text(text)


def build() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", SITE, TREE], env={**os.environ, "CXXFLAGS": FLAGS}, check=True)


def run(number: int, tests: list[str], marks: str) -> tuple[bool, str]:
    """Whether tests pass with a bug (0: none) in effect; and what pytest says. `tests` may have options of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", marks, "-p", "no:cacheprovider", "-n", "2"]
    where = {"PLANTED": str(number), "PYTHONPATH": str(SITE), "PYTHONSAFEPATH": "1"}
    environment = {**os.environ, **where, "CXXFLAGS": f"{FLAGS} -Wno-error"}
    log = WORK / f"{number}.log"
    with log.open("w") as out:
        try:
            done = subprocess.run(
                [*command, *tests], cwd=TREE, env=environment, stdout=out, stderr=out, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return False, ""
    return done.returncode == 0, log.read_text()


def failures(said: str) -> set[str]:
    return set(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE))


def caught(bug: Bug, marks: str) -> bool:
    """Whether a test fails, or does not end, because of a bug: what fails is run once more without it."""
    unrelated: set[str] = set()
    while True:
        others = [f"--deselect={each}" for each in unrelated]
        passes, said = run(bug.number, ["-x", *bug.tests.split(), *others], marks)
        if passes:
            return False
        failed = failures(said)
        still = failed & failures(run(0, sorted(failed), marks)[1]) if failed else set()
        if not failed or failed - still:
            return True
        unrelated |= still


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="look for the places of the bugs, and build nothing")
    parser.add_argument("--fast", action="store_true", help="without the slow tests")
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs to try; by default all that have no result")
    given = parser.parse_args()
    all_bugs = bugs()
    if given.check:
        return 0
    results: dict[str, bool] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    chosen = [bug for bug in all_bugs if bug.name in given.names or (not given.names and bug.name not in results)]
    WORK.mkdir(parents=True, exist_ok=True)
    plant(all_bugs)
    build()
    passes, said = run(0, ["tests/budget/test_budget.py"], "not slow")
    if not passes:  # otherwise every bug would seem to be caught, for example without pytest-xdist
        raise RuntimeError(f"without a bug these tests must pass: {said}")
    for bug in chosen:
        results[bug.name] = caught(bug, "not slow" if given.fast else "")
        print(f"{bug.name}: {'caught' if results[bug.name] else 'SURVIVES'} ({bug.kind})", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1))
    tried = [results[bug.name] for bug in all_bugs if bug.name in results]
    print(f"{sum(tried)} of {len(tried)} are caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
