# SPDX-License-Identifier: Apache-2.0
"""Dependencies point down: the layers of pinning/ and native/, plugins -> pinning.plugin, pinning -> pagetable."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from installed import tool
from pinning.build import library_dirs
from pinning.plugin import native

ROOT = Path(__file__).parent.parent
PLUGINS = sorted(path.name for path in (ROOT / "plugins").iterdir() if (path / "__init__.py").is_file())
OURS = {"pagetable", "pinning", *PLUGINS}
# All that `pinning` may import besides the standard library and our packages: so no vendor's, known or future.
NEUTRAL = {"numpy", "rich", "typer", "click", "matplotlib", "cython", "libc", "libcpp", "cpython"}

# Each integrates pinning with one library, which it imports. No other module of ours imports these.
INTEGRATIONS = {
    "pinning.cuda_core": "cuda",
    "pinning.cupy": "cupy",
    "pinning.dask": "distributed",
    "pinning.numba": "numba",
    "pinning.ray": "ray",
    "pinning.torch": "torch",
}
EXTRAS = {"matplotlib", "rich", "typer"}  # needed by the commands; may be absent
# Each makes one library's arrays, and imports that library when called; other modules may import these.
ADAPTERS = {"pinning/files/of_cupy.py": "cupy", "pinning/files/of_torch.py": "torch"}
TESTING = {"pytest", "hypothesis"}  # also allowed in the conformance suite, which no other part imports

# The layers ("floors") of both trees, the lowest first: a folder or module ("room") may use itself and those on lower
# floors, but no other room on its own floor.
PINNING = (
    "errors",
    "runtime",
    "plugin",
    "machine",
    "interop",
    "map",
    "budget",
    "locking",
    "queues",
    "memory",
    "copies",
    "arena",
    "sleeping",
    "arrays",
    "files",
    "build cuda_core cupy dask nixl numba ray torch",  # paths for compilers, and the drop-ins
    "__init__",
    "cli conformance",
    "__main__",
)
NATIVE = (
    "include",
    "base python",
    "watch",
    "vendors",
    "vendors/cuda vendors/hip vendors/host vendors/hsa vendors/ur",
    "map",
    "copies",
    "queues",
    "capi",
    "tool",
    "tool/openmp",
    "tool/cuda",
)

# Imports from higher layers: two that only a type checker makes, for annotations, and that of the commands.
UPWARD = {
    "pinning/__init__.py": tuple(INTEGRATIONS),
    "pinning/queues/queue.py": ("pinning.memory",),
    "pinning/__main__.py": ("pinning_command",),
}

Source = tuple[str, int, str]  # file, line, module or header


def imports(folder: Path) -> Iterator[Source]:
    """Every module that a package imports, also inside functions, or that its Cython files cimport."""
    for path in sorted(folder.rglob("*.p*")):
        if path.suffix == ".py":
            found: Iterator[tuple[int, str]] = _imported(ast.parse(path.read_text()), folder.name)
        elif path.suffix in (".pyx", ".pxd"):
            found = _cimported(path.read_text(), folder.name)
        else:
            continue
        name = f"{folder.name}/{path.relative_to(folder)}"
        for line, module in found:
            if not module.startswith(UPWARD.get(name, ())):
                yield name, line, module


def _imported(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, f"{package}.{node.module or ''}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:  # `from pinning import plugin` imports pinning.plugin
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def _cimported(text: str, package: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if names := re.match(r"\s*c?import\s+([\w., ]+)", line):
            for name in names[1].split(","):
                yield number, name.split()[0]
        elif names := re.match(r"\s*from\s+(\.*)([\w.]*)\s+c?import\s", line):
            yield number, f"{package}.{names[2]}" if names[1] else names[2]


def top(module: str) -> str:
    return module.split(".")[0]


def breaches_in_pagetable(root: Path) -> list[Source]:
    return [found for found in imports(root / "pagetable") if top(found[2]) in OURS - {"pagetable"}]


def breaches_in_pinning(root: Path) -> list[Source]:
    allowed = {"pagetable", "pinning", *NEUTRAL, *sys.stdlib_module_names}
    found = [
        each
        for each in imports(root / "pinning")
        if top(each[2]) not in {*allowed, _library(each[0])} or _is_integration(each[2], from_file=each[0])
    ]
    return [each for each in found if not (each[0].startswith("pinning/conformance/") and top(each[2]) in TESTING)]


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def _within(module: str, integration: str) -> bool:
    return f"{module}.".startswith(f"{integration}.")


def _library(file: str) -> str | None:
    """The library with which this file, or its package, integrates pinning, or whose arrays it makes."""
    if file in ADAPTERS:
        return ADAPTERS[file]
    return next((library for name, library in INTEGRATIONS.items() if _within(_module(file), name)), None)


def _is_integration(module: str, from_file: str) -> bool:
    """Whether a module belongs to an integration that the file is no part of."""
    return any(_within(module, name) and not _within(_module(from_file), name) for name in INTEGRATIONS)


def breaches_in_plugins(root: Path) -> list[Source]:
    breaches = []
    for name in PLUGINS:
        for found in imports(root / "plugins" / name):
            interface = f"{found[2]}.".startswith(("pinning.plugin.", "pinning.errors."))
            if top(found[2]) in OURS - {name} and not interface:
                breaches.append(found)
    return breaches


def _is_down(floors: tuple[str, ...], user: str, used: str) -> bool:
    """Whether one room may use another. A room that is on no floor may use none, and none may use it."""
    floor = {room: number for number, rooms in enumerate(floors) for room in rooms.split()}
    return user in floor and (user == used or floor.get(used, len(floors)) < floor[user])


def breaches_in_floors_of_pinning(root: Path) -> list[Source]:
    rooms = set(" ".join(PINNING).split())

    def room(module: str) -> str:
        name = module.split(".")[1] if "." in module else "__init__"
        return name if name in rooms or (root / "pinning" / name).is_dir() else "__init__"  # a public name

    return [
        found
        for found in imports(root / "pinning")
        if top(found[2]) == "pinning"
        and not _is_down(PINNING, found[0].split("/")[1].partition(".")[0], room(found[2]))
    ]


def breaches_in_floors_of_native(root: Path) -> list[Source]:
    native = root / "native"
    folders = [native / "include", native / "python"]

    def room(path: Path) -> str:
        parts = path.relative_to(native).parts
        return "/".join(parts[:2]) if parts[0] in ("tool", "vendors") and len(parts) > 2 else parts[0]

    breaches = []
    for source in sorted(native.rglob("*.[ch]pp")):
        for number, name in _included(source):
            for place in (source.parent, *folders):
                used = (place / name).resolve()
                if used.is_file() and used.is_relative_to(native):
                    if not _is_down(NATIVE, room(source), room(used)):
                        breaches.append((source.relative_to(root).as_posix(), number, name))
                    break
    return breaches


def _included(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if named := re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line):
            yield number, named[1]


def includes(header: Path, folders: list[Path]) -> Iterator[Source]:
    """Everything that a header includes, directly or through our own headers."""
    todo, seen = [header.resolve()], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for number, name in _included(path):
            yield path.name, number, name
            todo += [(place / name).resolve() for place in (path.parent, *folders) if (place / name).is_file()]


def header_folders(root: Path) -> list[Path]:
    return [root / "pagetable" / "include", root / "native" / "include"]


def breaches_in_page_table_headers(root: Path) -> list[Source]:
    headers = sorted((root / "pagetable" / "include" / "pagetable").glob("*.hpp"))
    found = [each for header in headers for each in includes(header, header_folders(root))]
    return [each for each in found if "python" in each[2].lower() or "pinning" in each[2] or ".." in each[2]]


def breaches_in_map_headers(root: Path) -> list[Source]:
    folder = root / "native" / "include" / "pinning"
    headers = sorted(folder.rglob("*.hpp"))
    assert {"pinned_map.hpp", "locker.hpp", "errors.hpp"} <= {path.name for path in headers}
    found = [each for header in headers for each in includes(header, header_folders(root))]
    return [each for each in found if "python" in each[2].lower()]


def breaches_in_runtime(root: Path) -> list[Source]:
    native = root / "native"
    sources = [path for path in sorted(native.rglob("*.[ch]pp")) if not path.is_relative_to(native / "python")]
    assert "c_api.cpp" in {path.name for path in sources}
    folders = [*header_folders(root), native / "python"]
    found = [each for source in sources for each in includes(source, folders)]
    vendors = ("cuda.h", "hip/", "hsa/", "omp-tools.h")
    return [each for each in found if "python" in each[2].lower() or each[2].startswith(vendors)]


RULES: dict[Callable[[Path], list[Source]], list[tuple[str, str]]] = {
    # each with lines that break it: a file, and a line to append to it
    breaches_in_pagetable: [
        ("pagetable/errors.py", "import pinning"),
        ("pagetable/errors.py", "def f():\n    from pinning.errors import PinningError"),
        ("pagetable/table.pyx", "from pinning.map.native cimport CPinnedMap"),
        ("pagetable/table.pxd", "cimport pinning.map.pinned_map"),
        ("pagetable/table.pyx", "if TYPE_CHECKING:\n    from pinning_host import plugin"),
    ],
    breaches_in_pinning: [
        ("pinning/locking/devices.py", "def f():\n    import pinning_host"),
        ("pinning/locking/devices.py", "import importlib\nimportlib.import_module('pinning_cuda')"),
        ("pinning/locking/lock.pyx", "from cuda.bindings import driver"),
        ("pinning/interop/dtypes.py", "import torch"),
        ("pinning/cupy.py", "import numba"),
        ("pinning/files/of_torch.py", "import cupy"),
        ("pinning/files/load.py", "import torch"),
        ("pinning/memory/context.py", "from pinning import cupy"),
        ("pinning/interop/dtypes.py", "import pytest"),
        ("pinning/conformance/conftest.py", "import pinning_host"),
        ("pinning/map/pinned_map.pyx", "from cuda.bindings cimport cydriver"),
    ],
    breaches_in_floors_of_pinning: [
        ("pinning/runtime/process.py", "from pinning.plugin import Device"),
        ("pinning/budget/limits.py", "def f():\n    from pinning.locking.lock import lock"),
        ("pinning/map/pinned_map.pyx", "from pinning.locking import devices"),
        ("pinning/map/native.pxd", "from pinning.memory.backing cimport Backing"),
        ("pinning/queues/queue.py", "from pinning import lock"),
        ("pinning/queues/lane.pyx", "cimport pinning.copies.work"),
        ("pinning/nixl.py", "import pinning"),
        ("pinning/dask.py", "from pinning.nixl import Agent"),
        ("pinning/conformance/faults.py", "from pinning.cli import output"),
        ("pinning/new.py", "from pinning.errors import PinningError"),
    ],
    breaches_in_floors_of_native: [
        ("native/vendors/devices.cpp", '#include "../capi/failure.hpp"'),
        ("native/vendors/devices.hpp", '#include "cuda/cuda_queue.hpp"'),
        ("native/vendors/cuda/cuda.cpp", '#include "../hip/hip_queue.hpp"'),
        ("native/base/library.hpp", '#include "../vendors/streams.hpp"'),
        ("native/include/pinning/vendor.hpp", '#include "../../vendors/streams.hpp"'),
        ("native/include/pinning/vendor.hpp", "#include <pinning/gil.hpp>"),
        ("native/copies/ring.hpp", '#include "../capi/failure.hpp"'),
        ("native/new/file.cpp", "#include <pinning/errors.hpp>"),
    ],
    breaches_in_plugins: [
        ("plugins/pinning_host/device.py", "from pinning import lock"),
        ("plugins/pinning_host/device.py", "import pinning"),
        ("plugins/pinning_host/device.py", "from pinning.map.pinned_map import PinnedMap"),
        ("plugins/pinning_host/device.py", "import pagetable"),
        ("plugins/pinning_cuda/__init__.py", "from pinning_host import kernel"),
        ("plugins/pinning_hip/__init__.py", "import pinning_cuda"),
        ("plugins/pinning_hsa/__init__.py", "from pinning.conformance.memory import Pages"),
        ("plugins/pinning_ur/__init__.py", "from pinning.locking.lock import lock"),
    ],
    breaches_in_page_table_headers: [
        ("pagetable/include/pagetable/line.hpp", "#include <Python.h>"),
        ("pagetable/include/pagetable/cell.hpp", '#include "../../../native/include/pinning/errors.hpp"'),
        ("pagetable/include/pagetable/cells.hpp", "#  include <pinning/errors.hpp>"),
    ],
    breaches_in_map_headers: [
        ("native/include/pinning/errors.hpp", "#include <Python.h>"),
        ("native/include/pinning/locker.hpp", '#include "python_device.hpp"'),
        ("pagetable/include/pagetable/region.hpp", "#include <Python.h>"),
    ],
    breaches_in_runtime: [
        ("native/map/registry.cpp", "#include <pinning/python_device.hpp>"),
        ("native/vendors/hsa/hsa_abi.hpp", "#include <hsa/hsa.h>"),
        ("native/include/pinning/shared_map.hpp", "#include <Python.h>"),
    ],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_there_are_no(rule: Callable[[Path], list[Source]]) -> None:
    assert rule(ROOT) == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    for name in ("pagetable", "pinning", "plugins", "native"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    return root


@pytest.mark.parametrize(
    ("rule", "file", "line"),
    [(rule, file, line) for rule, plants in RULES.items() for file, line in plants],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_breach_is_found(copy: Path, rule: Callable[[Path], list[Source]], file: str, line: str) -> None:
    path = copy / file
    path.parent.mkdir(exist_ok=True)
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}\n{line}\n")
    try:
        assert rule(copy)
    finally:
        path.write_text(before)


def python(program: str, *options: str) -> str:
    done = subprocess.run([sys.executable, "-P", *options, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def test_pagetable_loads_nothing_of_ours() -> None:
    assert OURS & set(python(f"import pagetable\n{LOADED}").split()) == {"pagetable"}


def test_pinning_loads_no_plugin_and_no_vendor() -> None:
    program = f"""
