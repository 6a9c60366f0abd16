# SPDX-License-Identifier: Apache-2.0
"""`tools/stub.py`: the stub of a Cython module says what its annotations say; what it cannot express is an error."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent

import pytest

from installed import ROOT

pytest.importorskip("Cython", reason="needs Cython: pip install cython")


def program() -> Callable[[list[str]], int]:
    spec = spec_from_file_location("stub", ROOT / "tools" / "stub.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main  # type: ignore[no-any-return]


stubs_of = program()


class Package:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "package"
        self.folder.mkdir()
        self.stubs = folder / "stubs"

    def write(self, pyx: str, pxd: str = "") -> None:
        (self.folder / "module.pyx").write_text(dedent(pyx))
        if pxd:
            (self.folder / "module.pxd").write_text(dedent(pxd))

    def run(self) -> int:
        return stubs_of([str(self.stubs), str(self.folder)])

    def stub(self, pyx: str, pxd: str = "") -> str:
        self.write(pyx, pxd)
        assert self.run() == 0
        stub = self.stubs / "package" / "module.pyi"
        return stub.read_text() if stub.exists() else ""


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


STUBS = {
    "a function": ("def f(a: int, b: str = 'x') -> bool: pass", "def f(a: int, b: str = 'x') -> bool: ..."),
    "kinds of parameters": (
        "def f(a: int, /, b: int, *c: int, d: int = 1, **e: int) -> None: pass",
        "def f(a: int, /, b: int, *c: int, d: int = 1, **e: int) -> None: ...",
    ),
    "a parameter by position alone": ("def f(a: int, /) -> None: pass", "def f(a: int, /) -> None: ..."),
    "a parameter by name alone": ("def f(*, a: int) -> None: pass", "def f(*, a: int) -> None: ..."),
    "a default that is no constant": ("def f(a: int = g()) -> None: pass", "def f(a: int = ...) -> None: ..."),
    "C types": (
        """
        from libc.stdint cimport uint64_t
        def f(uint64_t a, bint b, double c, unsigned d, str e not None, bytes g) -> None: pass
        """,
        "def f(a: int, b: bool, c: float, d: int, e: str, g: bytes | None) -> None: ...",
    ),
    "an annotation beside a C type": (
        "def f(list a not None: list[int], object b: int | None = None) -> None: pass",
        "def f(a: list[int], b: int | None = None) -> None: ...",
    ),
    "a class that is cimported": (
        """
        from other.module cimport Thing, Unused
        def f(Thing a not None, Thing b) -> Thing: pass
        """,
        """
        from other.module import Thing
        def f(a: Thing, b: Thing | None) -> Thing: ...
        """,
    ),
    "imports that an annotation uses": (
        """
        import os
        import numpy
        from pathlib import Path
        def f(a: numpy.dtype, b: Path) -> None: pass
        """,
        """
        from pathlib import Path
        import numpy
        def f(a: numpy.dtype, b: Path) -> None: ...
        """,
    ),
    "a cpdef function": (
        "cpdef tuple f(object a):  # type: (list[int]) -> tuple[int, ...]\n    pass",
        "def f(a: list[int]) -> tuple[int, ...]: ...",
    ),
    "a cdef class that has a base for its users": (
        """
        from collections.abc import Sized
        cdef class A:  # type: Sized
            def __len__(self) -> int: return 0
        """,
        "from collections.abc import Sized\nclass A(Sized):\n    def __len__(self) -> int: ...",
    ),
    "what only the stub needs": (
        """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import numpy
            from typing import Protocol, TypeVar

            T = TypeVar("T")

            class Has(Protocol):
                def size(self) -> int: ...

        def f(a: T, b: Has) -> numpy.dtype: pass
        """,
        """
        from typing import Protocol
        from typing import TypeVar
        import numpy
        T = TypeVar('T')
        class Has(Protocol):
            def size(self) -> int: ...
        def f(a: T, b: Has) -> numpy.dtype: ...
        """,
    ),
    "a variable": ("LIMIT: int = 3\nKNOWN: dict[str, int]\nother = 3", "LIMIT: int\nKNOWN: dict[str, int]"),
    "a cdef class": (
        """
        cimport cython
        from other.module cimport Base

        @cython.final
        cdef class A(Base):
            cdef int hidden
            cdef readonly int shown

            def __init__(self, int a) -> None: pass
            def __dealloc__(self): pass
            def __repr__(self): return ""
            def __enter__(self) -> Self: return self
            cdef int internal(self): return 1

            @property
            def end(self) -> int: return 1

            @staticmethod
            def make(int a) -> A: pass

            @classmethod
            def over(cls, a: object = None) -> A: pass
        """,
        """
        from other.module import Base
        from typing import Self
        from typing import final
        @final
        class A(Base):
            @property
            def shown(self) -> int: ...
            def __init__(self, a: int) -> None: ...
            def __enter__(self) -> Self: ...
            @property
            def end(self) -> int: ...
            @staticmethod
            def make(a: int) -> A: ...
            @classmethod
            def over(cls, a: object = None) -> A: ...
        """,
    ),
    "__cinit__ and a buffer": (
        """
        cdef class A:
            def __cinit__(self, int a, *, bint b=False) -> None: pass
            def __getbuffer__(self, Py_buffer* view, int flags): pass
        """,
        """
        from typing import Self
        class A:
            def __new__(cls, a: int, *, b: bool = False) -> Self: ...
            def __buffer__(self, flags: int, /) -> memoryview: ...
        """,
    ),
    "overloads": (
        """
        from typing import overload
        cdef class A:
            # @overload
            # def f(self, a: int) -> int: ...
            # @overload
            # def f(self, a: str) -> str: ...
            def f(self, a): pass
        """,
        """
        from typing import overload
        class A:
            @overload
            def f(self, a: int) -> int: ...
            @overload
            def f(self, a: str) -> str: ...
        """,
    ),
    "a context manager": (
        """
        from collections.abc import Iterator
        from contextlib import contextmanager
        @contextmanager
        def f() -> Iterator[int]: pass
        """,
        """
        from collections.abc import Iterator
        from contextlib import contextmanager
        @contextmanager
        def f() -> Iterator[int]: ...
        """,
    ),
    "Python classes": (
        """
        from enum import IntEnum
        from typing import Generic, NamedTuple, TypeVar
        T = TypeVar("T")
        class Pair(NamedTuple):
            a: int
            b: str = "x"
        class Kind(IntEnum):
            ONE = 1
        class Bag(Generic[T]):
            def add(self, a: T) -> None: pass
        """,
        """
        from enum import IntEnum
        from typing import Generic
        from typing import NamedTuple
        from typing import TypeVar
        T = TypeVar('T')
        class Pair(NamedTuple):
            a: int
            b: str = 'x'
        class Kind(IntEnum):
            ONE = 1
        class Bag(Generic[T]):
            def add(self, a: T) -> None: ...
        """,
    ),
    "what is internal": (
        """
        cdef extern from "<unistd.h>":
            int getpid()
        cdef enum:
            MOST = 4
        cdef class A:
            cdef readonly object a
            def f(self): pass
        cdef int g(): return MOST
        def _h(a): pass
        print(getpid())
        """,
        "",
    ),
}


@pytest.mark.parametrize("name", STUBS)
def test_the_stub_of(package: Package, name: str) -> None:
    pyx, expected = STUBS[name]
    assert ast.unparse(ast.parse(package.stub(pyx))) == ast.unparse(ast.parse(dedent(expected)))


def test_attributes_are_those_that_the_pxd_declares(package: Package) -> None:
    stub = package.stub(
        "from typing import Any\ncdef class A: pass",
        """
        cdef class A:
            cdef int hidden
            cdef readonly object a  # type: Any  # the caller's
            cdef public list b  # type: list[int]
            cdef readonly bint c
            cdef int internal(self)
        """,
    )
    assert ast.unparse(ast.parse(stub)) == ast.unparse(
        ast.parse(
            "from typing import Any\n"
            "class A:\n"
            "    @property\n    def a(self) -> Any: ...\n"
            "    b: list[int]\n"
            "    @property\n    def c(self) -> bool: ...\n"
        )
    )


def test_a_base_that_is_internal_is_left_out(package: Package) -> None:
    (package.folder / "work.pyx").write_text("cdef class Work: pass\n")
    stub = package.stub("from package.work cimport Work\ncdef class A(Work):\n    def f(self) -> None: pass\n")
    assert ast.unparse(ast.parse(stub)) == "class A:\n\n    def f(self) -> None:\n        ..."


def test_an_error_that_mypy_is_to_ignore_stays_so(package: Package) -> None:
    stub = package.stub("cdef class A:\n    def f(self) -> None:  # type: ignore[override]  # why\n        pass\n")
    assert "def f(self) -> None: ...  # type: ignore[override]\n" in stub


REFUSED = {
    "f has no ->": "\ndef f(a: int): pass",
    "g has no ->": "cdef class A:\n    def f(self) -> None: pass\n\n    def g(self): pass",
    "a has no type": "\ndef f(a) -> None: pass",
    "rest has no type": "\ndef f(*rest) -> None: pass",
    "list does not tell the type": "\ndef f(list a) -> None: pass",
    "object does not tell the type": "cdef class A:\n    cdef readonly object a\n    def f(self) -> None: pass",
    "f has no type comment": "\ncpdef int f(int a): return a",
    "Thing is neither imported nor defined": "\ndef f(a: Thing) -> None: pass",
    "the decorator lru_cache(1) is not known": "\n@lru_cache(1)\ndef f() -> None: pass",
    "async def is not known": "\nasync def f() -> None: pass",
    "import ... as np is not known": "\nimport numpy as np",
    "Thing is imported under TYPE_CHECKING": "\nif TYPE_CHECKING:\n    from other import Thing\ndef f() -> int: pass",
    "'print()' is not known under TYPE_CHECKING": "\nif TYPE_CHECKING:\n    print()",
    "TryExceptStatNode is not known": "\ntry:\n    def f() -> None: pass\nexcept Exception:\n    pass",
    "IfStatNode is not known": "\nif 1:\n    def f() -> None: pass",
    "Expected": "\ndef f(:",
}


@pytest.mark.parametrize("problem", REFUSED)
def test_unknown_constructs_are_errors_with_file_and_line(
    package: Package, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    package.write(REFUSED[problem])
    assert package.run() == 1
    error = capsys.readouterr().err
    line = 4 if problem.startswith("g ") else 2
    assert f"{package.folder / 'module.pyx'}:{line}" in error
    assert problem in error


def test_a_stub_whose_module_is_gone_goes(package: Package) -> None:
    package.stub("def f() -> None: pass")
    (package.folder / "module.pyx").rename(package.folder / "other.pyx")
    assert package.run() == 0
    assert [path.name for path in package.stubs.rglob("*.pyi")] == ["other.pyi"]
