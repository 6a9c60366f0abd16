# SPDX-License-Identifier: Apache-2.0
"""A tree like /sys/bus/pci/devices, with five GPUs."""

from __future__ import annotations

from pathlib import Path

# The first, then one behind the same switch, one on the same host bridge, one on the same node, and one on another.
GPUS = ("0001:3b:00.0", "0001:3c:00.0", "0001:3d:00.0", "0001:3e:00.0", "0001:3f:00.0")


def make_gpu(root: Path, where: str, node: int, lanes: str = "16", speed: str = "32.0 GT/s PCIe") -> None:
    """Make a GPU at `where` below /sys/devices."""
    folder = root / "sys" / "devices" / where
    folder.mkdir(parents=True)
    most = {"max_link_width": "16", "max_link_speed": "32.0 GT/s PCIe"}
    files = {"numa_node": str(node), "current_link_width": lanes, "current_link_speed": speed} | most
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    links = root / "devices"
    links.mkdir(exist_ok=True)
    (links / folder.name).symlink_to(folder)


def make_machine(root: Path) -> Path:
    """Make the tree; return the folder that stands for /sys/bus/pci/devices."""
    switch = "pci0001:30/0001:30:01.0/0001:38:00.0"
    make_gpu(root, f"{switch}/0001:39:00.0/{GPUS[0]}", 0)
    make_gpu(root, f"{switch}/0001:39:01.0/{GPUS[1]}", 0, "8", "2.5 GT/s PCIe")
    make_gpu(root, f"pci0001:30/0001:30:03.0/{GPUS[2]}", 0)
    make_gpu(root, f"pci0001:3e/0001:3e:01.0/{GPUS[3]}", 0)
    make_gpu(root, f"pci0001:3f/0001:3f:01.0/{GPUS[4]}", 1)
    return root / "devices"
