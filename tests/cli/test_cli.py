# SPDX-License-Identifier: Apache-2.0
"""The commands as a user runs them: what they print, how they exit, what they leave behind."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import IO, Any

import pytest

from child_process import ordinary_user
from fake_device import FakeDevice
from limits import needs_room_to_lock
from pinning import VendorError
from pinning.cli import doctor, machine
from pinning.cli.units import duration, rate
from pinning.locking.devices import device as device_of_name
from pinning.machine.room import Room
from standins import libcuda, libhost
from standins.standin import Driver

MIB = 1 << 20
_SHARED_MEMORY = Path("/dev/shm")
# Puts this process's id into the names of a command's files in shared memory: other processes have theirs there too.
_OWN_NAMES = f"import tempfile; tempfile.template = '{os.getpid()}_'"
BUFFERS = ["NumPy array", "bytearray", "mapped file", "shared memory"]
WITHOUT_CLI = "import sys; sys.modules['typer'] = sys.modules['rich'] = None"
HOST_ALONE = "import sys; sys.modules.update(dict.fromkeys(f'pinning_{name}' for name in ('cuda', 'hip', 'hsa', 'ur')))"


class Pinning:
    """Runs `pinning` with 80 columns and a temporary folder of its own, and checks that it leaves no files."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary

    def __call__(
        self,
        *arguments: str,
        memlock: int | None = None,
        first: str = "",
        python_path: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.CompletedProcess[str]:
        """Run a command after the Python code `first`; with `memlock`, as an ordinary user with that limit."""
        program = f"{_OWN_NAMES}\n{first}\nfrom pinning_command import main\nmain()"
        environment = {**os.environ, "COLUMNS": "80", "TMPDIR": str(self.temporary), "PYTHONSAFEPATH": "1"}
        environment.update(variables)
        if python_path:
            environment["PYTHONPATH"] = python_path
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=environment,
            preexec_fn=None if memlock is None else ordinary_user(memlock),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert not list(self.temporary.iterdir())
        assert not list(_SHARED_MEMORY.glob(f"{os.getpid()}_*"))
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: str, exit_code: int = 0, **how: Any) -> dict[str, Any]:
        done = self(*arguments, "--json", **how)
        assert done.returncode == exit_code, done.stdout + done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def text(self, *arguments: str, exit_code: int = 0, **how: Any) -> str:
        """What a user sees, with spaces in place of line breaks."""
        done = self(*arguments, **how)
        assert done.returncode == exit_code, done.stdout + done.stderr
        for line in (done.stdout + done.stderr).splitlines():
            assert len(line) <= 80, line
        return " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def pinning(tmp_path: Path) -> Pinning:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return Pinning(folder)


DEMO = 160 * MIB  # the limit from which its buffers have their full size


def test_demo_locks_real_buffers_and_checks_every_byte(pinning: Pinning) -> None:
    needs_room_to_lock(DEMO)
    report = pinning.json("demo", "--device", "host")
    assert report["ok"] is True
    assert [row["buffer"] for row in report["buffers"]] == BUFFERS
    assert all(row["lock"] > 0 and row["to_device"] > 0 and row["from_device"] > 0 for row in report["buffers"])
    total = sum(row["size"] for row in report["buffers"])
    assert total >= 128 * MIB
    seen = {check["what"]: check["seen"] for check in report["checks"] if check["ok"]}
    assert seen["the buffers are locked"] == "128 MiB pinned on host:0, 128 MiB counted by the kernel (VmLck)"
    assert seen["a lock inside a region is counted"] == "2 references, then 1"
    assert seen["a partial overlap is refused"] == "PartialOverlapError"
    assert seen["every byte arrived"] == f"0 of {total:,} differ"
    assert {"lookups find them, and nothing behind", "the buffers are unlocked"} < seen.keys()
    assert {row["what"] for row in report["lookups"]} >= {"ptr in PageTable", "PinnedMap.find"}


def test_demo_says_the_path_of_its_copies_and_what_to_do_next(pinning: Pinning) -> None:
    needs_room_to_lock(DEMO)
    said = pinning.text("demo", "--device", "host")
    assert all(name in said for name in BUFFERS)
    assert "to the device: direct, because the host's memory is locked" in said
    assert "back, into ordinary memory: staged, because the host's memory is pageable" in said
    assert "No GPU was used: pinning doctor reports why" in said
    assert "✓ All checks passed." in said
    assert said.endswith("More about this machine: pinning doctor, pinning bench")


