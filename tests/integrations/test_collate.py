# SPDX-License-Identifier: Apache-2.0
"""`pinning.torch.Collate`: batches of torch's DataLoader in locked memory that its workers write to."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import defaultdict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pinning
from fake_device import FakeDevice
from pinning import InvalidRangeError

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch.utils.data import DataLoader, default_collate  # noqa: E402

from pinning.torch import Collate, slots  # noqa: E402
from torch_samples import Killed, Numbers, Stream  # noqa: E402

MINUTE = 60
NBYTES, BATCHES = 16 << 10, 8


@pytest.fixture
def collate() -> Iterator[Collate]:
    made = Collate(NBYTES, BATCHES, device="host:0")
    yield made
    del made
    gc.collect()


def in_arena(tensor: Any) -> bool:
    return pinning.is_locked(tensor, device="host:0")


def check(batch: Any, first: int, count: int = 4, locked: bool = True) -> None:
    expected = default_collate([Numbers()[at] for at in range(first, first + count)])
    assert torch.equal(batch["tensor"], expected["tensor"])
    assert torch.equal(batch["pair"][0], expected["pair"][0])
    assert torch.equal(batch["pair"][1], expected["pair"][1])
    assert batch["text"] == expected["text"]
    assert {in_arena(each) for each in (batch["tensor"], *batch["pair"])} == {locked}


def check_epoch(loader: Any) -> None:
    for number, batch in enumerate(loader):
        check(batch, 4 * number)
    assert number == 9


@pytest.mark.parametrize(
    ("workers", "start"), [(0, None), (1, "fork"), (2, "fork"), (1, "spawn"), (1, "forkserver")], ids=str
)
def test_batches_are_locked_whoever_makes_them(collate: Collate, workers: int, start: str | None) -> None:
    loader = DataLoader(
        Numbers(), 4, num_workers=workers, multiprocessing_context=start, collate_fn=collate, timeout=workers and MINUTE
    )
    check_epoch(loader)
    assert collate.missed == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_stay_do_for_many_epochs(collate: Collate, workers: int) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=workers, collate_fn=collate, persistent_workers=True, timeout=MINUTE)
    for _ in range(3):
        check_epoch(loader)
    for _ in zip(range(3), loader, strict=False):
        pass  # an epoch that is broken off
    check_epoch(loader)
    assert collate.missed == 0


def test_epochs_that_are_broken_off_lose_no_memory(collate: Collate) -> None:
    """The memory of batches in transit when the workers ended is reused."""
    for _ in range(3):
        loader = DataLoader(Numbers(), 4, num_workers=2, collate_fn=collate, timeout=MINUTE)
        check(next(iter(loader)), 0)
        gc.collect()
    held = [collate([Numbers()[0]]) for _ in range(BATCHES + 1)]
    del held
    held = [collate([Numbers()[at] for at in range(4)]) for _ in range(BATCHES)]
    for batch in held:
        check(batch, 0)


def test_a_batch_that_is_kept_stays_and_others_come_plain(collate: Collate) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=1, collate_fn=collate, timeout=MINUTE)
    kept = list(loader)
    for number, batch in enumerate(kept):
        check(batch, 4 * number, locked=number < BATCHES)
    assert collate.missed == 10 - BATCHES
    view = kept[0]["tensor"][1:2, 5:]
    kept.clear()
    (batch,) = DataLoader(Numbers(4), 4, collate_fn=collate)
    check(batch, 0)
    assert view.eq(1).all(), "a view keeps its batch's memory"


def test_what_is_too_large_is_not_locked_and_the_rest_is(collate: Collate) -> None:
    samples = [{"large": torch.zeros(NBYTES), "small": torch.ones(5)}]
    batch = collate(samples)
    assert not in_arena(batch["large"]) and in_arena(batch["small"])
    assert collate.missed == 1
    (batch,) = DataLoader(samples, 1, num_workers=1, collate_fn=collate, timeout=MINUTE)
    assert not in_arena(batch["large"]) and in_arena(batch["small"])
    assert batch["large"].shape == (1, NBYTES) and batch["small"].eq(1).all()
    assert collate.missed == 2


Pair = namedtuple("Pair", "a b")


def by_hand(samples: list[Any]) -> Any:
    both = default_collate(samples)
    found = defaultdict(list, tensor=both["tensor"].t(), rest=Pair(both["pair"][0], {"empty": torch.empty(0, 3)}))
    found["odd"] = [torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.bfloat16), None]
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_another_collate_function_s_batches_are_copied_there(workers: int) -> None:
    collate = Collate(NBYTES, BATCHES, by_hand, device="host:0")
    for number, batch in enumerate(
        DataLoader(Numbers(), 4, num_workers=workers, collate_fn=collate, timeout=workers and MINUTE)
    ):
        assert type(batch) is defaultdict and batch.default_factory is list
        assert in_arena(batch["tensor"]) and batch["tensor"].stride() == (1, 100)
        assert batch["tensor"][0].tolist() == list(range(4 * number, 4 * number + 4))
        assert in_arena(batch["rest"].a) and batch["rest"].b["empty"].shape == (0, 3)
        assert batch["odd"][0].is_sparse and batch["odd"][1].eq(1).all() and batch["odd"][2] is None
    assert collate.missed == 0


def test_a_worker_that_is_killed_costs_its_loader_and_no_memory(collate: Collate) -> None:
    loader = DataLoader(Killed(), 4, num_workers=2, collate_fn=collate, timeout=MINUTE)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed"):
        for _ in loader:
            pass
    del loader
    gc.collect()
    held = [collate([Numbers()[0]]) for _ in range(BATCHES + 1)]
    del held
    assert all(in_arena(collate([torch.ones(3)])) for _ in range(BATCHES))
    check_epoch(DataLoader(Numbers(), 4, num_workers=2, collate_fn=collate, timeout=MINUTE))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_sample_costs_no_memory(workers: int) -> None:
    collate = Collate(NBYTES, 1, device="host:0")
    samples = [torch.ones(3), torch.ones(4)]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(DataLoader(samples, 2, num_workers=workers, collate_fn=collate, timeout=workers and MINUTE))
    assert in_arena(collate([torch.ones(3)])) and collate.missed == 0


def test_a_stream_s_workers_end_one_by_one(collate: Collate) -> None:
    found = list(DataLoader(Stream(), 4, num_workers=2, collate_fn=collate, timeout=MINUTE))
    assert sorted(batch[0, 0].item() for batch in found) == sorted([4.0 * number for number in range(10)] * 2)
    assert sum(map(in_arena, found)) == BATCHES


def test_a_process_that_is_no_worker_has_plain_batches(collate: Collate) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(in_arena(collate([torch.ones(3)])))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert in_arena(collate([torch.ones(3)]))


def test_its_memory_goes_with_the_last_batch() -> None:
    before = {region.start for region in pinning.regions("host:0")}  # those of other tests may go meanwhile
    collate = Collate(NBYTES, BATCHES, device="host:0")
    batch = collate([torch.ones(3)])
    del collate
    gc.collect()
    assert in_arena(batch) and batch.eq(1).all()
    del batch
    end = time.monotonic() + MINUTE
    while {region.start for region in pinning.regions("host:0")} - before:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("nbytes", "batches", "text"), [(0, 1, "nbytes is 0;"), (1, 0, "batches is 0;"), (1, 257, "batches is 257;")]
)
def test_wrong_sizes_are_refused(nbytes: int, batches: int, text: str) -> None:
    with pytest.raises(InvalidRangeError, match=text):
        Collate(nbytes, batches, device="host:0")


def test_only_workers_can_have_it(collate: Collate) -> None:
    with pytest.raises(RuntimeError, match="through inheritance"):
        pickle.dumps(collate)


def test_block_is_reused_after_the_gpu_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch had GPUs; of them, only the wait exists."""
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(slots, "device", str)
    monkeypatch.setattr(slots, "synchronize_in_background", waited.append)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index == 1, raising=False)
    device = FakeDevice()
    collate = Collate(NBYTES, 2, device=device)
    batches = [collate([torch.ones(3)]) for _ in range(2)]
    assert waited == []
    del batches
    end = time.monotonic() + MINUTE
    while not pinning.is_locked(collate([torch.ones(3)]), device=device):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert set(waited) == {"cuda:1"}