import importlib, pkgutil, pinning
def load(package):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__") and module.name not in {list(INTEGRATIONS)}:
            try:
                loaded = importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                assert error.name.partition(".")[0] in {EXTRAS}, error
                continue
            if module.ispkg:
                load(loaded)
load(pinning)
{LOADED}
"""
    loaded = set(python(program).split())
    assert OURS & loaded == {"pinning", "pagetable"}
    assert loaded & {"cuda", "hip", "rocm", "torch", "cupy", "numba"} == set()


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_needs_the_interface_alone(tmp_path: Path, name: str) -> None:
    """It loads with a `pinning` that has only the interface and the errors."""
    shutil.copytree(ROOT / "pinning" / "plugin", tmp_path / "pinning" / "plugin")
    (tmp_path / "pinning" / "__init__.py").touch()
    shutil.copy(ROOT / "pinning" / "errors.py", tmp_path / "pinning")
    shutil.copy(native.__file__, tmp_path / "pinning" / "plugin")
    (library,) = library_dirs()
    shutil.copytree(library, tmp_path / "pinning" / "lib")
    shutil.copytree(ROOT / "plugins" / name, tmp_path / name)
    paths = [str(tmp_path), sysconfig.get_path("purelib")]
    # -S: no .pth file, so nothing points back to this repository
    program = (
        f"import sys; sys.path += {paths}\nimport pinning.plugin, {name}; print({name}.plugin.name, {name}.__file__)"
    )
    said = python(program, "-S").split()
    assert f"pinning_{said[0]}" == name
    assert Path(said[1]).is_relative_to(tmp_path)


HEADERS = sorted(path for folder in header_folders(ROOT) for path in folder.glob("*/*.hpp"))


@pytest.mark.slow
@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_a_header_compiles_alone_and_without_python(header: Path) -> None:
    compiler = tool("c++", "apt-get install g++")
    folders = [f"-I{folder}" for folder in header_folders(ROOT)]
    strict = ["-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", "-x", "c++"]
    command = [compiler, *strict, *folders, "-include", header, "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_test_has_an_id_of_its_own(request: pytest.FixtureRequest) -> None:
    """Of tests that share an id, `--dist loadfile` runs only one, and a failure does not say which one it was."""
    ids = [item.nodeid for item in request.session.items]
    assert sorted(ids) == sorted(set(ids))
