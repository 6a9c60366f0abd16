# SPDX-License-Identifier: Apache-2.0
"""The page table as a Python user meets it: errors, ids, arrays, threads, small address spaces, memory."""

from __future__ import annotations

import pickle
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

import pagetable
from installed import tool
from pagetable import AbsentError, OverlapError, PageTable, RangeError, Region

PAGE = 4096
TOP = 2**64


@pytest.fixture(params=[True, False], ids=["flat", "pooled"])
def table(request: pytest.FixtureRequest) -> PageTable:
    return PageTable(flat=request.param)


# ---- errors ----


@pytest.mark.parametrize(
    ("start", "size"),
    [
        (990, 11),  # reaches into its start
        (1999, 1000),  # starts at its last byte
        (900, 2000),  # around it
        (1200, 10),  # inside
        (1000, 1000),  # the same
        (1000, 1),
        (0, TOP - 1),
    ],
)
def test_an_overlap_is_refused_and_names_both_ranges(table: PageTable, start: int, size: int) -> None:
    region = table.insert(1000, 1000)
    with pytest.raises(OverlapError) as refusal:
        table.insert(start, size)
    assert f"[{start:#x}, {start + size:#x})" in str(refusal.value)
    assert str(region) in str(refusal.value)
    assert isinstance(refusal.value, ValueError)
    assert list(table) == [region]
    table.insert(999, 1)
    table.insert(2000, 1)


@pytest.mark.parametrize(
    ("start", "size"), [(5, 0), (5, -1), (-1, 5), (TOP, 1), (TOP - 1, 2), (1, TOP), (0, TOP), (0, 2**70)]
)
def test_a_range_that_is_none_is_refused(table: PageTable, start: int, size: int) -> None:
    with pytest.raises(RangeError, match=r"2\*\*64|at least one byte"):
        table.insert(start, size)
    assert len(table) == 0


def test_the_last_byte_of_all_can_be_held(table: PageTable) -> None:
    region = table.insert(TOP - 1, 1)
    assert region.end == TOP
    assert table.find(TOP - 1) == region
    assert table.find_range(TOP - 1, 1) == region
    assert table.find_range(TOP - 1, 2) is None
    assert table.overlapping(0, TOP) == table.overlapping(1, TOP) == [region]


def test_absent_is_a_key_error_that_reads_well(table: PageTable) -> None:
    table.insert(1000, 1000)
    with pytest.raises(KeyError) as absent:
        table.remove(1500)
    assert str(absent.value) == "no region starts at 0x5dc"
    assert type(absent.value) is AbsentError
    assert len(table) == 1


def test_a_region_that_was_removed_is_not_removed_twice(table: PageTable) -> None:
    old = table.insert(1000, 1000)
    table.remove(old)
    with pytest.raises(AbsentError, match="size=1000"):
        table.remove(old)
    new = table.insert(1000, 10)
    with pytest.raises(AbsentError, match="size=1000"):
        table.remove(old)
    other = table.insert(1, 1)
    for each in (new, other):
        table.remove(each)
    again = table.insert(1000, 1000)  # the same range, and another id
    assert again.id != new.id
    for gone in (old, new):
        with pytest.raises(AbsentError):
            table.remove(gone)
    assert list(table) == [again]


def test_an_address_outside_all_memory_is_in_no_region(table: PageTable) -> None:
    table.insert(TOP - 10, 10)
    table.insert(0, 10)
    for address in (-1, TOP, 10**30, -(10**30)):
        assert address not in table
        assert table.find(address) is None
        assert table.find_range(address, 1) is None
    assert table.find_range(5, -1) is None


