"""Checkpoints that can't run code: every loader of mmengine, with `weights_only=True`.

OpenMMLab's mmengine 0.10.7 calls `torch.load`, which since torch 2.6 refuses the log history in its
own checkpoints. OneDL's mmengine allows that, and `getattr`, and loads whatever is refused even so
with full unpickling. Here both load the same files, and nothing else.
"""
import os
import pickle
import re
import types
from contextlib import contextmanager
from urllib.parse import urlparse

import numpy as np
import safetensors.torch
import torch
from mmengine.logging.history_buffer import HistoryBuffer
from mmengine.runner import checkpoint as mmengine_checkpoint


def make_loading_safe() -> None:
    """Replaces the loader of `init_cfg`, `load_from` and `resume`. Calling it twice is harmless.

    The replaced names are those that mmengine's functions look up when they run, so that modules
    that have imported these functions get the safe ones as well.
    """
    mmengine_checkpoint.torch = _safe_torch
    mmengine_checkpoint.load_url = load_url
    if hasattr(mmengine_checkpoint, '_safe_torch_load'):  # OneDL's, which falls back
        mmengine_checkpoint._safe_torch_load = load
    HistoryBuffer.__setstate__ = _set_history


def load(file, map_location=None, **kwargs):
    """`torch.load` with `weights_only=True`, whatever the caller asks; and `.safetensors`.

    The latter are loaded into main memory, as `state_dict`.

    Raises:
        pickle.UnpicklingError: If the file contains a class or function that is not known to be
            harmless, or is not a whole checkpoint. One line, which names the file and the reason.
    """
    if str(file).endswith('.safetensors'):
        return _load_safetensors(file)
    kwargs['weights_only'] = True
    with _only_harmless_globals(), _errors_in_one_line(file, file):
        return _without_code(torch.load(file, map_location=map_location, **kwargs))


def load_url(url, model_dir=None, map_location=None, progress=True, check_hash=False,
             file_name=None):
    """`torch.hub.load_state_dict_from_url`, with the rules and errors of `load`."""
    folder = model_dir or os.path.join(torch.hub.get_dir(), 'checkpoints')
    file = os.path.join(folder, file_name or os.path.basename(urlparse(url).path))  # torch's rule
    if file.endswith('.safetensors'):
        if not os.path.exists(file):
            os.makedirs(folder, exist_ok=True)
            torch.hub.download_url_to_file(url, file, progress=progress)
        return load(file)
    with _only_harmless_globals(), _errors_in_one_line(f'{url} (kept as {file})', file):
        return _without_code(
            torch.hub.load_state_dict_from_url(url, model_dir, map_location, progress, check_hash,
                                               file_name, weights_only=True))


def _load_safetensors(file):
    try:
        return dict(state_dict=safetensors.torch.load_file(file))
    except safetensors.SafetensorError as error:
        raise pickle.UnpicklingError(f'cannot load checkpoint {file}: it is not a whole '
                                     f'safetensors file ({error})') from None


class _SafeTorch(types.ModuleType):
    """torch as mmengine's loaders see it."""
    load = staticmethod(load)

    def __getattr__(self, name):
        return getattr(torch, name)


_safe_torch = _SafeTorch('torch')


def _without_code(checkpoint):
    """Drops the config of an mmcv 1.x checkpoint: `Runner.resume` would run it as Python."""
    if not isinstance(checkpoint, dict):
        raise pickle.UnpicklingError(f'a {type(checkpoint).__name__} in place of a dict')
    meta = checkpoint.get('meta')
    if isinstance(meta, dict):
        meta.pop('config', None)
    return checkpoint


# --- what a file may contain besides tensors -----------------------------------------------------
# NumPy's own unpickling functions are not memory safe: `dtype.__setstate__` takes any flags, and
# numbers flagged as Python objects are pointers that the file has chosen. So the names in a file
# mean the stand-ins below, which make the same arrays and scalars from checked parts.


class _DType:
    """`numpy.dtype` of numbers and strings."""

    def __init__(self, code, align=False, copy=True):
        if not re.fullmatch(r'[biufcSU]\d{1,9}', code):
            raise pickle.UnpicklingError(f'NumPy array of type {code!r}')
        self.dtype = np.dtype(code)

    def __setstate__(self, state):
        byte_order = state[1]
        if byte_order in ('<', '>'):
            self.dtype = self.dtype.newbyteorder(byte_order)


