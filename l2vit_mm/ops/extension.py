"""The compiled library with the operators ``torch.ops.l2vit_mm``, where it was built."""

import functools
import re
import warnings
from pathlib import Path

import torch

from l2vit_mm.ops.checks import check_one_of

_FILE = Path(__file__).parent.parent / '_C.abi3.so'
_HOW = (
    'to build them, run pip install --no-build-isolation --no-deps . in its source folder '
    '(docs/install.md)'
)
# What registration.py of the operators and use_compiled need of the library.
_NEEDED = (
    'build_info',
    'max_head_dim',
    'linear_attention',
    'linear_attention_qkvpacked',
    'focused_feature_map',
)
_OLDEST_TORCH = (2, 7)


def check_torch(version: str) -> None:
    """Raises an ImportError for a version of torch that is too old.

    (The package's requirement has no lower bound, which would make installers replace torch.)
    """
    if tuple(int(part) for part in version.split('.')[:2]) < _OLDEST_TORCH:
        raise ImportError(
            f'torch must be {".".join(map(str, _OLDEST_TORCH))} or later for l2vit_mm, '
            f'got {version}'
        )


check_torch(torch.__version__)


def lacking(operators: object) -> str | None:
    """Returns why a loaded library is of no use: it was built from other sources, and lacks
    operators. None if it has all."""
    names = [name for name in _NEEDED if not hasattr(operators, name)]
    if not names:
        return None
    return f'{_FILE} was built from other sources, it has no {", ".join(names)}; {_HOW}'


def _load() -> str | None:
    if not _FILE.exists():
        return f'l2vit_mm was installed without its compiled operators; {_HOW}'
    try:
        torch.ops.load_library(_FILE)
    except OSError as error:  # a missing symbol, most often
        return (
            f'{_FILE} does not load with torch {torch.__version__} '
            f'({error.__cause__ or error}); {_HOW}'
        )
    return lacking(torch.ops.l2vit_mm)


_error = _load()


def load_error() -> str | None:
    """Returns why there are no compiled operators and how to get them, or None if there are."""
    return _error


def build_info() -> dict[str, str]:
    """Returns what the extension was built for: ``torch``, ``compiler``, ``cpu`` (the instruction
    set that its CPU kernels use here) and, with CUDA kernels, ``cuda`` and ``archs``."""
    if _error:
        return {}
    return dict(line.split('=', 1) for line in torch.ops.l2vit_mm.build_info().splitlines())


# Looked up once, outside of calls that torch.compile may trace.
_archs = build_info().get('archs', '').split()


def missing_for(device: torch.device) -> str | None:
    """Returns why no compiled operator runs on the device, or None if they do."""
    if _error:
        return _error
    if device.type in ('cpu', 'meta'):
        return None
    if device.type != 'cuda':
        return f'l2vit_mm has no compiled operators for {device.type}'
    if not _archs:
        return f'the compiled operators of l2vit_mm were built without CUDA; {_HOW}'
    if torch.compiler.is_compiling():
        return None
    capability = torch.cuda.get_device_capability(device)
    if not built_for(capability, _archs):
        return (
            f'the compiled operators of l2vit_mm were built for the compute capabilities '
            f'{", ".join(_archs)}, and {device} has {capability[0]}.{capability[1]}; {_HOW}'
        )
    return None


def built_for(capability: tuple[int, int], archs: list[str]) -> bool:
    """Whether code for these architectures ('8.0', '9.0+PTX') runs on a GPU: machine code on later
    ones of the same major version, PTX on all later ones. Other names that torch knows ('Hopper')
    are left to CUDA, which rejects what it cannot run."""
    for arch in archs:
        match = re.match(r'(\d+)\.(\d+)', arch)
        if match is None:
            return True
        number = int(match[1]), int(match[2])
        if number <= capability and (number[0] == capability[0] or arch.endswith('+PTX')):
            return True
    return False


def use_compiled(backend: str, device: torch.device) -> bool:
    """Whether a call runs the compiled operator (True) or the reference (False).

    Args:
        backend (str): 'auto': compiled if possible, otherwise the reference with one warning;
            'compiled' or 'reference': that one.
        device (torch.device): of the tensors.

    Raises:
        ValueError: another ``backend``.
        RuntimeError: 'compiled' without a compiled operator for the device.
    """
    check_one_of('backend', backend, ('auto', 'compiled', 'reference'))
    if backend == 'reference':
        return False
    missing = missing_for(device)
    if missing is None:
        return True
    if backend == 'compiled':
        raise RuntimeError(f"backend is 'compiled', but {missing}")
    if not torch.compiler.is_compiling():
        warn_once(missing)
    return False


@functools.cache
def warn_once(reason: str) -> None:
    """Warns, once per reason, that plain PyTorch runs."""
    warnings.warn(f'{reason}. Plain PyTorch takes over, several times slower.', stacklevel=4)
