"""Files to publish: checked, and named by their hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import safetensors.torch
import torch

from l2vit_mm.checkpoint.state import not_finite, unwrap

EXTENSIONS = ('.pth', '.safetensors')


def save(content: Mapping[str, Any], out: str, check: Callable[[str], None] | None = None) -> str:
    """Writes a file under a name with its hash, as on MM's download pages.

    Args:
        content (dict): a state dict as ``state_dict`` or ``model``, and whatever else a ``.pth``
            file gets; a ``.safetensors`` file gets the state dict only.
        out (str): NAME.pth or NAME.safetensors; the file is named NAME, ``-`` and the first 8
            digits of its SHA-256. Its folder is created.
        check (Callable, optional): called with the path of the written file before it is renamed.

    Returns:
        str: path of the written file. If anything fails, no file is left behind.

    Raises:
        ValueError: if the extension is another one.
        RuntimeError: if a tensor holds NaN or infinity.
    """
    name, extension = os.path.splitext(out)
    if extension not in EXTENSIONS:
        raise ValueError(f'out must end in {" or ".join(EXTENSIONS)}, got {out!r}')
    state = unwrap(content)
    bad = not_finite(state)
    if bad:
        raise RuntimeError(f'weights must be finite, got NaN or infinity in {", ".join(bad)}')
    unnamed = f'{name}.tmp{extension}'
    os.makedirs(os.path.dirname(out) or '.', exist_ok=True)
    try:
        if extension == '.safetensors':
            safetensors.torch.save_file(
                {key: value.contiguous().clone() for key, value in state.items()}, unnamed
            )
        else:
            torch.save(content, unnamed)
        if check is not None:
            check(unnamed)
        with open(unnamed, 'rb') as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
        named = f'{name}-{digest[:8]}{extension}'
        os.replace(unnamed, named)
    finally:
        if os.path.exists(unnamed):
            os.remove(unnamed)
    return named