Call = Callable[[PageTable, object], object]
ONE_NUMBER: dict[str, Call] = {
    "insert start": lambda table, value: table.insert(value, 1),  # type: ignore[arg-type]
    "insert size": lambda table, value: table.insert(1, value),  # type: ignore[arg-type]
    "remove": lambda table, value: table.remove(value),  # type: ignore[arg-type]
    "find": lambda table, value: table.find(value),  # type: ignore[arg-type]
    "find_range start": lambda table, value: table.find_range(value, 1),  # type: ignore[arg-type]
    "find_range size": lambda table, value: table.find_range(1, value),  # type: ignore[arg-type]
    "overlapping start": lambda table, value: table.overlapping(value, 1),  # type: ignore[arg-type]
    "overlapping size": lambda table, value: table.overlapping(1, value),  # type: ignore[arg-type]
    "in": lambda table, value: value in table,
}


@pytest.mark.parametrize("call", ONE_NUMBER.values(), ids=ONE_NUMBER)
@pytest.mark.parametrize(
    "value", [4096.0, numpy.float64(4096), numpy.float32(4096), None, "4096", b"4096", [4096]], ids=repr
)
def test_what_is_no_integer_is_no_address(table: PageTable, call: Call, value: object) -> None:
    region = table.insert(4096, 4096)
    with pytest.raises(TypeError):
        call(table, value)
    assert list(table) == [region]


class Pointer:
    def __index__(self) -> int:
        return 4096


INTEGERS = [numpy.uint64, numpy.int64, numpy.int32, numpy.uint16, lambda _: Pointer(), numpy.array]


@pytest.mark.parametrize("integer", INTEGERS, ids=["uint64", "int64", "int32", "uint16", "__index__", "0-d array"])
def test_other_integers_are_addresses(table: PageTable, integer: Callable[[int], int]) -> None:
    region = table.insert(integer(4096), integer(4096))
    assert (region.start, region.size) == (4096, 4096)
    assert integer(4096) in table
    assert table.find(integer(4096)) == region == table.find_range(integer(4096), integer(4096))
    assert table.overlapping(integer(4096), integer(4096)) == [region]
    with pytest.raises(OverlapError, match="0x1000, 0x2000"):
        table.insert(integer(4096), integer(4096))
    table.remove(integer(4096))
    assert len(table) == 0
    table.insert(2**64 - 4096, 4096)
    with pytest.raises(OverlapError, match="0xfffffffffffff000, 0x10000000000000000"):
        table.insert(2**64 - 4096, integer(4096))


@pytest.mark.parametrize("size", [numpy.uint8(16), numpy.int64(16)], ids=repr)
def test_integers_of_two_types_do_not_disturb_each_other(table: PageTable, size: int) -> None:
    region = table.insert(2**63, 1)
    with pytest.raises(OverlapError):
        table.insert(numpy.uint64(2**63 - 1), size)  # type: ignore[arg-type]
    assert table.overlapping(numpy.uint64(2**63 - 1), size) == [region]  # type: ignore[arg-type]


# ---- regions ----


def test_a_region_is_a_value() -> None:
    region = Region(TOP - 2, 2, 5)
    assert (region.start, region.size, region.end, region.id) == (TOP - 2, 2, TOP, 5)
    assert region == Region(TOP - 2, 2, 5)
    assert hash(region) == hash(Region(TOP - 2, 2, 5))
    assert len({region, Region(TOP - 2, 2, 6), Region(TOP - 2, 1, 5), Region(TOP - 3, 2, 5)}) == 4
    assert region != (TOP - 2, 2, 5)
    assert repr(region) == "Region(start=0xfffffffffffffffe, size=2, id=5)"
    assert pickle.loads(pickle.dumps(region)) == region
    with pytest.raises(AttributeError):
        region.start = 0  # type: ignore[misc]


def test_a_table_says_how_many_it_holds_and_cannot_be_pickled(table: PageTable) -> None:
    table.insert(0, 1)
    table.insert(1, 1)
    assert repr(table) == "<PageTable of 2 regions>"
    with pytest.raises(TypeError):
        pickle.dumps(table)


def test_a_region_asked_for_stays_as_it_was(table: PageTable) -> None:
    old = table.insert(PAGE, 100)
    assert table.find(PAGE) is table.find(PAGE + 99)
    table.remove(old)
    new = table.insert(PAGE, 200)
    assert (old.size, new.size) == (100, 200)
    assert table.find(PAGE) == new == table.find(PAGE + 199)
    assert table.find_range(PAGE, 200) == new
    assert list(table) == table.overlapping(PAGE, 1) == [new]