def test_figures_have_three_digits_and_rates_are_in_powers_of_ten() -> None:
    assert [rate(55_300_000_000, 1), duration(0.0123), duration(999.6e-6)] == ["55.3 GB/s", "12.3 ms", "1.00 ms"]


@pytest.mark.parametrize("arguments", [["demo"], ["doctor"], ["bench", "--quick"]], ids=lambda words: words[0])
def test_fits_80_columns(pinning: Pinning, arguments: list[str]) -> None:
    assert "pinning" in pinning.text(*arguments)


def test_demo_fits_itself_to_an_ordinary_users_limit(pinning: Pinning) -> None:
    report = pinning.json("demo", "--device", "host", memlock=8 * MIB)
    assert report["ok"] is True
    assert [row["buffer"] for row in report["buffers"]] == BUFFERS
    assert MIB < sum(row["size"] for row in report["buffers"]) <= 8 * MIB
    said = pinning.text("demo", "--device", "host", memlock=8 * MIB)
    assert "No GPU was used" in said
    assert "RLIMIT_MEMLOCK lets this process lock 8 MiB" in said
    assert "sudo prlimit --memlock=unlimited --pid $$" in said


@pytest.mark.parametrize("command", [["demo"], ["bench", "--quick"]], ids=lambda words: words[0])
def test_a_limit_of_nothing_is_said_with_the_command_that_raises_it(pinning: Pinning, command: list[str]) -> None:
    said = pinning.text(*command, "--device", "host", memlock=0, exit_code=1)
    assert "RLIMIT_MEMLOCK" in said
    assert "sudo prlimit --memlock=unlimited --pid $$" in said
    report = pinning.json(*command, "--device", "host", memlock=0, exit_code=1)
    assert report["ok"] is False
    assert "RLIMIT_MEMLOCK" in report["error"]


READ_ONLY = """
import errno, os, tempfile
temporary_file = tempfile.TemporaryFile
def refused(*arguments, dir=None, **names):
    if dir == "/dev/shm":
        raise OSError(errno.EROFS, "Read-only file system")
    return temporary_file(*arguments, dir=dir, **names)

tempfile.TemporaryFile = refused
statvfs = os.statvfs
class ReadOnly:
    f_flag = os.ST_RDONLY
os.statvfs = lambda path: ReadOnly if str(path) == "/dev/shm" else statvfs(path)
"""


def test_where_shared_memory_is_read_only_the_demo_goes_on_and_doctor_says_so(pinning: Pinning) -> None:
    how = {"first": READ_ONLY, "memlock": 8 * MIB}
    report = pinning.json("demo", "--device", "host", **how)
    assert report["ok"] is True
    assert [row["buffer"] for row in report["buffers"]] == BUFFERS[:-1]
    assert "Read-only file system" in report["missing"]["shared memory"]
    said = pinning.text("demo", "--device", "host", **how)
    assert "Without the shared memory: /dev/shm: [Errno 30] Read-only" in said
    (advice,) = [each for each in pinning.json("doctor", **how)["advice"] if "/dev/shm" in each["why"]]
    assert "named arenas" in advice["why"] and "remount,rw" in advice["command"]


def test_demo_on_a_gpu_also_compares_pageable_and_locked_memory(
    pinning: Pinning, build: Callable[[Driver], Path]
) -> None:
    variables = libcuda.DRIVER.environment(build(libcuda.DRIVER))
    said = pinning.text("demo", variables=variables)
    assert "pinning demo on cuda:0, Stand-in 0" in said
    assert "No GPU was used" not in said
    assert "the buffers are locked: 128 MiB pinned on cuda:0" in said
    assert "to the device 128 MiB" in said[said.index("Copies of pageable memory, and of locked memory") :]
    assert "pinning run --report -- PROGRAM" in said


