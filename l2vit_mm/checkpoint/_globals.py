"""What a checkpoint may contain besides tensors.

NumPy's own unpickling functions are not memory safe: ``dtype.__setstate__`` accepts any flags, and
numbers flagged as Python objects are pointers that the file has chosen. So the names in a file are
resolved to the stand-ins below, which build the same arrays, scalars and log histories from checked
parts.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


class _DType:
    """Stands in for ``numpy.dtype``: numbers and strings only."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        if not re.fullmatch(r'[biufcSU]\d{1,9}', code):
            raise pickle.UnpicklingError(f'NumPy array of type {code!r}')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        byte_order = state[1]
        if byte_order in ('<', '>'):
            self.dtype = self.dtype.newbyteorder(byte_order)


class _Array(np.ndarray):
    """Stands in for ``numpy.ndarray`` of a ``_DType``; saved again, it is an ordinary array."""

    def __new__(cls) -> _Array:
        return super().__new__(cls, (0,), 'b')

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        values = np.frombuffer(data, dtype.dtype).reshape(shape)  # checks that they fit
        super().__setstate__((1, values.shape, values.dtype, fortran, data))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


class _History(HistoryBuffer):
    """Stands in for mmengine's log history, without the functions that a file adds to it.

    Saved again, it is an ordinary one.
    """

    def __setstate__(self, state: dict) -> None:
        # mmengine's own adds functions of the file to the class and sets any attribute. Only the
        # numbers are needed, as plain arrays and not as an _Array.
        self._set_default_statistics()
        self.max_length = int(state['max_length'])
        self._log_history = np.array(state['_log_history'])
        self._count_history = np.array(state['_count_history'])

    def __reduce__(self) -> tuple:
        return HistoryBuffer, (), self.__getstate__()


def _reconstruct(array_type: type, shape: tuple, code: bytes) -> _Array:
    return _Array()


def _scalar(dtype: _DType, data: bytes) -> Any:
    return np.frombuffer(data, dtype.dtype)[0]


def _empty_bytes() -> bytes:
    return b''


def _getattr(owner: object, name: str) -> Any:
    # HistoryBuffer pickles its four statistics as getattr(HistoryBuffer, 'mean') and so on.
    # The real getattr would give a file the attributes of every object that it may name.
    if owner is _History and name in ('min', 'max', 'mean', 'current'):
        return getattr(owner, name)
    raise pickle.UnpicklingError(f'getattr of {name!r}')


_HARMLESS = {
    _History: ['mmengine.logging.history_buffer.HistoryBuffer'],
    _getattr: ['builtins.getattr'],
    _empty_bytes: ['builtins.bytes'],
    slice: ['builtins.slice'],
    _DType: ['numpy.dtype'],
    _Array: ['numpy.ndarray'],
    # NumPy 1 and 2
    _reconstruct: ['numpy.core.multiarray._reconstruct', 'numpy._core.multiarray._reconstruct'],
    _scalar: ['numpy.core.multiarray.scalar', 'numpy._core.multiarray.scalar'],
}


@contextmanager
def only_harmless_globals() -> Iterator[None]:
    """Adds the stand-ins to torch's list, in place of the user's entries of the same names."""
    before = torch.serialization.get_safe_globals()
    ours: list[Any] = [(stand_in, name) for stand_in, names in _HARMLESS.items() for name in names]
    names = {name for _, name in ours}
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(
        [entry for entry in before if _global_name(entry) not in names] + ours
    )
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _global_name(entry: Any) -> str:
    return entry[1] if isinstance(entry, tuple) else f'{entry.__module__}.{entry.__qualname__}'
