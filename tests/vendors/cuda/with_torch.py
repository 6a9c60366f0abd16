# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program with pinning.torch, on a real GPU."""

from __future__ import annotations

import copy
import gc
import time

import torch

import pinning
import pinning.torch

torch.manual_seed(1)


def model_of(layers: int, width: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.LayerNorm(width))
            for _ in range(layers)
        )
    ).to(dtype)


# Pinned in place: torch sees it.
tensor = torch.randn(1 << 20)
view = tensor[1000:2000]
assert not tensor.is_pinned()
with pinning.torch.pin(view):
    assert tensor.is_pinned() and view.is_pinned(), (tensor.is_pinned(), view.is_pinned(), pinning.regions("cuda:0"))
    assert torch.equal(tensor.to("cuda", non_blocking=True).cpu(), tensor)
assert not tensor.is_pinned()

model = model_of(4, 512)
before = copy.deepcopy(model)
with pinning.torch.pin(model):
    assert all(each.is_pinned() for each in model.parameters())
    model.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
assert all(torch.equal(a.cpu(), b) for a, b in zip(model.parameters(), before.parameters(), strict=True))

# pin_memory: exact, and torch agrees.
exact = pinning.torch.pin_memory(
    {"a": torch.arange(1000), "b": [torch.ones(3, 4).t(), "text"], "c": torch.eye(2).cuda()}
)
assert exact["a"].is_pinned() and exact["b"][0].is_pinned() and exact["b"][1] == "text"
assert torch.equal(exact["a"], torch.arange(1000)) and exact["b"][0].stride() == (1, 4)
assert exact["a"].untyped_storage().nbytes() == 8000
assert pinning.torch.pin_memory(exact["a"]) is exact["a"]

# to: modules and collections, tied, strided, of every dtype, pageable and locked, on a torch stream.
for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
    with torch.cuda.stream(stream):
        model = copy.deepcopy(before)
        model.register_buffer("table", torch.arange(7))
        model[3][0].weight = model[0][0].weight
        model[0][0].weight.grad = torch.ones_like(model[0][0].weight)
        with pinning.torch.pin(model[1]):
            assert pinning.torch.to(model) is model
        assert model[3][0].weight is model[0][0].weight and model[0][0].weight.grad.is_cuda and model.table.is_cuda
        for name, each in before.named_parameters():
            if name != "3.0.weight":
                assert each.is_cpu and torch.equal(model.get_parameter(name).detach().cpu(), each)
        base = torch.randn(300, 200)
        given = {
            "plain": base,
            "transposed": base.t(),
            "gaps": base[:, ::3],
            "expanded": base[:1].expand(50, 200),
            "empty": torch.empty(0, 3),
            "there": base.cuda(),
            "other": 5,
            "types": [
                torch.ones(100, dtype=dtype) for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.int8)
            ],
            "f8": torch.ones(100).to(torch.float8_e4m3fn),
        }
        made = pinning.torch.to(given)
        for name in ("plain", "transposed", "gaps", "expanded", "empty"):
            assert made[name].is_cuda and torch.equal(made[name].cpu(), given[name]), name
        assert made["transposed"].stride() == given["transposed"].stride()
        assert made["other"] == 5
        assert all(torch.equal(a.cpu(), b) for a, b in zip(made["types"], given["types"], strict=True))
        assert torch.equal(made["f8"].float().cpu(), given["f8"].float())
        large = torch.randn(64 << 20)
        assert torch.equal(pinning.torch.to(large).cpu(), large)
        del large, made

# Offload: the same results forward and backward, in a fraction of the memory.
model = model_of(16, 1024)
plain = copy.deepcopy(model).cuda()
data = torch.randn(32, 1024, device="cuda", requires_grad=True)
want = plain(data)
want.square().sum().backward()
want_input, data.grad = data.grad, None
weights = sum(each.numel() * each.element_size() for each in model.parameters())
gc.collect()
torch.cuda.empty_cache()
for part in (4, 2):  # 1/part of the weights on the GPU; with a half, some stay there
    with pinning.torch.offload(model, "cuda", resident=weights // part) as streamed:
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        for _ in range(5):
            with torch.no_grad():
                assert torch.allclose(streamed(data), want, atol=1e-5)
        torch.cuda.synchronize()
        used = torch.cuda.max_memory_allocated() - start
        assert used < weights // part + weights // 4, (used, weights)
        for _ in range(3):
            got = streamed(data)
            got.square().sum().backward()
            assert torch.allclose(got, want, atol=1e-5)
            assert torch.allclose(data.grad, want_input, rtol=1e-3, atol=1e-3), (data.grad - want_input).abs().max()
            data.grad = None
            for a, b in zip(streamed.parameters(), plain.parameters(), strict=True):
                assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-2)
                a.grad = None
        state = streamed.state_dict()
        assert all(torch.equal(state[name], each.cpu()) for name, each in plain.state_dict().items())
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.is_cpu and torch.equal(a, b.cpu())


# Batches from workers: pinned on arrival, and not overwritten while the GPU still reads them.
class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64 * 40

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.full((1 << 16,), float(at // 64))


collate = pinning.torch.Collate(64 << 18, 6)
for pin_memory in (False, True):
    loader = torch.utils.data.DataLoader(
        Numbers(), 64, num_workers=2, collate_fn=collate, pin_memory=pin_memory, timeout=60
    )
    pinned, missed = 0, collate.missed
    side, found, busy = torch.cuda.Stream(), [], torch.randn(4096, 4096, device="cuda")
    for batch in loader:
        pinned += batch.is_pinned()
        with torch.cuda.stream(side):  # its copies start late
            for _ in range(20):
                busy = busy @ busy * 1e-4
            there = batch.to("cuda", non_blocking=True)
            found.append((there.min(), there.max()))
        del batch
    torch.cuda.synchronize()
    assert [(a.item(), b.item()) for a, b in found] == [(each, each) for each in range(40)], found
    assert 0 < pinned == (40 if pin_memory else 40 - (collate.missed - missed)), (pinned, missed, collate.missed)
del loader, collate, there


def locked() -> list[pinning.Region]:
    gc.collect()
    return [region for region in pinning.regions("cuda:0") if not region.registered]


end = time.monotonic() + 60
while locked() and time.monotonic() < end:
    time.sleep(0.05)  # dropped locks are released soon
assert not locked(), locked()
print("torch: all right")
