# SPDX-License-Identifier: Apache-2.0
"""Each example, built and run against the installed package as its first lines say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

import pinning
from installed import ROOT, Installed, installed, no_isolation, pip, run, tool
from limits import needs_room_to_lock

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def package() -> Installed:
    return installed()


def test_cpp_with_cmake(package: Installed, tmp_path: Path) -> None:
    cmake = tool("cmake", "pip install cmake")
    tool("c++", "apt-get install g++")
    where = package.run("-m", "pagetable", "--cmake-dir", folder=tmp_path).strip()
    run(cmake, "-S", EXAMPLES / "cpp", "-B", tmp_path, f"-Dpagetable_DIR={where}", folder=tmp_path)
    run(cmake, "--build", tmp_path, folder=tmp_path)
    said = run(tmp_path / "whose", folder=tmp_path)
    assert f"a global:   {tmp_path / 'whose'}" in said
    assert "a local:    [stack]" in said
    assert "libc" in said
    assert "null:       nobody" in said
    assert ", 0 wrong answers" in said


def test_cpp_map_without_python(package: Installed, tmp_path: Path) -> None:
    needs_room_to_lock(2 << 20)
    compiler = tool("c++", "apt-get install g++")
    say_folders = 'import pinning; print(*(f"-I{d}" for d in pinning.build.include_dirs()))'
    source = EXAMPLES / "cpp_map" / "mlock_map.cpp"
    assert say_folders in source.read_text()
    folders = package.run("-c", say_folders, folder=tmp_path).split()
    run(compiler, "-std=c++20", *folders, source, "-pthread", "-o", tmp_path / "mlock_map", folder=tmp_path)
    said = run(tmp_path / "mlock_map", folder=tmp_path).splitlines()
    assert said[0] == "locks held: 2"
    assert said[1].startswith("refused: the range [0x")
    assert said[2:] == ["regions left: 0"]
    libraries = run(tool("ldd", "apt-get install libc-bin"), tmp_path / "mlock_map", folder=tmp_path)
    assert "python" not in libraries


def test_c_runtime(package: Installed, tmp_path: Path) -> None:
    needs_room_to_lock(2 << 20)
    compiler = tool("cc", "apt-get install gcc")
    program = EXAMPLES / "c_runtime" / "program.c"
    options = []
    for named in (
        '*(f"-I{d}" for d in pinning.build.include_dirs())',
        '*(f"-L{d} -Wl,-rpath,{d}" for d in pinning.build.library_dirs())',
    ):
        say = f"import pinning; print({named})"
        assert say in program.read_text()
        options += package.run("-c", say, folder=tmp_path).split()
    sources = sorted(program.parent.glob("*.c"))
    run(
        compiler,
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        *options,
        *sources,
        "-lpinning",
        "-o",
        tmp_path / "program",
        folder=tmp_path,
    )
    assert run(tmp_path / "program", folder=tmp_path).splitlines() == [
        "x is locked: yes",
        "y[99] after the update: 298",
        "y[65535] at the end: 196606",
        "more than is mapped: refused",
        "copies: 5 fast, 0 slow; left: 0 locked, 0 on the device",
    ]
    libraries = run(tool("ldd", "apt-get install libc-bin"), tmp_path / "program", folder=tmp_path)
    assert "python" not in libraries.replace(str(package.site), "")


def test_cython_module(package: Installed, tmp_path: Path) -> None:
    for needed in ("Cython", "setuptools"):
        if find_spec(needed) is None:
            pytest.skip(f"needs {needed.lower()}: pip install {needed.lower()}")
    tool("c++", "apt-get install g++")
    folder = tmp_path / "cython"
    shutil.copytree(EXAMPLES / "cython", folder)
    package.run("setup.py", "build_ext", "--inplace", folder=folder)
    program = """
from array import array
import hits, pagetable
table = pagetable.PageTable()
table.insert(100, 50)
table.insert(2**63, 2**63)
print(hits.count_hits(table, array("Q", [99, 100, 149, 150, 2**64 - 1])))
print(hits.bytes_behind(table, 120), hits.bytes_behind(table, 150), hits.bytes_behind(table, 2**64 - 1))
try:
    hits.count_hits(None, array("Q"))
except TypeError:
    print("refused")
