"""The types that operators compute in: float64 for float64, float32 for all others."""

import contextlib

import torch
from torch import Tensor


def acc_dtype(x: Tensor) -> torch.dtype:
    """Returns the type that sums over ``x`` are accumulated in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def widen(x: Tensor) -> Tensor:
    """Returns ``x`` in :func:`acc_dtype`."""
    return x.to(acc_dtype(x))


def promote(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns the tensors in the widest of their types."""
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return tuple(x.to(dtype) for x in tensors)


def autocast_enabled(x: Tensor) -> bool:
    """Whether autocast is enabled for the device of ``x``."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def no_autocast(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Disables autocast, which would compute sums over tens of thousands of tokens in half
    precision."""
    kind = x.device.type
    available = torch.amp.is_autocast_available(kind)  # it is not on the meta device
    return torch.autocast(kind, enabled=False) if available else contextlib.nullcontext()
