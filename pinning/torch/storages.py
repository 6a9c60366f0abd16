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


def tensors_of(holder: Holder) -> Iterator[torch.Tensor]:
    """Every tensor in `holder`, some perhaps several times.

    Raises
    ------
    TypeError
        It is not a tensor, module, optimizer, mapping or sequence.
    """
    if isinstance(holder, torch.Tensor):
        yield holder
    elif isinstance(holder, torch.nn.Module):
        yield from holder.parameters()
        yield from holder.buffers()
    elif isinstance(holder, torch.optim.Optimizer):
        for state in holder.state.values():
            yield from tensors_within(state)
    elif isinstance(holder, (Mapping, list, tuple)):
        yield from tensors_within(holder)
    else:
        raise TypeError(
            f"{describe(holder)} contains no tensors; give a tensor, a module, an optimizer, or a "
            "mapping or sequence of these"
        )


def tensors_within(collection: object) -> Iterator[torch.Tensor]:
    """The tensors of a collection that may contain other things, such as the numbers of a state dict."""
    if isinstance(collection, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
        yield from tensors_of(collection)
    elif isinstance(collection, Mapping):
        for each in collection.values():
            yield from tensors_within(each)
    elif isinstance(collection, (list, tuple)):
        for each in collection:
            yield from tensors_within(each)


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