def test_iteration_is_of_the_regions_at_the_call(table: PageTable) -> None:
    first, second = table.insert(PAGE, 1), table.insert(2 * PAGE, 1)
    everyone = iter(table)
    table.remove(second)
    table.insert(3 * PAGE, 1)
    assert list(everyone) == [first, second]


def test_a_region_outlives_its_table() -> None:
    region = PageTable().insert(PAGE, 100)
    assert (region.start, region.size) == (PAGE, 100)


def test_ids_are_small_unique_and_used_again(table: PageTable) -> None:
    regions = [table.insert(i * 100, 50) for i in range(1000)]
    assert sorted(region.id for region in regions) == sorted({region.id for region in regions})
    for region in regions[::2]:
        table.remove(region)
    for i in range(0, 1000, 2):
        table.insert(i * 100 + 7, 3)
    ids = [region.id for region in table]
    assert len(set(ids)) == 1000
    assert max(ids) < 1000  # so a caller can keep its own data in an array of 1000


def test_a_removed_region_is_freed_even_if_its_number_is_used_again(table: PageTable) -> None:
    before = sys.getallocatedblocks()
    for start in range(PAGE, 1001 * PAGE, PAGE):  # new addresses: new objects
        table.remove(table.insert(start, PAGE))
    assert sys.getallocatedblocks() - before < 500


# ---- all at random; the table itself: tests/native/page_table_model.cpp ----


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("top", [1 << 14, TOP], ids=["from 0 on", "up to 2**64"])
def test_it_answers_as_a_list_of_ranges_does(table: PageTable, top: int, seed: int) -> None:
    draw, model, gone = random.Random(seed), dict[int, Region](), list[Region]()

    def holder(start: int, size: int) -> Region | None:
        return next((each for each in model.values() if each.start <= start and start + size <= each.end), None)

    for _ in range(200):
        start = top - (1 << 14) + draw.randrange(1 << 14)
        size = min(draw.choice([1, 15, 16, 17, 100, PAGE]), top - start)
        meeting = sorted(each for each in model if each < start + size and start < model[each].end)
        assert [each.start for each in table.overlapping(start, size)] == meeting
        if not meeting:
            model[start] = table.insert(start, size)
        elif draw.random() < 0.5:
            gone.append(model.pop(meeting[0]))
            table.remove(draw.choice([gone[-1], gone[-1].start]))
        else:
            with pytest.raises(OverlapError):
                table.insert(start, size)
        if gone and gone[-1] not in model.values():
            with pytest.raises(AbsentError):
                table.remove(gone[-1])
        assert list(table) == sorted(model.values(), key=lambda each: each.start)
        asked = [each + at for each in (start, *meeting) for at in (-1, 0, size - 1, size) if 0 <= each + at < TOP]
        found = [holder(each, 1) for each in asked]
        assert [table.find(each) for each in asked] == found
        assert table.find_many(asked).tolist() == [-1 if each is None else each.id for each in found]
        assert [table.find_range(each, size) for each in asked] == [holder(each, size) for each in asked]
        words = numpy.array(asked, numpy.uint64)
        assert table.contains_many(words, size).tolist() == [holder(each, size) is not None for each in asked]


# ---- batches ----


@pytest.fixture
def ten_pages(table: PageTable) -> PageTable:
    for i in range(10):
        table.insert(i * 2 * PAGE, PAGE)
    return table