def test_demo_on_a_device_that_only_locks(pinning: Pinning, tmp_path: Path) -> None:
    program = """
from pinning.plugin import PinnedInfo
locked = {}
class device:
    name, vendor = "acme:0", "acme"
    data_lock = staticmethod(lambda ptr, size, read_only: locked.update({ptr: size}) or ptr + (1 << 50))
    data_unlock = staticmethod(locked.pop)
    @staticmethod
    def is_pinned_ptr(ptr):
        return next((PinnedInfo(at, size, at) for at, size in locked.items() if at <= ptr < at + size), None)
class plugin:
    name = "acme"
    device_count = staticmethod(lambda: 1)
    device = staticmethod(lambda index: device)
"""
    python_path = announce(tmp_path, "acme", program)
    report = pinning.json("demo", "--device", "acme:0", python_path=python_path)
    assert report["ok"] is True
    assert (report["paths"], report["copies"]) == ({}, [])
    assert [check["what"] for check in report["checks"]][-1] == "the buffers are unlocked"
    said = pinning.text("demo", "--device", "acme:0", python_path=python_path)
    assert "to the device" not in said
    assert "✓ All checks passed." in said


def test_demo_goes_on_without_room_for_a_file(pinning: Pinning) -> None:
    needs_room_to_lock(DEMO)
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    report = pinning.json("demo", "--device", "host", first=full)
    assert report["ok"] is True
    assert [row["buffer"] for row in report["buffers"]] == BUFFERS[:2]
    assert report["missing"]["mapped file"] == "TMPDIR: [Errno 27] File too large"


def test_demo_sees_a_byte_in_the_wrong_place(pinning: Pinning) -> None:
    needs_room_to_lock(DEMO)
    misplacing = """
import pinning
copy = pinning.copy
def misplace(dst, src, *arguments, **names):
    copy(dst, src, *arguments, **names)
    if not isinstance(dst, pinning.Allocation):
        dst[8], dst[9] = dst[9], dst[8]
pinning.copy = misplace
"""
    report = pinning.json("demo", "--device", "host", first=misplacing, exit_code=1)
    assert [check["what"] for check in report["checks"] if not check["ok"]] == ["every byte arrived"]
    said = pinning.text("demo", "--device", "host", first=misplacing, exit_code=1)
    assert "✗ every byte arrived: 8 of 134,217,728 differ" in said
    assert said.index("✗ Failed: every byte arrived") > said.index("Lookup of one pointer")


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("event", "exit_code", "message"),
    [
        ("fail=mlock:{}:11", 1, "mlock failed: EAGAIN (11); "),
        ("interrupt={}", 130, "interrupted; nothing stays locked"),
    ],
    ids=["vendor fails", "Ctrl-C"],
)
def test_demo_cleans_up_after(
    pinning: Pinning, build: Callable[[Driver], Path], event: str, exit_code: int, message: str, number: int
) -> None:
    variables = libhost.DRIVER.environment(build(libhost.DRIVER), event.format(number))
    report = pinning.json("demo", "--device", "host", variables=variables, exit_code=exit_code)
    assert report["ok"] is False
    assert report["error"].startswith(message)


@pytest.mark.parametrize("option", ["--version", "--cmake-dir", "--pkgconfig-dir"])
@pytest.mark.parametrize("first", ["", WITHOUT_CLI], ids=["with typer and rich", "without"])
def test_what_builds_ask_for_needs_no_command(option: str, first: str, pinning: Pinning) -> None:
    done = pinning(option, first=first)
    assert done.returncode == 0, done.stderr
    answer = done.stdout.strip()
    if option == "--version":
        assert re.fullmatch(r"pinning \d+\.\d+\.\d+", answer)
    else:
        assert {path.suffix for path in Path(answer).iterdir()} == {".cmake" if option == "--cmake-dir" else ".pc"}
    assert option in pinning.text("--help")


@pytest.mark.parametrize("first", ["", WITHOUT_CLI], ids=["with typer and rich", "without"])
def test_each_answer_that_builds_ask_for_is_a_line(first: str, pinning: Pinning) -> None:
    options = ["--pkgconfig-dir", "--version", "--cmake-dir"]
    each = "".join(pinning(option).stdout for option in options)
    assert (pinning(*options, first=first).stdout, each.count("\n")) == (each, 3)
    if not first:
        assert len(pinning("--version", "--cmake-dir", "doctor").stdout.splitlines()) == 2, "of the command, nothing"


@pytest.mark.parametrize("command", [["doctor"], ["run", "--help"], []], ids=" ".join)
def test_commands_say_what_to_install(pinning: Pinning, command: list[str]) -> None:
    assert "pip install typer rich" in pinning.text(*command, first=WITHOUT_CLI, exit_code=1)


