# SPDX-License-Identifier: Apache-2.0
"""``python -m pagetable``: where the C++ headers and the CMake package are."""

import argparse

import pagetable


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pagetable", description="Where to find the C++ page table.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--cmake-dir", action="store_true", help="for find_package: cmake -Dpagetable_DIR=...")
    which.add_argument("--include-dir", action="store_true", help="for the compiler: -I...")
    print(pagetable.cmake_dir() if parser.parse_args().cmake_dir else pagetable.include_dir())


if __name__ == "__main__":
    main()
