# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Python wrapper of the C++ page table."""

from cpython.long cimport PyLong_Check
from cpython.number cimport PyNumber_Index
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cython.operator cimport dereference
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset
from libcpp.optional cimport optional
from libcpp.vector cimport vector

from pagetable.native cimport CRegion

from typing import TYPE_CHECKING

import numpy

from pagetable.errors import AbsentError, OverlapError, RangeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import SupportsIndex

    from numpy.typing import ArrayLike, NDArray


cdef class Region:
    """Region(start, size, id)\n--\n\nThe half-open byte range ``[start, end)`` of one region.

    Parameters
    ----------
    start, size, id : int
        The values of the attributes.

    Attributes
    ----------
    start : int
        The first byte's address.
    size : int
        Bytes.
    end : int
        One past the last byte's address, up to 2**64.
    id : int
        Small, unique among the regions in the table; reused after the region is removed.
    """

    def __init__(self, start: int, size: int, id: int) -> None:
        self.start = checked(start, "start")
        self.size = checked(size, "size")
        self.id = checked(id, "id")

    @property
    def end(self) -> int:
        """One past the last byte; 2**64 for a region that reaches the top of the address space."""
        return int(self.start) + self.size

    def __eq__(self, other):
        if not isinstance(other, Region):
            return NotImplemented
        cdef Region that = other
        return self.start == that.start and self.size == that.size and self.id == that.id

    def __hash__(self) -> int:
        return hash((self.start, self.size, self.id))

    def __repr__(self):
        return f"Region(start={self.start:#x}, size={self.size}, id={self.id})"

    def __reduce__(self):
        return Region, (self.start, self.size, self.id)


cdef inline uint64_t word(object value, str what) except? 0xFFFFFFFFFFFFFFFF:
    # Cython would silently round floats.
    return value if PyLong_Check(value) else index(value, what)


cdef object index(object value, str what):
    try:
        return PyNumber_Index(value)
    except TypeError:
        raise TypeError(f"{what} is {said(value)}; it must be an integer. For many at once, use contains_many and "
                        "find_many") from None


cdef str said(object value):
    if isinstance(value, (str, float, type(None))):
        return repr(value)
    return f"of type {type(value).__name__}"


cdef uint64_t checked(object value, str what) except? 0xFFFFFFFFFFFFFFFF:
    try:
        return word(value, what)
    except OverflowError:
        raise RangeError(f"{what} {value} is not in [0, 2**64)") from None


# Functions rather than methods, which Cython would call through a vtable.

cdef inline Region wrap(PageTable table, const CRegion& found):
    cdef Region region
    if found.id < table.made_length and table.made[found.id] != NULL:
        region = <Region>table.made[found.id]
        if region.start == found.start and region.size == found.size:
            return region
    return make(table, found)


cdef Region make(PageTable table, const CRegion& found):
    cdef uint32_t length
    cdef PyObject** longer
    if found.id >= table.made_length:
        length = found.id + found.id // 2 + 16
        longer = <PyObject**>realloc(table.made, length * sizeof(PyObject*))
        if longer == NULL:
            raise MemoryError
        memset(longer + table.made_length, 0, (length - table.made_length) * sizeof(PyObject*))
        table.made = longer
        table.made_length = length
    cdef Region region = Region.__new__(Region)
    region.start = found.start
    region.size = found.size
    region.id = found.id
    Py_INCREF(region)
    Py_XDECREF(table.made[found.id])
    table.made[found.id] = <PyObject*>region
    return region