"""
    assert package.run("-c", program, folder=folder).split() == ["3", "30", "0", "1", "refused"]


def test_arrays(package: Installed, tmp_path: Path) -> None:
    said = package.run("-W", "error", EXAMPLES / "arrays.py", folder=tmp_path)
    assert "262144 bytes" in said
    assert "one region, 2 locks" in said
    assert "last byte locked? True" in said
    assert "one behind it?   False" in said
    assert "refused: the range" in said
    assert said.splitlines()[-1] == "locked now: []"


def test_kv_blocks(package: Installed, tmp_path: Path) -> None:
    said = package.run(EXAMPLES / "kv_blocks.py", "64", folder=tmp_path)
    assert "64 parts by" in said
    assert said.endswith("every byte came back\n")


def test_graph_step(package: Installed, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    try:
        pinning.device("cuda:0")
    except pinning.PluginUnavailableError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    said = package.run(EXAMPLES / "graph_step.py", folder=tmp_path)
    assert said.count("largest difference") == 3


def test_arena_shared_by_processes(package: Installed, tmp_path: Path) -> None:
    said = package.run("-W", "error", EXAMPLES / "shared_arena.py", "12288", folder=tmp_path)
    # Lines may be interleaved: the processes share one output.
    assert sorted(re.findall(r"process (\d): 12288 bytes locked for", said)) == ["0", "1", "2", "3"]
    assert said.splitlines()[-1] == "the last one out has removed it"


def test_arena_handed_on(package: Installed, tmp_path: Path) -> None:
    said = package.run("-W", "error", EXAMPLES / "handed_arena.py", "12288", folder=tmp_path)
    assert "new: after" in said and "serves what the old one had filled" in said
    assert said.splitlines()[-1] == "handed on"


def test_ray_workers_share_weights(package: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install ray")
    needs_room_to_lock(16 << 20)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    said = package.run(EXAMPLES / "ray_weights.py", "8", folder=tmp_path).splitlines()
    assert "worker 0: 8 MiB locked, its weights' copies are direct" in said
    assert "worker 1: 8 MiB locked, its weights' copies are direct" in said
    assert said[-1] == "2 workers, 8 MiB of weights, in memory once"


def test_dask_pipeline(package: Installed, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs Dask: pip install distributed")
    needs_room_to_lock(16 << 20)
    said = package.run(EXAMPLES / "dask_pipeline.py", "2", folder=tmp_path).splitlines()
    assert said[0].startswith("8 blocks of 0.25 MiB to ") and said[0].endswith(": their sum is right")
    assert "8 of them had come to locked memory" in said
    assert "8 MiB are locked by both workers, as the dashboard shows" in said


def test_load_safetensors(package: Installed, tmp_path: Path) -> None:
    said = package.run("-W", "error", EXAMPLES / "load_safetensors.py", folder=tmp_path)
    assert said.splitlines()[0].startswith("8 tensors on")
    assert said.splitlines()[-1] == "524288 bytes there and back"


def test_plugin_of_a_third_party(package: Installed, tmp_path: Path) -> None:
    """Installed by pip beside `pinning`, it is found by its entry point, and passes the conformance suite."""
    folder, site = tmp_path / "plugin", tmp_path / "site"
    shutil.copytree(EXAMPLES / "plugin", folder)
    pip("install", "-q", "--no-deps", *no_isolation("setuptools>=70.1"), "--target", site, folder)
    program = """
import numpy, pinning
assert "fake" in [report.name for report in pinning.plugins()]
assert isinstance(pinning.device("fake"), pinning.plugin.Device)
array = numpy.zeros(1000)
with pinning.lock(array, device="fake") as lock:
    assert lock.device_ptr == array.ctypes.data + 2**52
    with pinning.lock(array[10:20], device="fake:0") as part:
        assert part.device_ptr == lock.device_ptr + 80 and part.region.references == 2
    assert pinning.device("fake").is_pinned_ptr(array.ctypes.data + 7999).size == 8000
assert pinning.device("fake").is_pinned_ptr(array.ctypes.data) is None
pinning.device("fake").data_lock(array.ctypes.data, 8000, None)  # by someone else
with pinning.lock(array[:5], device="fake") as lock:
    assert lock.region.external and lock.region.size == 8000
try:
    pinning.device("fake:1")
except pinning.PluginUnavailableError:
    print("good")
"""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [package.python, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "good\n", done.stderr
    suite = [package.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "pinning.conformance"]
    suite += ["--device", "fake:0", "--faults", "pinning_fake_driver:faults"]
    done = subprocess.run(suite, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