def test_run_needs_neither_the_commands_libraries_nor_numpy(pinning: Pinning) -> None:
    without = f"{WITHOUT_CLI}; sys.modules['numpy'] = None"
    for options in ([], ["--copies=off", "--report-file", "/dev/null", "--"]):
        done = pinning("run", *options, "printf", "done", first=without)
        assert (done.returncode, done.stdout, done.stderr) == (0, "done", "")


@pytest.mark.parametrize("command", [[], ["doctor"], ["run"]], ids=" ".join)
def test_help_needs_no_numpy(pinning: Pinning, command: list[str]) -> None:
    assert "Usage: pinning" in pinning.text(*command, "--help", first="import sys; sys.modules['numpy'] = None")


@pytest.mark.parametrize("command", [[], ["doctor"], ["top"], ["run"], ["bench"], ["demo"]], ids=" ".join)
def test_help_shows_flags_without_a_value(pinning: Pinning, command: list[str]) -> None:
    said = pinning.text(*command, "--help")
    assert "-h, --help Show this message" in said and "bool" not in said and "..." not in said.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "option", "value", "rule"),
    [
        ("top abc", "PID", "abc", "the number of a process"),
        *(
            (f"top --seconds {value}", "--seconds", value, "a number between 0.1 and 86400")
            for value in ("soon", "0", "nan", "inf", "1e300")
        ),
        ("run --copies maybe true", "--copies", "maybe", "one of off, on"),
        ("run --lock-mapped 1 true", "--lock-mapped", "1", "one of off, on, mandatory"),
    ],
)
def test_a_value_without_meaning_is_named(pinning: Pinning, words: str, option: str, value: str, rule: str) -> None:
    done = pinning(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"Error: Invalid value for '{option}': '{value}' is not {rule}\n")


