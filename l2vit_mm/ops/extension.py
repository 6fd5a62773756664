"""The compiled operators, ``torch.ops.l2vit_mm``, where they were built."""
import functools
import warnings
from pathlib import Path

import torch

_FILE = Path(__file__).parent.parent / '_C.abi3.so'
_HOW = 'pip install --no-build-isolation --no-deps . in its source folder builds it (docs/install.md)'


def _load() -> str | None:
    if not _FILE.exists():
        return f'l2vit_mm was installed without its compiled operators: {_HOW}'
    try:
        torch.ops.load_library(_FILE)
    except OSError as error:  # a missing symbol, most often
        return f'{_FILE} does not load with torch {torch.__version__} ({error.__cause__ or error}): {_HOW}'
    return None


_error = _load()


def load_error() -> str | None:
    """Why there are no compiled operators, and how to get them; None where they are loaded."""
    return _error


def build_info() -> dict[str, str]:
    """What the extension was built for: ``torch``, ``compiler``, ``cpu`` (the instructions that
    its CPU kernels use here) and, with CUDA kernels, ``cuda`` and ``archs``."""
    if _error:
        return {}
    return dict(line.split('=', 1) for line in torch.ops.l2vit_mm.build_info().splitlines())


def missing_for(device: torch.device) -> str | None:
    """Why nothing compiled runs on this device, or None."""
    if _error:
        return _error
    if device.type in ('cpu', 'meta') or device.type == 'cuda' and 'cuda' in build_info():
        return None
    if device.type == 'cuda':
        return f'the compiled operators of l2vit_mm were built without CUDA: {_HOW}'
    return f'l2vit_mm has no compiled operators for {device.type}'


@functools.cache
def warn_once(reason: str) -> None:
    """Says once a reason that the slower plain PyTorch runs."""
    warnings.warn(f'{reason}. Plain PyTorch takes over, several times slower.', stacklevel=3)
