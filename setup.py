"""Builds the compiled operators, l2vit_mm/_C.abi3.so; everything else is in pyproject.toml.

docs/install.md describes the environment variables and what happens when something is missing.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup

CSRC = Path('l2vit_mm/ops/csrc')
# The default where TORCH_CUDA_ARCH_LIST is not set and there is no GPU. 8.0 runs on 8.6 and 8.9 as
# well, PTX on everything newer; every further architecture adds to the compile time.
ARCHS = '8.0;9.0+PTX'
NO_OPERATORS = 'NO COMPILED OPERATORS, only the slower ones in plain PyTorch'


class NoCuda(Exception):
    """The reason why CUDA kernels can't be built here."""


def nvcc_output(nvcc, *options):
    """Returns what nvcc prints when run with these options."""
    return subprocess.run(
        [nvcc, *options], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ).stdout


def warn(text):
    """Prints a warning that stands out: now, and again at the end, below the compilers' output."""
    # Every line has the name, by which tools/setup_env.py finds it among that output.
    lines = '\n'.join(f'l2vit-mm: {line}' for line in text.splitlines())
    banner = f'\n{"*" * 79}\n{lines}\n{"*" * 79}\n'
    print(banner, file=sys.stderr, flush=True)
    atexit.register(print, banner, file=sys.stderr)


def find_toolkit():
    """Returns the folder of the CUDA toolkit, the one whose bin/ holds the real nvcc.

    Raises:
        NoCuda: If there is none.
    """
    home = os.environ.get('CUDA_HOME')
    if home:
        if not Path(home, 'bin', 'nvcc').is_file():
            raise NoCuda(f'CUDA_HOME must be a folder with bin/nvcc, got {home}')
        return Path(home)
    nvcc = shutil.which('nvcc') or '/usr/local/cuda/bin/nvcc'
    if not Path(nvcc).is_file():
        raise NoCuda(f'CUDA_HOME is not set, there is no nvcc on the PATH and no {nvcc}')
    # This may be a link or a wrapper script: nvcc itself reports the folder it runs from.
    here = re.search('_HERE_=(.+)', nvcc_output(nvcc, '--dryrun', '-x', 'cu', os.devnull))
    return Path(here[1] if here else Path(nvcc).parent, 'nvcc').resolve().parent.parent


def find_cuda(torch):
    """Returns the folder of a toolkit that fits torch, and its version.

    Raises:
        NoCuda: If there is no toolkit, or only one of another major version than torch's.
    """
    if not torch.version.cuda:
        raise NoCuda(f'torch {torch.__version__} is built without CUDA')
    home = find_toolkit()
    version = re.search(r'release (\d+)\.\d+', nvcc_output(home / 'bin' / 'nvcc', '--version'))
    if not version or version[1] != torch.version.cuda.split('.')[0]:
        raise NoCuda(
            f'the toolkit for torch {torch.__version__} must be of CUDA '
            f'{torch.version.cuda}, got {version[0] if version else "an unknown version"} '
            f'in {home}'
        )
    return home, version[0].split()[1]


def choose_archs(torch):
    """Returns TORCH_CUDA_ARCH_LIST, else the architectures of this machine's GPUs, else ARCHS."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    own = {'{}.{}'.format(*torch.cuda.get_device_capability(gpu)) for gpu in gpus}
    return os.environ.get('TORCH_CUDA_ARCH_LIST') or ';'.join(sorted(own)) or ARCHS


def extension(cuda=None, archs=None):
    """Describes the extension: for the CPU and, given a version of CUDA, for CUDA as well."""
    from torch.utils import cpp_extension

    kind = cpp_extension.CUDAExtension if cuda else cpp_extension.CppExtension
    sources = [*CSRC.glob('*.cpp'), *CSRC.glob('cpu/*.cpp')]
    # No -march: each file of kernels asks for its instruction set, which is chosen at run time.
    cxx = ['-O3', '-g0', '-fopenmp', '-fvisibility=hidden']
    if cuda:
        sources += CSRC.glob('cuda/*.cu')
        cxx += [
            '-DL2VIT_MM_WITH_CUDA',
            f'-DL2VIT_MM_CUDA="{cuda}"',
            '-DL2VIT_MM_ARCHS="{}"'.format(archs.replace(';', ' ')),
        ]
    # -z defs: an undefined symbol is an error of the build rather than of every later import.
    return kind(
        'l2vit_mm._C',
        sorted(map(str, sources)),
        py_limited_api=True,
        extra_compile_args={'cxx': cxx, 'nvcc': ['-O3']},
        extra_link_args=['-fopenmp', '-Wl,-z,defs'],
    )


def build_command(mode):
    """Returns torch's build_ext, which in mode 'auto' falls back to a smaller build on failure."""
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        def run(self):
            # setuptools compares only the sources, ninja also the headers and the options.
            self.force = True
            # A failed build must not leave an old extension behind.
            Path(self.get_ext_fullpath('l2vit_mm._C')).unlink(missing_ok=True)
            super().run()

        def build_extensions(self):
            try:
                super().build_extensions()
            except Exception as error:  # torch, setuptools and the system raise many types
                if mode != 'auto':
                    raise
                if any(source.endswith('.cu') for source in self.extensions[0].sources):
                    warn(
                        'NO CUDA KERNELS, only those for the CPU: the build failed, '
                        f'see its output:\n{error}\nL2VIT_MM_BUILD=cuda makes this an error.'
                    )
                    vars(self.extensions[0]).update(vars(extension()))
                    self.build_extensions()
                else:
                    warn(
                        f'{NO_OPERATORS}: the build failed, see its output:'
                        f'\n{error}\nL2VIT_MM_BUILD=cpu makes this an error.'
                    )
                    self.extensions.clear()

    return Build


def plan():
    """Returns the arguments of setup() that depend on the environment."""
    mode = os.environ.get('L2VIT_MM_BUILD') or 'auto'
    if mode not in ('auto', 'cpu', 'cuda', 'none'):
        sys.exit(f'l2vit-mm: L2VIT_MM_BUILD must be auto, cpu, cuda or none, got {mode!r}')
    if mode == 'none':
        return {}
    try:
        import torch
    except (ImportError, OSError) as error:
        text = (
            f'the build does not see torch ({error}); to compile them: '
            'pip install --no-build-isolation --no-deps .'
        )
        if mode != 'auto':
            sys.exit(f'l2vit-mm: L2VIT_MM_BUILD is {mode!r}, but {text}')
        warn(f'{NO_OPERATORS}: {text}')
        return {}
    cuda = {}
    if mode != 'cpu':
        try:
            home, version = find_cuda(torch)
        except NoCuda as reason:
            if mode == 'cuda':
                sys.exit(f"l2vit-mm: L2VIT_MM_BUILD is 'cuda', but: {reason}")
            print(f'l2vit-mm: kernels for the CPU only: {reason}', flush=True)
        else:
            cuda = {'cuda': version, 'archs': choose_archs(torch)}
            # Set before torch.utils.cpp_extension is imported, which looks for a toolkit itself.
            os.environ.update(CUDA_HOME=str(home), TORCH_CUDA_ARCH_LIST=cuda['archs'])
            print(
                f'l2vit-mm: kernels for the CPU and CUDA {version} ({home}): {cuda["archs"]}',
                flush=True,
            )
    return {'ext_modules': [extension(**cuda)], 'cmdclass': {'build_ext': build_command(mode)}}


if __name__ == '__main__':
    setup(options={'bdist_wheel': {'py_limited_api': 'cp310'}}, **plan())
