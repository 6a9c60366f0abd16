# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program whose memory sleeps and wakes at its addresses, on a real GPU."""

from __future__ import annotations

import copy
import gc
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress

import torch

import pinning
from pinning.torch import park, sleep, sleep_async, sleepable, sleeping, wake, wake_async

MIB = 1 << 20


def free() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]  # type: ignore[no-any-return]


def given_back(before: int, least: int) -> int:
    """How much more is free than before, once that is `least`; programs beside this one take and give memory too."""
    end = time.monotonic() + 60
    while (given := free() - before) < least and time.monotonic() < end:
        time.sleep(0.1)
    return given


if sys.argv[1:] == ["touch"]:
    with sleepable():
        tensor = torch.ones(4 * MIB, device="cuda")
    sleep(keep=False)
    try:
        print(tensor.sum().item())
    except Exception as error:
        print(f"touched: {error}")
    sys.exit(0)

torch.manual_seed(1)


def transformer() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


# A captured graph, tied and strided tensors, and all memory given back.
with sleepable("weights"):
    model = transformer().cuda().eval()
    model.register_buffer("base", torch.arange(120.0, device="cuda").reshape(10, 12))
    model.register_buffer("view", model.base.t()[2:5])
    model.layers[1].linear1.weight = model.layers[0].linear1.weight
    data = torch.randn(8, 64, 512, device="cuda")
    large = torch.randint(0, 100, (300 * MIB,), dtype=torch.uint8, device="cuda")
with sleepable("graph") as pool:
    pass
graph, own = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.no_grad():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(data)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = model(data)
    with torch.cuda.graph(own, pool=pool.id):
        found_own = model(data)
for each in (graph, own):
    each.replay()
