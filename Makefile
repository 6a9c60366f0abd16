# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` need Python 3.11 or newer and a C++ compiler; all else is fetched into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL := $(VENV)/wheel
SOURCES := CMakeLists.txt pyproject.toml README.md LICENSE \
  $(shell find pagetable pinning pinning_command plugins pytest_pinning native -type f -not -name '*.so' -not -path '*/__pycache__/*')

# Intel's OpenCL for CPUs, as in TEST_EXTRAS=test,plot,ur-cpu, is the one vendor's driver that needs no GPU; but 0.7 GB.
TEST_EXTRAS := test,plot

PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

# The source tree's packages lack the native modules: only the installed ones are to be found.
export PYTHONSAFEPATH := 1
# Else each of the tests' many processes would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

.PHONY: demo doctor bench test test-slow test-all lint docs native clean

demo: $(VENV)/installed
	@$(BIN)/pinning demo

doctor: $(VENV)/installed
	@$(BIN)/pinning doctor

bench: $(VENV)/installed
	@$(BIN)/pinning bench

test: $(VENV)/installed-for-tests
	@$(PYTEST) -m "not slow"

test-slow: $(VENV)/installed-for-tests
	@$(PYTEST) -m slow

# In one run, so that no processor waits for the last test of the first group.
test-all: $(VENV)/installed-for-tests
	@$(PYTEST) -m "not sample"

lint: $(VENV)/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/mypy

docs: $(VENV)/installed-for-docs
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/site
	@echo "See build/site/index.html"

# What a C or C++ program builds from, without Python.
native: TARBALL := dist/pinning-native.tar.gz
native:
	@mkdir -p $(dir $(TARBALL))
	@tar -czf $(TARBALL) --transform 's,^,pinning-native/,' LICENSE native pagetable/include pagetable/cmake
	@echo "See $(TARBALL), and in it: cmake -S pinning-native/native -B build"

clean:
	rm -rf $(VENV)

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pinning needs Python 3.11 or newer, and $(PYTHON) is not; name another: make PYTHON=python3.12" >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || { \
	  echo "pinning needs a C++ compiler, such as: sudo apt-get install g++" >&2; exit 1; }
	@$(PYTHON) -c 'import pathlib, sysconfig as s, sys; sys.exit(not pathlib.Path(s.get_path("include"), "Python.h").exists())' || { \
	  echo "pinning needs the headers of $(PYTHON), such as: sudo apt-get install python3-dev" >&2; exit 1; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(WHEEL): $(SOURCES) tools/build_wheel.py tools/stub.py | $(VENV)/made
	@echo "Building pinning: some minutes, once"
	@touch $(VENV)/begun  # sources that are edited meanwhile are newer than the wheel
	@$(BIN)/python tools/build_wheel.py $@
	@touch -r $(VENV)/begun $@

# Two steps, because pip leaves an installed package of the same version as it is.
$(VENV)/installed: $(WHEEL)
	@echo "Installing pinning, its commands and what they need"
	@$(PIP) install --force-reinstall --no-deps $(WHEEL)/*.whl
	@$(PIP) install "$$(echo $(WHEEL)/*.whl)[cli]"
	@touch $@

$(VENV)/installed-for-tests: $(VENV)/installed
	@echo "Installing what the tests need"
	@$(PIP) install "$$(echo $(WHEEL)/*.whl)[$(TEST_EXTRAS)]"
	@touch $@

$(VENV)/installed-for-docs: $(VENV)/installed
	@echo "Installing what makes the site"
	@$(PIP) install "$$(echo $(WHEEL)/*.whl)[docs]"
	@touch $@