cdef class PageTable:
    """PageTable(*, flat=True)\n--\n\nDisjoint half-open byte ranges below 2**64, of any alignment, found by address.

    Lookups take no lock and may run in any number of threads while others insert and remove; each answer is correct
    as of one instant. Insertions and removals take turns.

    Parameters
    ----------
    flat : bool
        False omits the large reservations of address space (128 GiB, none of it memory), as happens automatically if
        the system refuses them. Lookups are then slower.
    """

    def __cinit__(self, *_refused: object, flat: bool = True) -> None:
        if _refused:
            raise TypeError(f"a PageTable takes no positional argument, such as {type(_refused[0]).__name__}; give none, "
                            "or flat=False")
        if flat is not True and flat is not False:
            raise TypeError(f"flat is {said(flat)}; it must be True or False")
        self.table = new CPageTable(flat)

    def __dealloc__(self):
        for id in range(self.made_length):
            Py_XDECREF(self.made[id])
        free(self.made)
        del self.table

    def insert(self, start: int, size: int) -> Region:
        """Add ``[start, start + size)`` (bytes).

        Parameters
        ----------
        start : int
            The first byte's address.
        size : int
            Bytes, at least 1.

        Returns
        -------
        Region
            The new region.

        Raises
        ------
        OverlapError
            Any of its bytes is in another region; nothing was changed.
        RangeError
            `size` is 0, or the range is not inside ``[0, 2**64)``.
        """
        cdef uint64_t first = checked(start, "start")
        cdef uint64_t count = checked(size, "size")
        if count == 0:
            raise RangeError(f"a region at {start:#x} needs at least one byte, not 0")
        if first + (count - 1) < first:
            raise RangeError(f"{count} bytes from {start:#x} run past the top of the address space, 2**64")
        cdef CRegion inserted
        try:
            inserted = self.table.insert(first, count)
            try:
                return wrap(self, inserted)
            except MemoryError:
                self.table.remove(first)
                raise
        except ValueError:
            pass  # the region is looked up below; by then other threads may have changed the table
        taken = self.overlapping(first, count) or ["a region just removed"]
        raise OverlapError(f"[{first:#x}, {int(first) + count:#x}) overlaps {taken[0]}; remove it first")

    def remove(self, region: Region | SupportsIndex) -> None:
        """Remove a region, given as a Region or by its first address.

        Parameters
        ----------
        region : Region or int
            A region of the table, or the address of its first byte.

        Raises
        ------
        AbsentError
            It is not in the table (a KeyError).
        """
        cdef uint64_t start
        cdef optional[CRegion] removed
        if isinstance(region, Region):
            start = (<Region>region).start
            if self.find(start) != region:
                raise AbsentError(f"{region!r} is not in the table")
        else:
            start = checked(region, "start")
        removed = self.table.remove(start)
        if not removed.has_value():
            raise AbsentError(f"no region starts at {start:#x}")

    # An int outside [0, 2**64) is valid here: no region holds it.

    def find(self, address: SupportsIndex) -> Region | None:
        """The region that holds the byte at `address`."""
        cdef uint64_t at
        try:
            at = word(address, "address")
        except OverflowError:
            return None
        cdef optional[CRegion] found = self.table.find(at)
        return wrap(self, dereference(found)) if found.has_value() else None

    def find_range(self, start: SupportsIndex, size: SupportsIndex) -> Region | None:
        """The region that holds every byte of ``[start, start + size)``; None when `size` is 0.

        Parameters
        ----------
        start, size : int
            Address and bytes.

        Returns
        -------
        Region or None
            None if no region holds all of them.
        """
        cdef uint64_t at, count
        try:
            at = word(start, "start")
            count = word(size, "size")
        except OverflowError:
            return None
        cdef optional[CRegion] found = self.table.find_range(at, count)
        return wrap(self, dereference(found)) if found.has_value() else None

    def __contains__(self, address: SupportsIndex) -> bool:
        cdef uint64_t at
        try:
            at = word(address, "address")
        except OverflowError:
            return False
        return self.table.contains(at)

    def __len__(self) -> int:
        return self.table.size()

    def __iter__(self) -> Iterator[Region]:
        """All regions in ascending order, as of the call."""
        cdef vector[CRegion] regions
        with nogil:
            regions = self.table.regions()
        cdef CRegion region
        return iter([wrap(self, region) for region in regions])

    def overlapping(self, start: int, size: int) -> list[Region]:
        """Every region that shares a byte with ``[start, start + size)``, ascending.

        Parameters
        ----------
        start, size : int
            Address and bytes; 0 bytes share nothing.
        """
        cdef uint64_t first = checked(start, "start")
        size = min(index(size, "size"), 2**64 - int(first))
        if size == 2**64:  # does not fit in a word
            return list(self)
        cdef uint64_t count = checked(size, "size")
        cdef vector[CRegion] regions
        if count == 0:
            return []
        with nogil:
            regions = self.table.overlapping(first, count)
        cdef CRegion region
        return [wrap(self, region) for region in regions]

    def contains_many(self, addresses: ArrayLike, sizes: ArrayLike | None = None) -> NDArray[numpy.bool_]:
        """For each address, whether one region holds it, or all of its `sizes` bytes if given. Runs without the GIL.

        Parameters
        ----------
        addresses : array_like of int, shape (n,)
            uint64 without a copy.
        sizes : array_like of int, shape (n,) or (), optional
            Bytes.
        """
        cdef const uint64_t[::1] at = words(addresses)
        cdef const uint64_t[::1] length
        cdef Py_ssize_t i, n = at.shape[0]
        answers = numpy.empty(n, dtype=numpy.bool_)
        cdef uint8_t[::1] answer = answers.view(numpy.uint8)
        cdef CPageTable* table = self.table
        if sizes is None:
            with nogil:
                for i in range(n):
                    answer[i] = table.contains(at[i])
            return answers
        length = words(one_for_each(sizes, n))
        with nogil:
            for i in range(n):
                answer[i] = table.find_range(at[i], length[i]).has_value()
        return answers

    def find_many(self, addresses: ArrayLike) -> NDArray[numpy.int64]:
        """For each address the id of the region that holds it, or -1; shape (n,). Runs without the GIL.

        Parameters
        ----------
        addresses : array_like of int, shape (n,)
            uint64 without a copy.
        """
        cdef const uint64_t[::1] at = words(addresses)
        cdef Py_ssize_t i, n = at.shape[0]
        ids = numpy.empty(n, dtype=numpy.int64)
        cdef int64_t[::1] answer = ids
        cdef CPageTable* table = self.table
        cdef optional[CRegion] found
        with nogil:
            for i in range(n):
                found = table.find(at[i])
                answer[i] = dereference(found).id if found.has_value() else -1
        return ids

    def __reduce__(self):
        raise TypeError("a PageTable is neither copied nor pickled; insert its regions into another")

    def __repr__(self):
        return f"<PageTable of {len(self)} regions>"


cdef object one_for_each(object sizes, Py_ssize_t n):
    array = numpy.asarray(sizes)
    if array.shape not in ((), (1,), (n,)):
        raise RangeError(f"sizes have shape {array.shape}; give one size, or one for each of {n} addresses")
    return numpy.broadcast_to(words(sizes) if array.ndim else array, n)


cdef object words(object given):
    """A contiguous one-dimensional uint64 array of the values; TypeError for floats, which cannot name every byte."""
    array = numpy.asarray(given)
    if array.dtype.kind in "fO" and isinstance(given, (list, tuple)):  # numpy's dtype for ints on both sides of 2**63
        array = numpy.array([checked(value, "address") for value in given], dtype=numpy.uint64)
    if array.size == 0:
        array = array.astype(numpy.uint64)
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise TypeError(
            f"addresses and sizes are one-dimensional arrays of integers, not {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise RangeError(f"{array.min()} is not in [0, 2**64); view signed pointers as uint64")
    return numpy.ascontiguousarray(array, dtype=numpy.uint64)
