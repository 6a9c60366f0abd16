# SPDX-License-Identifier: Apache-2.0
"""Save tensors in two safetensors files, load them to the first GPU or the host, change them, and save them again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy

import pinning

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    layers = {f"layer.{i}.weight": numpy.full((256, 64), i, numpy.float32) for i in range(8)}
    names = list(layers)
    places = {each: f"model-{1 + i // 4:05}-of-00002.safetensors" for i, each in enumerate(names)}
    for shard in sorted(set(places.values())):
        pinning.save_file({each: layers[each] for each in names if places[each] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    # Without `framework`, these would be torch tensors if torch is installed.
    tensors = pinning.load_file(folder, framework="pinning")
    device = tensors["layer.0.weight"].device
    print(f"{len(tensors)} tensors on {device.name}")

    tensors["layer.7.weight"][:] = 0.5
    pinning.save_file(tensors, folder / "all.safetensors", {"made by": "pinning"})
    again = pinning.load_file(folder / "all.safetensors", "host", framework="numpy")
    assert (again["layer.3.weight"] == 3).all()
    assert (again["layer.7.weight"] == 0.5).all()
    print(f"{sum(array.nbytes for array in again.values())} bytes there and back")