@pytest.mark.parametrize("command", ["doctor", "doctor --json", "--cmake-dir --version", "--help"])
def test_a_pipe_that_nobody_reads_ends_a_command_as_it_ends_others(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        pinning = [sys.executable, "-m", "pinning", *command.split()]
        done = subprocess.run(pinning, stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_yes_and_no_are_different_in_ascii(pinning: Pinning) -> None:
    ascii = {"PYTHONIOENCODING": "ascii"}
    assert "+ Locking works." in pinning.text("doctor", first=HOST_ALONE, variables=ascii)
    said = pinning.text("doctor", first=HOST_ALONE, variables=ascii, memlock=0, exit_code=1)
    assert "x Locking does not work" in said
    assert "x there is no device '?'" in pinning.text("demo", "--device", "é", variables=ascii, exit_code=1)


def test_python_m_pinning_is_pinning() -> None:
    run = [sys.executable, "-m", "pinning", "doctor", "--help"]
    assert "Usage: pinning doctor" in subprocess.run(run, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("command", [["doctor"], ["doctor", "--json"], ["top", "--once"]], ids=" ".join)
def test_output_that_cannot_be_written(command: list[str]) -> None:
    pinning = [sys.executable, "-m", "pinning", *command]

    def run(*given: str, stdout: IO[str] | int = subprocess.PIPE, **variables: str) -> tuple[int, str, str]:
        environment = {**os.environ, **variables}
        done = subprocess.run(given, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)
        return done.returncode, done.stdout, done.stderr

    with Path("/dev/full").open("w") as full:
        assert run(*pinning, stdout=full) == (1, None, "pinning: [Errno 28] No space left on device\n")
    assert run("sh", "-c", 'exec "$@" >&-', "sh", *pinning) == (0, "", "")
    code, out, err = run(*pinning, PYTHONIOENCODING="ascii", COLUMNS="0")
    assert (code, err) == (0, "")
    assert out


def test_commands_complete_themselves(pinning: Pinning) -> None:
    words = {"_PINNING_COMPLETE": "complete_bash", "COMP_WORDS": "pinning do", "COMP_CWORD": "1"}
    assert pinning(variables=words).stdout.split() == ["doctor"]


def test_an_unknown_device_is_said(pinning: Pinning) -> None:
    assert "there is no device 'acme:3'" in pinning.text("demo", "--device", "acme:3", exit_code=1)


def test_doctor_finds_a_machine_that_can_lock(pinning: Pinning) -> None:
    report = pinning.json("doctor")
    assert report["ok"] is True
    host = report["devices"][-1]
    assert (host["name"], host["locks"], host["problem"]) == ("host:0", True, None)
    assert sum(row["default"] for row in report["devices"]) == 1
    assert {row["name"] for row in report["plugins"]} >= {"host", "cuda"}
    assert 0 < report["memory"]["free"] <= report["memory"]["limit"]
    assert report["huge_pages"] in ("always", "madvise", "never")


def test_doctor_measures_copies(pinning: Pinning) -> None:
    rows = pinning.json("doctor", "--measure", first=HOST_ALONE)["copies"]["host:0"]
    assert [(row["direction"], row["pageable"]["median"] > 0) for row in rows[:1]] == [("to the device", True)]
    said = pinning.text("doctor", "--measure", first=HOST_ALONE)
    table = r"\| GB/s \| size \| pageable, by memcpy \|.* \|---\|.* \| to the device \| \d+ .iB \| [\d.]+ \|"
    assert re.search(table, said), said


def test_doctor_fails_where_nothing_can_be_locked(pinning: Pinning) -> None:
    report = pinning.json("doctor", memlock=0, first=HOST_ALONE, exit_code=1)
    assert report["ok"] is False
    host = report["devices"][-1]
    assert host["locks"] is False
    assert "RLIMIT_MEMLOCK" in host["problem"]
    commands = [advice["command"] for advice in report["advice"]]
    assert "sudo prlimit --memlock=unlimited --pid $$  # in the shell that starts the program" in commands
    cached = f"{HOST_ALONE}; import pinning; pinning.budget(idle=True)"
    said = pinning.text("doctor", memlock=0, first=cached, exit_code=1)
    assert "Locking does not work on host:0" in said and "0 B locked, 0 B idle" in said


def test_doctor_advises_an_ordinary_user(pinning: Pinning) -> None:
    taken = "import mmap, pinning; own = mmap.mmap(-1, 1 << 20); held = pinning.lock(own, device='host')"
    said = pinning.text("doctor", memlock=8 * MIB, first=taken)
    assert re.search(r"\(mlock\) 8 MiB (- )?✓ locks", said)  # with a GPU there is a column for its link
    assert "RLIMIT_MEMLOCK leaves 7 MiB to lock: sudo prlimit --memlock=unlimited --pid $$" in said


def announce(folder: Path, name: str, program: str | None) -> str:
    """Make a distribution with a plugin, and its module unless `program` is None; return the folder to import from."""
    installed = folder / f"{name}-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[pinning.plugins]\n{name} = pinning_{name}:plugin\n")
    if program is not None:
        (folder / f"pinning_{name}.py").write_text(program)
    return str(folder)


def test_the_tightest_memory_is_that_with_the_least_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "system_memory", lambda: Room("the machine", 100, 10, ""))
    monkeypatch.setattr(machine, "cgroup_memory", lambda: iter([Room("a group", 50, 40, ""), Room("all", 90, 11, "")]))
    assert machine.tightest_memory().name == "the machine"


@pytest.mark.parametrize(("release", "told"), [("5.4.0-150-generic", True), ("5.14.0", False), ("10.0", False)])
def test_doctor_advises_a_kernel_that_populates_faster(
    monkeypatch: pytest.MonkeyPatch, release: str, told: bool
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert any("5.14" in each.why for each in doctor._pages()) == told


class BrokenDevice(FakeDevice):
    """All that a device need not have is broken."""

    def _fails(self, *_: object) -> Any:
        raise VendorError("fakeAsk", 7, "FAKE_BROKEN")

    lock_limit = _fails
    can_lock = description = pci_address = property(_fails)


def test_doctor_reports_a_device_whose_properties_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, host = BrokenDevice("broken:0"), device_of_name("host")
    monkeypatch.setattr(doctor.pinning, "devices", lambda: [broken, host])
    first, second = doctor.run().devices
    assert (first.name, first.locks, second.name, second.locks) == ("broken:0", False, "host:0", True)
    assert "FAKE_BROKEN" in (first.problem or "")


def test_doctor_advises_on_the_tightest_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, tight = (Room(name, 1 << 30, free, f"raise {name}") for name, free in (("wide", 1 << 29), ("tight", 1 << 20)))
    monkeypatch.setattr(doctor, "cgroup_memory", lambda: (wide, tight))
    monkeypatch.setattr(doctor, "tightest_memory", lambda: tight)
    said = [each for each in doctor.run().advice if each.command.startswith("raise")]
    assert said == [doctor.Advice("tight leaves 1 MiB", "raise tight")]


def test_doctor_tells_of_arenas_that_nobody_has(pinning: Pinning) -> None:
    make = "import os, pinning; pinning.Arena(4096, [], name='doctor').asarray()[:] = 1; os._exit(0)"
    with TemporaryDirectory(dir=_SHARED_MEMORY) as folder:  # where no other process makes one
        there = f"import pathlib; from pinning.arena import names; names.FOLDER = pathlib.Path({folder!r})"
        subprocess.run([sys.executable, "-W", "ignore", "-c", f"{there}; {make}"], check=True)
        file = Path(folder) / "pinning-arena.doctor"
        (advice,) = [each for each in pinning.json("doctor", first=there)["advice"] if "arena" in each["why"]]
        assert advice["why"].startswith("killed processes have left behind the arena 'doctor', 4")
        assert file.exists()
        subprocess.run(advice["command"], shell=True, check=True)
        assert not file.exists()


def test_doctor_says_which_node_a_device_is_near(pinning: Pinning) -> None:
    first = """
from pathlib import Path
from pinning.machine import numa
numa.nodes = lambda: {0: frozenset([0, 1]), 7: frozenset([4711])}
numa.node_of = lambda device: 7
numa.usable_memory = lambda: frozenset([0, 7])
"""
    report = pinning.json("doctor", first=first)
    assert report["numa_nodes"] == 2
    assert {row["numa_node"] for row in report["devices"]} == {7}
    (advice,) = [each for each in report["advice"] if "node 7" in each["why"]]
    assert "no processor of node 7" in advice["why"]
    assert "--cpunodebind=7" in advice["command"]
    said = pinning.text("doctor", first=first)
    assert "2 nodes" in said
    assert "host:0 is near node 7" in said


def test_doctor_reports_a_plugin_that_does_not_load(pinning: Pinning, tmp_path: Path) -> None:
    python_path = announce(tmp_path, "acme", None)
    report = pinning.json("doctor", python_path=python_path)
    problem = next(row["problem"] for row in report["plugins"] if row["name"] == "acme")
    assert "pinning_acme" in problem
    assert "pinning_acme" in pinning.text("doctor", python_path=python_path)


def test_doctor_names_each_plugins_library(pinning: Pinning) -> None:
    host = pinning.json("doctor")["plugins"][-1]
    assert host["library"] == {"name": "Linux", "version": platform.release()}
    assert (host["devices"], host["problem"], host["warnings"]) == (["host:0"], None, [])
    assert f"host:0 Linux {platform.release()}" in pinning.text("doctor")


ACME = """
from pinning.errors import PluginUnavailableError
from pinning.plugin import Library
class plugin:
    name = "acme"
    device_count = staticmethod(lambda: DEVICES)
    device = None
    @staticmethod
    def library():
        LIBRARY
        return Library("libacme.so.1", "4.2")
    @staticmethod
    def warnings():
        return ["two drivers are installed: remove [one]"]
"""


def test_doctor_shows_the_warnings_of_a_plugin_without_devices(pinning: Pinning, tmp_path: Path) -> None:
    program = ACME.replace("DEVICES", "0").replace("LIBRARY", "")
    python_path = announce(tmp_path, "acme", program)
    row = next(row for row in pinning.json("doctor", python_path=python_path)["plugins"] if row["name"] == "acme")
    assert row == {
        "name": "acme",
        "library": {"name": "libacme.so.1", "version": "4.2"},
        "devices": [],
        "problem": "it finds no device",
        "warnings": ["two drivers are installed: remove [one]"],
    }
    said = pinning.text("doctor", python_path=python_path)
    assert "it finds no device (libacme.so.1 4.2)" in said
    assert "! two drivers are installed: remove [one]" in said


def test_doctor_says_how_hardware_that_is_not_used_comes_into_use(pinning: Pinning, tmp_path: Path) -> None:
    count = "(_ for _ in ()).throw(PluginUnavailableError('libacme.so.1 is missing: pip install acme'))"
    program = (
        ACME.replace("DEVICES", count).replace("LIBRARY", "") + '    hardware = staticmethod(lambda: "an Acme GPU")\n'
    )
    advice = pinning.json("doctor", python_path=announce(tmp_path, "acme", program))["advice"]
    assert {"why": "an Acme GPU is not used: libacme.so.1 is missing", "command": "pip install acme"} in advice


@pytest.mark.parametrize("error", ["PluginUnavailableError('install Acme')", "OSError('gone')"])
def test_doctor_survives_a_plugin_that_cannot_describe_itself(pinning: Pinning, tmp_path: Path, error: str) -> None:
    count = f"(_ for _ in ()).throw({error})"
    python_path = announce(tmp_path, "acme", ACME.replace("DEVICES", count).replace("LIBRARY", f"raise {error}"))
    row = next(row for row in pinning.json("doctor", python_path=python_path)["plugins"] if row["name"] == "acme")
    assert row["library"] is None
    assert row["problem"].endswith(error.split("'")[1])
    assert row["warnings"] == ["two drivers are installed: remove [one]"]


def test_doctor_takes_no_device_for_the_default_that_cannot_lock(pinning: Pinning, tmp_path: Path) -> None:
    program = """
from pinning.errors import VendorError
class device:
    name, can_lock = "acme:0", False
    @staticmethod
    def data_lock(*arguments):
        raise VendorError("acmeLock", 44, "UNSUPPORTED", "its driver cannot lock")
    data_unlock = is_pinned_ptr = staticmethod(lambda ptr: None)
class forgetful(device):
    name, data_lock = "acme:1", staticmethod(lambda ptr, size, read_only: ptr)
class plugin:
    name = "acme"
    device_count = staticmethod(lambda: 2)
    device = staticmethod(lambda index: (device, forgetful)[index])
"""
    python_path = announce(tmp_path, "acme", program)
    rows = {row["name"]: row for row in pinning.json("doctor", python_path=python_path)["devices"]}
    assert "reports that the page is not pinned" in rows["acme:1"]["problem"]
    assert (rows["acme:0"]["default"], rows["acme:0"]["locks"]) == (False, False)
    assert "its driver cannot lock" in rows["acme:0"]["problem"]
    said = pinning.text("doctor", python_path=python_path)
    assert "Locking works." in said
    assert "Locking does not work on acme:0: acmeLock failed: UNSUPPORTED (44); its driver cannot lock" in said


def test_bench_measures_lookups_locks_and_copies(pinning: Pinning) -> None:
    report = pinning.json("bench", "--quick", "--device", "host")
    assert {(row["what"], row["regions"]) for row in report["lookups"]} >= {
        (what, regions)
        for what in ("ptr in PageTable", "PageTable.find", "PageTable.contains_many", "PinnedMap.find")
        for regions in (1, 10_000)
    }
    assert len(report["lock_pairs"]) == 2
    assert {row["memory"] for row in report["registrations"]} >= {"untouched", "touched, 4 KiB pages"}
    assert {row["direction"] for row in report["copies"]} == {"to the device", "from the device"}
    assert min(row["size"] for row in report["copies"]) == 64 << 10
    times = [row["times"] for row in report["lookups"] + report["lock_pairs"]]
    times += [row[kind] for row in report["registrations"] for kind in ("lock", "unlock")]
    times += [row[kind] for row in report["copies"] for kind in ("pageable", "by_pinning", "locked")]
    assert {row["size"] for row in report["batches"]} == {4 << 10, 64 << 10}
    times += [row[kind] for row in report["batches"] for kind in ("loop", "engines")]
    assert all(0 < each["low"] <= each["median"] <= each["high"] for each in times)


def test_bench_fits_itself_to_an_ordinary_users_limit(pinning: Pinning) -> None:
    report = pinning.json("bench", "--quick", "--device", "host", memlock=8 * MIB)
    assert 0 < report["largest"] <= 8 * MIB
    assert report["limited_by"]["remedy"].startswith("sudo prlimit --memlock=unlimited --pid $$  # in the shell")


def test_bench_draws(pinning: Pinning, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    picture = tmp_path / "bench.png"
    # matplotlib caches its list of fonts in MPLCONFIGDIR; that does not count as a file left behind.
    keep_fonts = f"import os; os.environ['MPLCONFIGDIR'] = {str(tmp_path)!r}"
    pinning.text("bench", "--quick", "--device", "host", "--plot", str(picture), first=keep_fonts)
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused = pinning.text("bench", "--plot", str(tmp_path / "bench.xyz"), first=keep_fonts, exit_code=1)
    assert "its suffix is not that of an image; there are" in " ".join(refused.split())


def test_bench_says_what_drawing_needs(pinning: Pinning, tmp_path: Path) -> None:
    without = "import sys; sys.modules['matplotlib'] = None"
    said = pinning.text("bench", "--plot", str(tmp_path / "bench.png"), first=without, exit_code=1)
    assert "pip install matplotlib" in said