class _Array(np.ndarray):
    """An array that only accepts a `_DType`; saved again, it is an ordinary array."""

    def __new__(cls):
        return super().__new__(cls, (0,), 'b')

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        values = np.frombuffer(data, dtype.dtype).reshape(shape)  # checks that they fit
        super().__setstate__((1, values.shape, values.dtype, bool(fortran), data))

    def __reduce__(self):
        return np.asarray(self).__reduce__()


def _reconstruct(array_type, shape, code):
    return _Array()


def _scalar(dtype, data):
    return np.frombuffer(data, dtype.dtype)[0]


def _empty_bytes():
    return b''


def _getattr(owner, name):
    # HistoryBuffer pickles its four statistics as getattr(HistoryBuffer, 'mean') and so on.
    # The real getattr would hand a file the attributes of everything that it may name.
    if owner is HistoryBuffer and name in ('min', 'max', 'mean', 'current'):
        return getattr(owner, name)
    raise pickle.UnpicklingError(f'getattr of {name!r}')


def _set_history(self, state):
    # mmengine's method adds the functions of the file to those of the class, and sets any
    # attribute. The numbers are all that is needed.
    if type(self) is not HistoryBuffer:
        return _mmengine_set_history(self, state)
    self._set_default_statistics()
    self.max_length = int(state['max_length'])
    self._log_history = np.array(state['_log_history'])  # a plain array, also from an _Array
    self._count_history = np.array(state['_count_history'])


_mmengine_set_history = HistoryBuffer.__setstate__

_HARMLESS = {
    HistoryBuffer: ['mmengine.logging.history_buffer.HistoryBuffer'],
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
def _only_harmless_globals():
    """Adds `_HARMLESS` to torch's list, before the user's additions of the same names."""
    before = torch.serialization.get_safe_globals()
    ours = [(stand_in, name) for stand_in, names in _HARMLESS.items() for name in names]
    names = {name for _, name in ours}
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(
        [entry for entry in before if _global_name(entry) not in names] + ours)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _global_name(entry) -> str:
    return entry[1] if isinstance(entry, tuple) else f'{entry.__module__}.{entry.__qualname__}'


# --- errors --------------------------------------------------------------------------------------


@contextmanager
def _errors_in_one_line(name, file):
    try:
        yield
    except Exception as error:
        reason = _damage(file, error) or _refusal(error)
        if reason is None:
            raise
        raise pickle.UnpicklingError(f'cannot load checkpoint {name}: {reason}') from None


def _refusal(error) -> str | None:
    """The reason in torch's message, which explains more than it needs."""
    if not isinstance(error, pickle.UnpicklingError):
        return None
    text = str(error)
    match = re.search(r'GLOBAL (\S+) was not an allowed global', text)
    if match:
        return (f'it contains {match[1]}, which is not known to be harmless. If you trust the '
                'file, allow that class or function before loading: '
                f'torch.serialization.add_safe_globals([{match[1]}])')
    match = re.search(r'unsupported GLOBAL (\S+)', text)
    if match:
        return f'it contains {match[1]}, which can run code or change files'
    detail = text.split('WeightsUnpickler error:')[-1].strip().splitlines()[0]
    return f'it contains what a checkpoint has no use for: {detail}'


def _damage(file, error) -> str | None:
    """What is wrong with a file that is no checkpoint at all, or not a whole one."""
    torch_says = isinstance(error, EOFError) or re.search(
        r'PytorchStreamReader|corrupt|Errno 22', str(error))  # 22: a seek to before the file
    if isinstance(error, (OSError, RuntimeError)) and not torch_says:
        return None  # not about the content: no such file or device, say
    if hasattr(file, 'read'):
        file.seek(0)
        head = file.read(40)
    else:
        with open(file, 'rb') as stream:
            head = stream.read(40)
    if not head.startswith((b'PK', b'\x80')):  # a zip file, or a pickle as before torch 1.6
        return f'it is not a checkpoint, it starts with {head!r}'
    return 'it is damaged or incomplete; was it copied or downloaded whole?' if torch_says else None
