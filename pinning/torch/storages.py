# SPDX-License-Identifier: Apache-2.0
"""The tensors in modules, optimizers and collections, and the storages under them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

import torch

from pinning.runtime.arguments import describe

Holder = Any  # a tensor, a module, an optimizer, or a mapping or sequence of these, such as a state dict


def tensors_of(holder: Holder, strict: bool = True) -> Iterator[torch.Tensor]:
    """Every tensor in `holder`, some perhaps several times.

    Raises
    ------
    TypeError
        `holder` is not a tensor, module, optimizer, mapping or sequence. What these contain may be anything,
        and so may `holder` if that is not `strict`.
    """
    if isinstance(holder, torch.Tensor):
        yield holder
    elif isinstance(holder, torch.nn.Module):
        yield from holder.parameters()
        yield from holder.buffers()
    elif isinstance(holder, (torch.optim.Optimizer, Mapping, list, tuple)):
        state = holder.state if isinstance(holder, torch.optim.Optimizer) else holder
        for each in state.values() if isinstance(state, Mapping) else state:
            yield from tensors_of(each, False)
    elif strict:
        raise TypeError(
            f"{describe(holder)} contains no tensors; give a tensor, a module, an optimizer, or a "
            "mapping or sequence of these"
        )


def replaced(holder: Any, replace: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """The same structure of dicts, lists and tuples, with its tensors, or objects of a `kind`, replaced."""
    if isinstance(holder, kind):
        return replace(holder)
    if isinstance(holder, (dict, UserDict)):
        copied = copy(holder)  # keeps what else it has, such as a defaultdict's factory
        copied.update({key: replaced(each, replace, kind) for key, each in holder.items()})
        return copied
    if isinstance(holder, (list, tuple)):
        replacements = [replaced(each, replace, kind) for each in holder]
        return type(holder)(*replacements) if hasattr(holder, "_fields") else type(holder)(replacements)
    return holder


def in_host(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the storage under a host tensor, as a tensor of shape (nbytes,), which keeps the storage.

    Raises
    ------
    TypeError
        There is no storage: a sparse tensor, or a subclass that only wraps others.
    """
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"a tensor of layout {tensor.layout} has no storage of its own; give the tensors in it, such as "
            "t.indices() and t.values()"
        )
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise TypeError(f"a {type(tensor).__name__} has no storage of its own; give the tensors in it") from error
    return torch.empty(0, dtype=torch.uint8).set_(storage)
