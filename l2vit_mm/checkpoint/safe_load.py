"""Files of weights, loaded without running code from them, whatever the caller asks."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import urlparse

import safetensors.torch
import torch

from l2vit_mm.checkpoint._globals import only_harmless_globals

File = str | os.PathLike | IO[bytes]

# Modules whose functions torch allows nobody to allow.
_BLOCKED = {'os', 'sys', 'posix', 'nt'}


def load(file: File, map_location: str | torch.device | None = None) -> dict:
    """``torch.load`` with ``weights_only=True``; and ``.safetensors``.

    Args:
        file (str | os.PathLike | IO[bytes]): file, or an open one.
        map_location (str | torch.device, optional): as in ``torch.load``.

    Returns:
        dict: the content; that of ``.safetensors`` as ``state_dict``, in main memory.

    Raises:
        pickle.UnpicklingError: if the file contains a class or function that is not known to be
            harmless, or is not a whole checkpoint. One line, which names the file and the reason.
    """
    if str(file).endswith('.safetensors'):
        return _load_safetensors(str(file))
    with only_harmless_globals(), _errors_in_one_line(str(file), file):
        return _without_code(torch.load(file, map_location=map_location, weights_only=True))


def load_url(url: str, model_dir: str | None = None,
             map_location: str | torch.device | None = None, progress: bool = True) -> dict:
    """``torch.hub.load_state_dict_from_url``, with the rules and errors of :func:`load`.

    Args:
        url (str): address.
        model_dir (str, optional): folder that keeps the file. None: torch.hub's.
        map_location (str | torch.device, optional): as in ``torch.load``.
        progress (bool): show the download's progress.
    """
    folder = model_dir or os.path.join(torch.hub.get_dir(), 'checkpoints')
    file = os.path.join(folder, os.path.basename(urlparse(url).path))  # torch's rule
    if file.endswith('.safetensors'):
        if not os.path.exists(file):
            os.makedirs(folder, exist_ok=True)
            torch.hub.download_url_to_file(url, file, progress=progress)
        return load(file)
    with only_harmless_globals(), _errors_in_one_line(f'{url} (kept as {file})', file):
        return _without_code(torch.hub.load_state_dict_from_url(
            url, model_dir, map_location, progress, weights_only=True))


def _load_safetensors(file: str) -> dict:
    try:
        return dict(state_dict=safetensors.torch.load_file(file))
    except safetensors.SafetensorError as error:
        raise pickle.UnpicklingError(f'cannot load checkpoint {file}: it is not a whole '
                                     f'safetensors file ({error})') from None


def _without_code(checkpoint: Any) -> dict:
    """Drops the config of an mmcv 1.x checkpoint: ``Runner.resume`` would run it as Python."""
    if not isinstance(checkpoint, dict):
        raise pickle.UnpicklingError(f'a {type(checkpoint).__name__} in place of a dict')
    meta = checkpoint.get('meta')
    if isinstance(meta, dict):
        meta.pop('config', None)
    return checkpoint


@contextmanager
def _errors_in_one_line(name: str, file: File) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = _damage(file, error) or _refusal(file, error)
        if reason is None:
            raise
        raise pickle.UnpicklingError(f'cannot load checkpoint {name}: {reason}') from None


def _damage(file: File, error: Exception) -> str | None:
    """What is wrong with a file that is no checkpoint at all, or not a whole one."""
    if isinstance(file, str | os.PathLike):
        if not os.path.isfile(file):
            return None  # not about the content: no such file, no connection
        with open(file, 'rb') as stream:
            return _damage(stream, error)
    file.seek(0)
    head = file.read(40)
    file.seek(0)
    if head.startswith(b'PK'):
        damaged = not _is_whole_zip(file)
    elif head.startswith(b'\x80'):  # a pickle, as before torch 1.6
        # A pickle that ends early ends in an EOFError or, where it is read by number of bytes, in
        # torch's IndexError or RuntimeError; one that reads on behind its tensors seeks (OSError).
        damaged = not isinstance(error, pickle.UnpicklingError)
    else:
        return f'it is not a checkpoint, it starts with {head!r}'
    return 'it is damaged or incomplete; was it copied or downloaded whole?' if damaged else None


def _is_whole_zip(file: IO[bytes]) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, NotImplementedError):
        return False


def _refusal(file: File, error: Exception) -> str | None:
    """Why torch's unpickler refused a whole file: its own message explains more than it needs."""
    if not isinstance(error, pickle.UnpicklingError):
        return None
    try:
        names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except (ValueError, pickle.UnpicklingError):  # a pickle as before torch 1.6, or not torch's
        names = []
    blocked = [name for name in names if name.split('.')[0] in _BLOCKED]
    if blocked:
        return f'it contains {blocked[0]}, which can run code or change files'
    if names:
        return (f'it contains {names[0]}, which is not known to be harmless. If you trust the '
                'file, allow that class or function before loading: '
                f'torch.serialization.add_safe_globals([{names[0]}])')
    detail = str(error.__context__ or error).strip().splitlines()[0]
    return f'it contains what a checkpoint has no use for: {detail}'
