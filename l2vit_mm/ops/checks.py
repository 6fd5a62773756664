"""Checks of arguments, shared by the interfaces of all operators.

Each function checks one argument and raises a TypeError (wrong type or number format) or a
ValueError (wrong value, shape or device) of the form "NAME must be WHAT, got VALUE".
"""

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_one_of(name: str, value: object, options: Sequence[str]) -> None:
    """``value`` must be one of the ``options``."""
    if value not in options:
        raise ValueError(
            f'{name} must be one of ' + ', '.join(repr(x) for x in options) + f', got {value!r}'
        )


def is_number(value: object) -> bool:
    """Whether ``value`` is an int or a float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_positive(name: str, value: float) -> None:
    """``value`` must be a finite positive number."""
    if not is_number(value):
        raise TypeError(f'{name} must be a number, got {type(value).__name__}')
    if not 0 < value < math.inf:
        raise ValueError(f'{name} must be a finite positive number, got {value}')


def check_floating(name: str, x: Tensor) -> None:
    """``x`` must be a strided tensor of a floating-point type that the kernels have."""
    if not isinstance(x, Tensor):
        raise TypeError(f'{name} must be a tensor, got {type(x).__name__}')
    if x.dtype not in _FLOATING:
        raise TypeError(f'{name} must be float64, float32, float16 or bfloat16, got {x.dtype}')
    if x.layout != torch.strided:
        raise TypeError(f'{name} must be a strided tensor, got {x.layout}')


def check_device(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    """``x`` must be on the device of ``other``."""
    if x.device != other.device:
        raise ValueError(f'{name} must be on {other.device} like {other_name}, got {x.device}')


def check_same(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    """``x`` must have the device and the type of ``other``."""
    check_device(name, x, other_name, other)
    if x.dtype != other.dtype:
        raise TypeError(f'{name} must be {other.dtype} like {other_name}, got {x.dtype}')


def check_cu_seqlens(name: str, cu_seqlens: Tensor | None, tokens: Tensor) -> None:
    """``cu_seqlens`` (B + 1,) must start with 0, not decrease, and be at most the T of ``tokens``
    (T, ...)."""
    if cu_seqlens is None:
        return
    _check_integers(name, cu_seqlens, tokens)
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(f'{name} must have shape (B + 1,), got {tuple(cu_seqlens.shape)}')
    values = _host_values(cu_seqlens)
    if values is None:
        return
    num_tokens = tokens.shape[0]
    if num_tokens >= 2**31:
        raise ValueError(f'{name} must be of fewer than 2**31 tokens, got {num_tokens}')
    if values[0] != 0:
        raise ValueError(f'{name} must start with 0, got {values[0]}')
    for i, (start, end) in enumerate(itertools.pairwise(values)):
        if end < start:
            raise ValueError(f'{name} must not decrease, got {end} after {start} at index {i + 1}')
    if values[-1] > num_tokens:
        raise ValueError(
            f'{name} must end with at most {num_tokens}, the number of tokens, got {values[-1]}'
        )


def check_valid_hw(valid_hw: Tensor | None, maps: Tensor) -> None:
    """``valid_hw`` (B, 2) must be sizes within ``maps`` (B, Hmax, Wmax, ...)."""
    if valid_hw is None:
        return
    _check_integers('valid_hw', valid_hw, maps)
    batch, height, width = maps.shape[:3]
    if valid_hw.shape != (batch, 2):
        raise ValueError(f'valid_hw must have shape ({batch}, 2), got {tuple(valid_hw.shape)}')
    for i, (h, w) in enumerate(_host_values(valid_hw) or ()):
        if not (0 <= h <= height and 0 <= w <= width):
            raise ValueError(
                f'valid_hw must be at most {height} x {width}, the size of the map, '
                f'and not negative, got {h} x {w} for image {i}'
            )


def _check_integers(name: str, x: Tensor, like: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f'{name} must be a tensor, got {type(x).__name__}')
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(f'{name} must be int32 or int64, got {x.dtype}')
    check_device(name, x, 'the input', like)


# Values that were copied from a GPU: id -> (reference, version, values).
_copied: dict[int, tuple[weakref.ref[Tensor], int, list[Any]]] = {}


def _host_values(x: Tensor) -> list[Any] | None:
    """Returns the values of a small integer tensor, or None where they are not available: in a
    traced graph, while a CUDA graph is captured, and on the meta device.

    Copying from a GPU waits for it, so that is done once per tensor, not once per layer.
    """
    if torch.compiler.is_compiling() or x.device.type == 'meta' or isinstance(x, FakeTensor):
        return None
    if x.device.type == 'cpu':
        return x.tolist()
    if x.device.type == 'cuda' and torch.cuda.is_current_stream_capturing():
        return None
    if x.is_inference():  # has no version that would tell whether it has changed since
        return x.tolist()
    key, version = id(x), x._version
    known = _copied.get(key)
    if known is None or known[0]() is not x or known[1] != version:
        known = weakref.ref(x, lambda _: _copied.pop(key, None)), version, x.tolist()
        _copied[key] = known
    return known[2]
