"""Loads files of weights and never runs code from them."""

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

# Modules that torch does not let anybody allow.
_BLOCKED = {'os', 'sys', 'posix', 'nt'}


def load(file: File, map_location: str | torch.device | None = None) -> dict:
    """Loads a file as ``torch.load`` with ``weights_only=True``, or a ``.safetensors`` file.

    Args:
        file (str | os.PathLike | IO[bytes]): path, or an open file.
        map_location (str | torch.device, optional): as in ``torch.load``; ``.safetensors`` files
            are loaded into main memory.

    Returns:
        dict: the content of the file; that of a ``.safetensors`` file as ``state_dict``.

    Raises:
        pickle.UnpicklingError: if the file contains a class or function that is not known to be
            harmless, or is not a complete checkpoint; one line with the file and the reason.
    """
    if str(file).endswith('.safetensors'):
        return _load_safetensors(str(file))
    with only_harmless_globals(), _errors_in_one_line(str(file), file):
        return _without_code(torch.load(file, map_location=map_location, weights_only=True))


def load_url(
    url: str,
    model_dir: str | None = None,
    map_location: str | torch.device | None = None,
    progress: bool = True,
) -> dict:
    """``torch.hub.load_state_dict_from_url``, with the rules and errors of :func:`load`.

    Args:
        url (str): URL of the file.
        model_dir (str, optional): folder that the file is downloaded to. None: that of torch.hub.
        map_location (str | torch.device, optional): as in :func:`load`.
        progress (bool): whether to show the progress of the download.

    Returns:
        dict: the content of the file.

    Raises:
        pickle.UnpicklingError: see :func:`load`.
    """
    folder = model_dir or os.path.join(torch.hub.get_dir(), 'checkpoints')
    file = os.path.join(folder, os.path.basename(urlparse(url).path))  # as torch names it
    if file.endswith('.safetensors'):
        if not os.path.exists(file):
            os.makedirs(folder, exist_ok=True)
            torch.hub.download_url_to_file(url, file, progress=progress)
        return load(file)
    with only_harmless_globals(), _errors_in_one_line(f'{url} (kept as {file})', file):
        return _without_code(
            torch.hub.load_state_dict_from_url(
                url, model_dir, map_location, progress, weights_only=True
            )
        )


def _load_safetensors(file: str) -> dict:
    try:
        return dict(state_dict=safetensors.torch.load_file(file))
    except safetensors.SafetensorError as error:
        raise pickle.UnpicklingError(
            f'cannot load checkpoint {file}: it is not a complete safetensors file ({error})'
        ) from None


def _without_code(checkpoint: Any) -> dict:
    """Drops the config of an mmcv 1.x checkpoint: ``Runner.resume`` would run it as Python."""
    if not isinstance(checkpoint, dict):
        raise pickle.UnpicklingError(f'a {type(checkpoint).__name__} instead of a dict')
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
    """What is wrong with a file that is not a checkpoint, or not a complete one."""
    if isinstance(file, str | os.PathLike):
        if not os.path.isfile(file):
            return None  # not about the content: a missing file, a failed connection
        with open(file, 'rb') as stream:
            return _damage(stream, error)
    file.seek(0)
    head = file.read(40)
    file.seek(0)
    if head.startswith(b'PK'):
        damaged = not _is_whole_zip(file)
    elif head.startswith(b'\x80'):  # a pickle, as before torch 1.6
        # A truncated pickle raises EOFError or, where a number of bytes is read, torch's IndexError
        # or RuntimeError; seeking behind its tensors raises OSError.
        damaged = not isinstance(error, pickle.UnpicklingError)
    else:
        return f'it is not a checkpoint, it starts with {head!r}'
    return 'it is damaged or incomplete; was the copy or download complete?' if damaged else None


def _is_whole_zip(file: IO[bytes]) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, NotImplementedError):
        return False


def _refusal(file: File, error: Exception) -> str | None:
    """Why torch's unpickler refused a complete file; shorter than its own message."""
    if not isinstance(error, pickle.UnpicklingError):
        return None
    try:
        names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except (ValueError, pickle.UnpicklingError):  # a pickle of before torch 1.6, or not torch's
        names = []
    blocked = [name for name in names if name.split('.')[0] in _BLOCKED]
    if blocked:
        return f'it contains {blocked[0]}, which can run code or change files'
    if names:
        return (
            f'it contains {names[0]}, which is not known to be harmless. If you trust the '
            'file, allow that class or function before loading: '
            f'torch.serialization.add_safe_globals([{names[0]}])'
        )
    detail = str(error.__context__ or error).strip().splitlines()[0]
    return f'it contains what does not belong in a checkpoint: {detail}'
