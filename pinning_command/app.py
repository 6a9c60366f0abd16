# SPDX-License-Identifier: Apache-2.0
"""The command line: ``pinning demo``, ``doctor``, ``bench``, ``run`` and ``top``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinning_command import run as running
from pinning_command.answers import ANSWERS

if TYPE_CHECKING:
    from pinning.plugin import Device

# Each command imports what it needs, because `pinning` takes a while.
warnings.filterwarnings("ignore", "the host is the default device")  # `doctor` reports this, with a remedy


class LockMapped(StrEnum):
    """The values of `PINNING_LOCK_MAPPED`."""

    OFF = "off"
    ON = "on"
    MANDATORY = "mandatory"


class Copies(StrEnum):
    """The values of `PINNING_COPIES`."""

    OFF = "off"
    ON = "on"


app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # with it, some versions show flags as if they took a value: --json <bool>
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Lock host memory for devices, inspect what is locked, and measure copies.",
)


def _parser(convert: Callable[[str], Any], rule: str) -> Callable[[str], Any]:
    """A conversion that refuses a value by its name and a rule, which typer does in some versions only."""

    def parse(value: str) -> Any:
        try:
            return convert(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not {rule}") from None

    return parse


def _interval(value: str) -> float:
    if not 0.1 <= float(value) <= 86_400:
        raise ValueError
    return float(value)


_Name = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="A device such as cuda:0; default: the best one.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


@app.command()
def demo(device: _Name = None, json: _Json = False) -> None:
    """Lock, look up, copy, compare and unlock real buffers."""
    from pinning.cli import demo as demonstrating
    from pinning.cli import demo_view
    from pinning.cli.output import console, print_json, progress_bar

    with _failures(json), progress_bar(quiet=json) as step:
        report = demonstrating.run(_device(device), step)
    if json:
        print_json(report, ok=report.ok)
    else:
        demo_view.show(report, console())
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def doctor(
    json: _Json = False,
    measure: Annotated[bool, typer.Option("--measure", help="Also measure copies, to paste into an issue.")] = False,
) -> None:
    """Report what can be locked here, and what would help. Exits with 1 if nothing can be locked."""
    from pinning.cli import doctor as examining
    from pinning.cli import doctor_view
    from pinning.cli.output import console, print_json, progress_bar

    report = examining.run()
    if not json:
        doctor_view.show(report, console())
    if measure:
        with _failures(json), progress_bar(quiet=json) as step:
            report = replace(report, copies=examining.measure(step))
    if json:
        print_json(report, ok=report.ok)
    elif measure:
        doctor_view.show_copies(report, console())
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def bench(
    device: _Name = None,
    json: _Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", dir_okay=False, help="Also draw the results.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take a few seconds instead of most of a minute.")] = False,
) -> None:
    """Measure lookups, locks and copies on this machine."""
    from pinning.cli import bench as benching
    from pinning.cli import bench_view
    from pinning.cli.output import console, print_json, progress_bar

    with _failures(json):
        if plot and not find_spec("matplotlib"):
            raise ModuleNotFoundError("--plot needs matplotlib: pip install matplotlib")
        if plot and not plot.absolute().parent.is_dir():
            raise FileNotFoundError(f"--plot {plot}: there is no folder {plot.absolute().parent}")
        if plot:
            from pinning.cli.plot import check_format

            check_format(plot)
        with progress_bar(quiet=json) as step:
            report = benching.run(_device(device), benching.QUICK if quick else benching.FULL, step)
    if json:
        print_json(report)
    else:
        bench_view.show(report, console())
    if plot:
        from pinning.cli.plot import draw

        with _failures(as_json=False):  # the one object of JSON is printed
            draw(report, plot)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGUMENTS]...", help="The program to run, usually after --.")
    ],
    lock_mapped: Annotated[
        LockMapped | None,
        typer.Option(
            metavar="off|on|mandatory",
            parser=_parser(LockMapped, "one of off, on, mandatory"),
            help="Overrides PINNING_LOCK_MAPPED; default: on.",
        ),
    ] = None,
    copies: Annotated[
        Copies | None,
        typer.Option(
            metavar="off|on",
            parser=_parser(Copies, "one of off, on"),
            help="Overrides PINNING_COPIES; off only records copies; default: on.",
        ),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Report at exit what was locked and copied.")] = False,
    report_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report to a file instead of standard error."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write a timeline for Perfetto.")] = None,
) -> None:
    """Run a program with staged copies and locked buffers.

    These are its CUDA copies of ordinary memory, and the buffers that OpenMP maps to devices.
    """
    given = {
        "--lock-mapped": lock_mapped,
        "--copies": copies,
        "--report": "-" if report else None,
        "--report-file": report_file,
        "--trace": trace,
    }
    raise typer.Exit(running.start(program, {name: str(value) for name, value in given.items() if value}))


@app.command()
def top(
    pid: Annotated[
        int | None,
        typer.Argument(
            metavar="PID", parser=_parser(int, "the number of a process"), help="One process; default: all of yours."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, as without a terminal.")] = False,
    json: _Json = False,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            parser=_parser(_interval, "a number between 0.1 and 86400"),
            help="Seconds between updates, 0.1 to 86400.",
        ),
    ] = 1.0,
) -> None:
    """Show what processes have locked, its owners, and their copies. Works for a hung process too."""
    from pinning.cli import status, top_view
    from pinning.cli.output import console, print_json, say_error

    def look() -> list[status.Status]:
        return status.all_status() if pid is None else [status.status_of(pid)]

    try:
        if json:
            print_json({"processes": look()})
        elif once or not sys.stdout.isatty():
            top_view.show(look(), pid is not None, console())
        else:
            top_view.watch(look, pid is not None, seconds, console())
    except status.NoStatusError as error:
        say_error(str(error), json)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    cmake_dir: Annotated[bool, typer.Option("--cmake-dir", help="For find_package: -Dpinning_DIR=...")] = False,
    pkgconfig_dir: Annotated[bool, typer.Option("--pkgconfig-dir", help="For PKG_CONFIG_PATH.")] = False,
) -> None:
    asked = {"--version": version, "--cmake-dir": cmake_dir, "--pkgconfig-dir": pkgconfig_dir}
    for option in (name for name, given in asked.items() if given):
        typer.echo(ANSWERS[option]())
    if any(asked.values()):
        raise typer.Exit


def _device(name: str | None) -> Device:
    import pinning

    return pinning.default_device() if name is None else pinning.device(name)


@contextmanager
def _failures(as_json: bool) -> Iterator[None]:
    """Report an error without a traceback and exit with 1, or with 130 after Ctrl-C."""
    import pinning
    from pinning.cli.output import say_error

    try:
        yield
    except (pinning.PinningError, OSError, MemoryError, ImportError) as error:
        say_error(str(error) or type(error).__name__, as_json)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say_error("interrupted; nothing stays locked", as_json)
        raise typer.Exit(130) from None