def test_slots_that_go_before_the_gpu_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(slots, "device", str)
    monkeypatch.setattr(slots, "synchronize_in_background", lambda _: done.wait(MINUTE))
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda _: True, raising=False)
    before = set(threading.enumerate())
    device = FakeDevice()
    collate = Collate(NBYTES, 1, device=device)
    (thread,) = (each for each in set(threading.enumerate()) - before if each.name == "pinning slots")
    batch = collate([torch.ones(3)])
    assert pinning.is_locked(batch, device=device)
    del collate, batch
    gc.collect()
    done.set()
    thread.join(MINUTE)
    assert not thread.is_alive()
    assert raised == []


CTRL_C = """
import os, signal, threading, torch, pinning.torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, at):
        if at in (100, 500):  # once more, because Python ignores what is raised in a destructor
            os.kill(os.getppid(), signal.SIGINT)
        return torch.ones(10)

collate = pinning.torch.Collate(4096, 6, device="host:0")
try:
    for batch in DataLoader(Numbers(), 4, num_workers=2, collate_fn=collate, timeout=60):
        pass
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=5 * MINUTE)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_wrong_arguments_are_refused_by_name() -> None:
    for arguments, text in (
        (("x", 2), "nbytes is 'x'; it must be an integer"),
        ((NBYTES, 1.5), "batches is 1.5; it must be an integer"),
        ((NBYTES, 2, 5), "collate_fn is 5; it must be a function"),
    ):
        with pytest.raises(TypeError, match=text):
            Collate(*arguments, device="host:0")
