"""`python -m l2vit_mm` prints what is installed and which operators run, for bug reports."""

import argparse
import os
import platform
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

import torch

import l2vit_mm
from l2vit_mm.compat import mmcv_ext_file
from l2vit_mm.compat.__main__ import is_ours
from l2vit_mm.ops import extension

_TOOLBOXES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain')


def main() -> None:
    """Prints one line per item."""
    argparse.ArgumentParser(prog='python -m l2vit_mm', description=__doc__).parse_args()
    for name, text in [*_machine(), *_operators(), *_toolboxes()]:
        print(f'{name:<12}{text}')


def _machine() -> Iterator[tuple[str, str]]:
    package = Path(l2vit_mm.__file__).parent
    yield 'l2vit-mm', f'{l2vit_mm.__version__}, {package}'
    yield 'Python', f'{platform.python_version()}, {platform.platform()}'
    yield 'torch', f'{torch.__version__}, CUDA {torch.version.cuda or "none"}'
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    for gpu in gpus:
        capability = '{}.{}'.format(*torch.cuda.get_device_capability(gpu))
        yield f'GPU {gpu}', f'{torch.cuda.get_device_name(gpu)}, {capability}'
    if not gpus:
        yield 'GPU', 'none'
    yield (
        'CPU',
        (
            f'{os.cpu_count()} cores, torch threads: {torch.get_num_threads()}, '
            f'OMP_NUM_THREADS: {os.environ.get("OMP_NUM_THREADS", "not set")}'
        ),
    )


def _operators() -> Iterator[tuple[str, str]]:
    error = extension.load_error()
    if error:
        yield 'operators', f'plain PyTorch: {error}'
        return
    info = extension.build_info()
    yield 'operators', f'compiled, {Path(l2vit_mm.__file__).with_name("_C.abi3.so")}'
    yield '  built', f'with torch {info["torch"]}, compiler {info["compiler"]}'
    yield '  CPU', info['cpu']
    yield '  CUDA', f'{info["cuda"]}, for {info["archs"]}' if 'cuda' in info else 'not built'


def _toolboxes() -> Iterator[tuple[str, str]]:
    distributions = packages_distributions()
    modules = {name: find_spec(name) for name in _TOOLBOXES}
    # Two packages for one module, such as mmcv and mmcv-lite, are a broken environment: show both.
    packages = {
        name: sorted(set(distributions.get(name, ()))) for name, module in modules.items() if module
    }
    stacks = {
        'OneDL' if package.startswith('onedl') else 'OpenMMLab'
        for names in packages.values()
        for package in names
    }
    yield 'MM stack', ' AND '.join(sorted(stacks)) or 'none'
    for name, module in modules.items():
        if module is None:
            yield name, 'not installed'
        else:
            yield (
                name,
                ', '.join(f'{version(package)} ({package})' for package in packages[name])
                or str(module.origin),
            )
    yield 'mmcv._ext', _mmcv_operators()


def _mmcv_operators() -> str:
    mmcv = find_spec('mmcv')
    if mmcv is None:
        return 'none'
    file = mmcv_ext_file(mmcv)
    if file is None:
        return 'torchvision, supplied by importing l2vit_mm'
    return f'torchvision, {file}' if is_ours(file) else f'compiled, {file}'


if __name__ == '__main__':
    main()
