"""Files that are given away: checked, and named by their hash."""

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
    """Writes a file, under a name with its hash, as MM's download pages have them.

    Args:
        content (dict): a state dict as ``state_dict`` or ``model``, which is what ``.safetensors``
            gets, and what ``.pth`` gets besides.
        out (str): NAME.pth or NAME.safetensors; the first 8 digits of the file's SHA-256 are put
            after NAME. Its folder is made.
        check (Callable, optional): called with the written file, before it has its name.

    Returns:
        str: the written file. If anything fails there is none.

    Raises:
        ValueError: for another extension.
        RuntimeError: if a tensor isn't finite.
    """
    name, extension = os.path.splitext(out)
    if extension not in EXTENSIONS:
        raise ValueError(f'out must end in {" or ".join(EXTENSIONS)}, got {out!r}')
    state = unwrap(content)
    bad = not_finite(state)
    if bad:
        raise RuntimeError(f'not finite in {", ".join(bad)}')
    unnamed = f'{name}.tmp{extension}'
    os.makedirs(os.path.dirname(out) or '.', exist_ok=True)
    try:
        if extension == '.safetensors':
            safetensors.torch.save_file(
                {key: value.contiguous().clone() for key, value in state.items()}, unnamed)
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