ARRAYS: dict[str, Callable[[list[int]], object]] = {
    "list": lambda values: values,
    "tuple": tuple,
    "uint64": lambda values: numpy.array(values, numpy.uint64),
    "int64": lambda values: numpy.array(values, numpy.int64),
    "uint32": lambda values: numpy.array(values, numpy.uint32),
    "int16": lambda values: numpy.array(values, numpy.int16),
    "big-endian": lambda values: numpy.array(values, ">u8"),
    "every second": lambda values: numpy.repeat(numpy.array(values, numpy.uint64), 2)[::2],
    "backwards": lambda values: numpy.array(values[::-1], numpy.uint64)[::-1],
    "column": lambda values: numpy.array([values, values], numpy.uint64).T[:, 0],
    "unaligned": lambda values: numpy.frombuffer(
        b"x" + numpy.array(values, numpy.uint64).tobytes(), numpy.uint64, offset=1
    ),
    "memoryview": lambda values: memoryview(numpy.array(values, numpy.uint64)),
    "of numpy scalars": lambda values: [numpy.uint64(value) for value in values],
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_a_batch_of_any_kind(ten_pages: PageTable, make: Callable[[list[int]], object]) -> None:
    asked = [0, PAGE - 1, PAGE, 2 * PAGE + 5, 7 * PAGE, 100]
    sizes = [PAGE, 1, 1, PAGE - 5, 1, PAGE]
    found = ten_pages.contains_many(make(asked))  # type: ignore[arg-type]
    assert found.dtype == numpy.bool_
    assert found.tolist() == [True, True, False, True, False, True]
    whole = ten_pages.contains_many(make(asked), make(sizes))  # type: ignore[arg-type]
    assert whole.tolist() == [True, True, False, True, False, False]
    ids = ten_pages.find_many(make(asked))  # type: ignore[arg-type]
    assert ids.dtype == numpy.int64
    regions = [ten_pages.find(address) for address in asked]
    assert ids.tolist() == [-1 if region is None else region.id for region in regions]


def test_one_size_for_all(ten_pages: PageTable) -> None:
    for size in (5, numpy.uint64(5), numpy.array(5), [5]):
        assert ten_pages.contains_many([PAGE - 5, PAGE - 4], size).tolist() == [True, False]
    assert ten_pages.contains_many([0, 1], 0).tolist() == [False, False]


@pytest.mark.parametrize("nothing", [[], (), numpy.empty(0), numpy.empty(0, numpy.uint64)], ids=repr)
def test_an_empty_batch(ten_pages: PageTable, nothing: object) -> None:
    assert ten_pages.contains_many(nothing).tolist() == []  # type: ignore[arg-type]
    assert ten_pages.contains_many(nothing, nothing).tolist() == []  # type: ignore[arg-type]
    assert ten_pages.find_many(nothing).tolist() == []  # type: ignore[arg-type]
    assert ten_pages.find_many(nothing).dtype == numpy.int64  # type: ignore[arg-type]


NO_NUMBERS = [None, "abc", [1.5], [None], ["1"], [True], numpy.array([1.0])]
NO_ROW = [1.5, 0, numpy.uint64(0), [[1]], numpy.empty((0, 3))]


@pytest.mark.parametrize("wrong", NO_NUMBERS + NO_ROW, ids=repr)
def test_what_is_no_array_of_integers_is_no_batch(ten_pages: PageTable, wrong: object) -> None:
    for call in (ten_pages.contains_many, ten_pages.find_many):
        with pytest.raises(TypeError):
            call(wrong)  # type: ignore[operator]


@pytest.mark.parametrize("wrong", [[-1], numpy.array([0, -1]), [TOP], [-1, TOP - 1]], ids=repr)
def test_a_batch_has_no_addresses_outside_all_memory(table: PageTable, wrong: object) -> None:
    table.insert(0, 2**20)
    table.insert(TOP - 10, 10)  # where -1 would lie if it were taken for an address
    for call in (table.contains_many, table.find_many):
        with pytest.raises(RangeError, match=r"2\*\*64"):
            call(wrong)  # type: ignore[operator]


@pytest.mark.parametrize("sizes", [[1, 2, 3], [], [[1], [2]]], ids=repr)
def test_sizes_that_do_not_match(ten_pages: PageTable, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="give one size, or one for each of 2 addresses"):
        ten_pages.contains_many([0, 1], sizes)


def test_sizes_that_are_none(ten_pages: PageTable) -> None:
    with pytest.raises(RangeError):
        ten_pages.contains_many([0], -1)
    with pytest.raises(TypeError):
        ten_pages.contains_many([0], 1.0)


def test_read_only_arrays_are_read_in_place(ten_pages: PageTable) -> None:
    asked = numpy.arange(0, 20 * PAGE, 100, dtype=numpy.uint64)
    asked.flags.writeable = False
    assert ten_pages.contains_many(asked, asked * 0 + 1).sum() == ten_pages.contains_many(asked).sum() > 0
    assert (ten_pages.find_many(asked) >= 0).sum() == ten_pages.contains_many(asked).sum()


def test_sizes_on_both_sides_of_the_largest_signed_integer(table: PageTable) -> None:
    table.insert(0, 2**63)
    assert table.contains_many([0, 0], [1, 2**63]).tolist() == [True, True]
    assert table.contains_many([0, 0], [1, 2**63 + 1]).tolist() == [True, False]


# ---- threads ----


@pytest.fixture
def gil_kept_until_released() -> Iterator[None]:
    """No thread is interrupted: another one runs only when this one releases the GIL."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def runs_meanwhile(call: Callable[[], object], times: int = 500) -> bool:
    """Whether another thread runs before `call` has been called `times` times."""
    seen = threading.Event()
    started = threading.Lock()
    started.acquire()

    def other() -> None:
        started.acquire()  # waits without the GIL
        seen.set()

    thread = threading.Thread(target=other)
    thread.start()
    started.release()
    answer = False
    for _ in range(times):
        call()
        if seen.is_set():
            answer = True
            break
    thread.join()
    return answer


BATCHES: dict[str, Callable[[PageTable, numpy.ndarray], object]] = {
    "contains_many": lambda table, asked: table.contains_many(asked),
    "contains_many with sizes": lambda table, asked: table.contains_many(asked, asked),
    "find_many": lambda table, asked: table.find_many(asked),
    "iteration": lambda table, _: iter(table),
    "overlapping": lambda table, _: table.overlapping(0, 2**47),
}


@pytest.mark.usefixtures("gil_kept_until_released")
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_other_threads_run_during_a_batch(
    table: PageTable, batch: Callable[[PageTable, numpy.ndarray], object]
) -> None:
    for i in range(50_000):
        table.insert(i * PAGE, 100)
    asked = numpy.zeros(100_000, numpy.uint64)
    assert runs_meanwhile(lambda: batch(table, asked))


@pytest.mark.usefixtures("gil_kept_until_released")
def test_other_threads_do_not_run_during_a_lookup(ten_pages: PageTable) -> None:
    """Shows that the test above can fail."""
    assert not runs_meanwhile(lambda: [ten_pages.find(0) for _ in range(1000)], times=50)


# ---- little address space ----

LIMITED = """
import resource, sys
import numpy, pagetable

def reserved():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

spare = bytearray(2**26)  # for the program itself, once the table has filled its own
before = reserved()
limit = before + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""

FALLBACK = (
    LIMITED
    + """
table = pagetable.PageTable()
assert reserved() - before < 2**30, "this is not the table without reservations"
regions = [table.insert(i * 3 * 4096 + (i % 7) * 2**40, 4096 + i % 100) for i in range(20_000)]
starts = numpy.array([region.start for region in regions], dtype=numpy.uint64)
ends = numpy.array([region.end for region in regions], dtype=numpy.uint64)
assert (table.find_many(starts) == [region.id for region in regions]).all()
assert table.contains_many(ends - numpy.uint64(1)).all() and not table.contains_many(ends).any()
for region in regions[::2]:
    table.remove(region)
assert table.contains_many(starts).tolist() == [False, True] * 10_000
assert list(table) == sorted(regions[1::2], key=lambda region: region.start)
"""
)

FULL = (
    LIMITED
    + """
table = pagetable.PageTable()
full, step = 0, 513 * 4096
try:
    while full < 5_000_000:
        table.insert(full * step, 100)
        full += 1
except MemoryError:
    del spare
assert 1000 < len(table) == full < 5_000_000
starts = range(0, full * step, step)
assert table.contains_many(starts).all()
assert full * step not in table and len(list(table)) == full
for start in starts[::2]:
    table.remove(start)
assert table.contains_many(starts).tolist() == [i % 2 == 1 for i in range(full)]
for start in starts[: full // 2 : 2]:
    table.insert(start, 200)
assert table.contains_many(starts[: full // 2]).all()
"""
)


def python(program: str, *arguments: object) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_works_under_a_limit_on_address_space() -> None:
    python(FALLBACK, 2**30)


def test_a_full_table_says_so_and_goes_on_working() -> None:
    python(FULL, 40 * 2**20)


def test_no_room_at_all_is_a_memory_error() -> None:
    refused = "try: pagetable.PageTable()\nexcept MemoryError as error: sys.exit('ulimit -v' not in str(error))\n"
    python(f"{LIMITED}{refused}sys.exit('there was room')", 2**20)


# ---- memory ----

RESIDENT = r"""
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <pagetable/page_table.hpp>
long resident() {
  long total, pages;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld %ld", &total, &pages) != 2) std::abort();
  std::fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}
int main(int, char** arguments) {
  bool const flat = std::atol(arguments[1]);
  unsigned long const count = std::atol(arguments[2]), size = std::atol(arguments[3]), step = std::atol(arguments[4]);
  long const before = resident();
  pagetable::PageTable<> table(flat);
  for (unsigned long i = 0; i < count; ++i) table.insert(0x7000'0000'0000 - (i + 1) * step, size);
  std::printf("%ld\n", resident() - before);
}
"""


@pytest.fixture(scope="session")
def resident_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = tool("c++", "apt-get install g++")
    folder = tmp_path_factory.mktemp("resident")
    source, program = folder / "resident.cpp", folder / "resident"
    source.write_text(RESIDENT)
    subprocess.run([compiler, "-std=c++20", "-O1", f"-I{pagetable.include_dir()}", source, "-o", program], check=True)
    return program


@pytest.mark.parametrize("flat", [1, 0], ids=["flat", "pooled"])
@pytest.mark.parametrize(
    ("count", "size", "step"),
    [(1_000_000, 4096, 8192), (1_000, 64 * 2**30 - 12345, 64 * 2**30)],
    ids=["a million pages", "a thousand of 64 GiB"],
)
def test_memory_for_each_region(resident_program: Path, flat: int, count: int, size: int, step: int) -> None:
    numbers = [str(number) for number in (flat, count, size, step)]
    resident = int(subprocess.run([resident_program, *numbers], capture_output=True, check=True, text=True).stdout)
    assert 32 * count < resident <= 96 * count + 4 * 2**20


def test_regions_that_come_and_go_take_no_more_memory() -> None:
    """Nine pages of 2 MiB are too many for one cache line, so the memory that describes them is divided each time."""
    python(
        """
import pagetable
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
table, starts = pagetable.PageTable(), range(2**40, 2**40 + 9 * 8192, 8192)
def come_and_go(times):
    for _ in range(times):
        for start in starts: table.insert(start, 4096)
        for start in starts: table.remove(start)
come_and_go(1000)
before = resident()
come_and_go(100_000)
assert resident() - before < 2 * 2**20
"""
    )


def test_an_unlimited_process_gets_the_large_reservation() -> None:
    """Without it lookups are slower. It takes address space, and no memory."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("needs a process without RLIMIT_AS")
    python(
        """
import pagetable
def pages(): return [int(word) for word in open("/proc/self/statm").read().split()[:2]]
for _ in range(300): pagetable.PageTable()  # which give back what they took
before = pages()
table = pagetable.PageTable()
table.insert(2**40, 2**30)
after = pages()
assert (after[0] - before[0]) * 4096 > 2**36
assert (after[1] - before[1]) * 4096 < 4 * 2**20
"""
    )
