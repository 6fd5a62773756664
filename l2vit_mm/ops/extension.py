"""The compiled operators, ``torch.ops.l2vit_mm``, where they were built."""
import functools
import re
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


# Looked up once, and not where a call may be traced by torch.compile.
_archs = build_info().get('archs', '').split()


def missing_for(device: torch.device) -> str | None:
    """Why nothing compiled runs on this device, or None."""
    if _error:
        return _error
    if device.type in ('cpu', 'meta'):
        return None
    if device.type != 'cuda':
        return f'l2vit_mm has no compiled operators for {device.type}'
    if not _archs:
        return f'the compiled operators of l2vit_mm were built without CUDA: {_HOW}'
    if torch.compiler.is_compiling():
        return None
    capability = torch.cuda.get_device_capability(device)
    if not built_for(capability, _archs):
        return (f'the compiled operators of l2vit_mm were built for the compute capabilities '
                f"{', '.join(_archs)}, and {device} has {capability[0]}.{capability[1]}: {_HOW}")
    return None


def built_for(capability: tuple[int, int], archs: list[str]) -> bool:
    """Whether code for these architectures ('8.0', '9.0+PTX') runs on a GPU: machine code on later
    ones of the same major version, PTX on all later ones. Other names that torch knows ('Hopper')
    are left to CUDA, which refuses what it can't run."""
    for arch in archs:
        match = re.match(r'(\d+)\.(\d+)', arch)
        if match is None:
            return True
        number = tuple(int(x) for x in match.groups())
        if number <= capability and (number[0] == capability[0] or arch.endswith('+PTX')):
            return True
    return False


@functools.cache
def warn_once(reason: str) -> None:
    """Says once a reason that the slower plain PyTorch runs."""
    warnings.warn(f'{reason}. Plain PyTorch takes over, several times slower.', stacklevel=4)
