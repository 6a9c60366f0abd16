# SPDX-License-Identifier: Apache-2.0
"""What a program waits for before its first call: ``startup.py ROUNDS [--device NAME] [--beside FOLDER]``.

`import pinning` after NumPy, then the first `pinning.device(NAME)`: milliseconds, and of the processor alone; medians
of fresh processes that take turns with those that use the installation in FOLDER.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial
from statistics import median

from rounds import take_turns

PROGRAM = """
import numpy, sys, time

def now(): return time.perf_counter(), time.process_time()

begin = now()
import pinning
imported = now()
pinning.device(sys.argv[1])
ready = now()
print(*(1000 * (b - a) for pair in ((begin, imported), (imported, ready)) for a, b in zip(*pair)))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--device", default="host:0")
    parser.add_argument("--beside", metavar="FOLDER", help="another installation")
    asked = parser.parse_args()
    installations = {"this": os.environ.get("PYTHONPATH", "")}
    if asked.beside:
        installations["beside"] = asked.beside
    figures: dict[str, list[list[float]]] = {name: [] for name in installations}

    def measure(name: str) -> None:
        command = [sys.executable, "-P", "-c", PROGRAM, asked.device]
        environment = {**os.environ, "PYTHONPATH": installations[name]}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        figures[name].append([float(figure) for figure in done.stdout.split()])

    take_turns(asked.rounds, [partial(measure, name) for name in installations])
    for name, rows in figures.items():
        whole, processor, device, device_processor = (median(column) for column in zip(*rows, strict=True))
        print(f"{name:8} import {whole:6.1f} ms ({processor:.1f} of the processor), ", end="")
        print(f"device({asked.device!r}) {device:6.1f} ms ({device_processor:.1f})")


if __name__ == "__main__":
    main()