want, want_own = found.clone(), found_own.clone()
contents = {name: each.detach().clone() for name, each in model.state_dict().items()}
large_before = large.cpu()
addresses = [each.data_ptr() for each in (*model.parameters(), *model.buffers(), data, large)]
segments = sum(len(p.snapshot()) for tag in sleeping._tags.values() for p in tag.pools)
assert segments >= 3, "the memory is ours"
torch.cuda.empty_cache()
stats = torch.cuda.memory_stats()["allocated_bytes.all.current"]
for how in ("all", "own link", "async"):
    before = free()
    if how == "async":
        events = [sleep_async(tag) for tag in ("weights", "graph")]
        for event in events:
            event.wait()
    else:
        sleep(links="own" if how == "own link" else "idle")
    taken = sum(s["total_size"] for tag in sleeping._tags.values() for p in tag.pools for s in p.snapshot())
    given = given_back(before, taken - 4 * MIB)
    assert given >= taken - 4 * MIB, (given, taken)
    filler = torch.full((taken // 2,), 77, dtype=torch.uint8, device="cuda")  # others use the memory
    del filler
    torch.cuda.empty_cache()
    if how == "async":
        *layers, rest = wake_async("weights", model.layers)
        layers[0].wait()
        assert torch.equal(model.layers[0].linear2.weight, contents["layers.0.linear2.weight"])
        rest.wait()
        wake_async("graph")[-1].wait()
    else:
        wake("graph", "weights")
    assert [each.data_ptr() for each in (*model.parameters(), *model.buffers(), data, large)] == addresses
    assert all(torch.equal(each, contents[name]) for name, each in model.state_dict().items())
    assert torch.equal(large.cpu(), large_before)
    found.zero_()
    found_own.zero_()
    graph.replay()
    own.replay()
    assert torch.equal(found, want) and torch.equal(found_own, want_own), how
assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == stats
model.base[0, 2] = -1
assert model.view[0, 0] == -1

# An optimizer: steps after a wake are those without one.
plain = copy.deepcopy(model)
with sleepable("optimizer"):
    adam = torch.optim.Adam(model.parameters(), foreach=False)
    model(data).square().sum().backward()
    adam.step()
other = torch.optim.Adam(plain.parameters(), foreach=False)
plain(data).square().sum().backward()
other.step()
for _ in range(2):
    sleep("optimizer", "weights")
    wake("weights", "optimizer")
    for net, optimizer in ((model, adam), (plain, other)):
        optimizer.zero_grad()
        net(data).square().sum().backward()
        optimizer.step()
assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
adam.zero_grad()
parked = torch.nn.Linear(2000, 2000).cuda()
weight = parked.weight.detach().clone()
park(parked)
sleep()
wake()
wake(parked)
assert torch.equal(parked.weight, weight)

# Tags in random order, against a model; contexts nested, and on several threads.
choice = random.Random(3)
names = ["a", "b", "c", "d"]
with sleepable("a"):
    made = {"a": [torch.zeros(20 * MIB, dtype=torch.uint8, device="cuda")]}
    with sleepable("b"):
        made["b"] = [torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")]
        with sleepable("a"):
            made["a"].append(torch.zeros(1000, dtype=torch.uint8, device="cuda"))
    made["a"].append(torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda"))


def allocate(name: str) -> None:
    for _ in range(10):
        with sleepable(name):
            made.setdefault(name, []).append(torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda"))


threads = [threading.Thread(target=allocate, args=("cd"[at % 2],)) for at in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for name in names:
    ranges = [(s["address"], s["address"] + s["total_size"]) for p in sleeping._tags[name].pools for s in p.snapshot()]
    assert all(any(low <= t.data_ptr() < high for low, high in ranges) for t in made[name]), name
values, asleep = {name: [0] * len(made[name]) for name in names}, set()
for _ in range(200):
    name = choice.choice(names)
    if name in asleep:
        wake(name)
        asleep.discard(name)
    elif choice.random() < 0.5:
        sleep(name)
        asleep.add(name)
    else:
        at = choice.randrange(len(made[name]))
        values[name][at] = choice.randrange(256)
        made[name][at].fill_(values[name][at])
    for each in set(names) - asleep:
        assert all((t == v).all() for t, v in zip(made[each], values[each], strict=True)), each
wake()

# One tag on two GPUs, which reach each other's memory.
if torch.cuda.device_count() > 1:
    plain = torch.randint(0, 100, (5 * MIB,), device="cuda:1")
    with sleepable("both"), sleepable("both", "cuda:1"):
        both = [torch.randint(0, 100, (5 * MIB,), device=each) for each in ("cuda:0", "cuda:1")]
    host = [each.cpu() for each in both]
    for _ in range(2):
        sleep("both")
        wake("both")
        assert all(torch.equal(a.cpu(), b) for a, b in zip(both, host, strict=True))
        assert torch.equal(both[0].to("cuda:1"), both[0].cpu().to("cuda:1"))
        both[0].copy_(plain)
        both[1].copy_(both[0])
        assert torch.equal(both[1], plain)
        host = [each.cpu() for each in both]

# Too little of the GPU's memory is left: nothing is lost, and a second try works. Tests beside this one keep some GiB.
with sleepable("bulk"):
    bulk = torch.full((min(4096 * MIB, free() // 4),), 7, dtype=torch.uint8, device="cuda")
sleep("bulk")
rest = []
for _ in range(20):
    while (spare := free() - bulk.numel() // 2) > 0:
        with suppress(torch.OutOfMemoryError):  # another program was faster
            rest.append(torch.empty(spare // 2 + 16 * MIB, dtype=torch.uint8, device="cuda"))
    try:
        wake("bulk")
    except pinning.OutOfMemoryError as error:
        print(error)
        break
    sleep("bulk")  # another program has given memory back meanwhile
else:
    raise AssertionError("there was no room")
rest.clear()  # in torch's cache, which is emptied
wake("bulk")
assert bulk.eq(7).all()
del bulk

# Tags whose tensors are gone are given back.
before = free()
made.clear()
gc.collect()
for name in names:
    sleep(name)
assert given_back(before, 150 * MIB) >= 150 * MIB
assert not [p for name in names for p in sleeping._tags[name].pools]

done = subprocess.run([sys.executable, __file__, "touch"], capture_output=True, text=True, timeout=120)
print(done.stdout.strip().splitlines()[0])
assert "illegal memory access" in done.stdout, done.stdout + done.stderr
print("sleep: all right")
