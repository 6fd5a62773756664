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
# Without a wish or a GPU. 8.0 serves 8.6 and 8.9, PTX what is newer; each one more costs its time.
ARCHS = '8.0;9.0+PTX'


class NoCuda(Exception):
    """Why CUDA kernels can't be built here."""


def nvcc_says(nvcc, *options):
    return subprocess.run([nvcc, *options], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT).stdout


def warn(text):
    """Prints a warning that stands out, now and, below what the compilers print, at the end."""
    banner = f'\n{"*" * 79}\nl2vit-mm: {text}\n{"*" * 79}\n'
    print(banner, file=sys.stderr, flush=True)
    atexit.register(print, banner, file=sys.stderr)


def find_toolkit():
    """Returns the folder of the CUDA toolkit, the one whose bin/ holds the true nvcc."""
    home = os.environ.get('CUDA_HOME')
    if home:
        if not Path(home, 'bin', 'nvcc').is_file():
            raise NoCuda(f'CUDA_HOME is {home}, where there is no bin/nvcc')
        return Path(home)
    nvcc = shutil.which('nvcc') or '/usr/local/cuda/bin/nvcc'
    if not Path(nvcc).is_file():
        raise NoCuda(f'CUDA_HOME is not set, there is no nvcc on the PATH and no {nvcc}')
    # It may be a link, or a script that runs another one: nvcc itself says where it is.
    here = re.search('_HERE_=(.+)', nvcc_says(nvcc, '--dryrun', '-x', 'cu', os.devnull))
    return Path(here[1] if here else Path(nvcc).parent, 'nvcc').resolve().parent.parent


def find_cuda(torch):
    """Returns the toolkit's folder and its version, which is one that fits torch."""
    if not torch.version.cuda:
        raise NoCuda(f'torch {torch.__version__} is built without CUDA')
    home = find_toolkit()
    version = re.search(r'release (\d+)\.\d+', nvcc_says(home / 'bin' / 'nvcc', '--version'))
    if not version or version[1] != torch.version.cuda.split('.')[0]:
        raise NoCuda(f'torch {torch.__version__} needs a toolkit of CUDA {torch.version.cuda}; '
                     f'that in {home} is {version[0] if version else "of unknown version"}')
    return home, version[0].split()[1]


def choose_archs(torch):
    """Returns what TORCH_CUDA_ARCH_LIST says, else the GPUs of this machine, else the default."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    own = {'{}.{}'.format(*torch.cuda.get_device_capability(gpu)) for gpu in gpus}
    return os.environ.get('TORCH_CUDA_ARCH_LIST') or ';'.join(sorted(own)) or ARCHS


def extension(cuda=None, archs=None):
    """Returns the extension for the CPU and, given a version of CUDA, for CUDA as well."""
    from torch.utils import cpp_extension
    kind = cpp_extension.CUDAExtension if cuda else cpp_extension.CppExtension
    sources = [*CSRC.glob('*.cpp'), *CSRC.glob('cpu/*.cpp')]
    # The kernels themselves ask for AVX2 or AVX-512, file by file, and choose at run time.
    cxx = ['-O3', '-g0', '-fopenmp', '-fvisibility=hidden']
    if cuda:
        sources += CSRC.glob('cuda/*.cu')
        cxx += ['-DL2VIT_MM_WITH_CUDA', f'-DL2VIT_MM_CUDA="{cuda}"',
                '-DL2VIT_MM_ARCHS="{}"'.format(archs.replace(';', ' '))]
    # -z defs: a function that is missing fails the build, instead of every import after it.
    return kind('l2vit_mm._C', sorted(map(str, sources)), py_limited_api=True,
                extra_compile_args={'cxx': cxx, 'nvcc': ['-O3']},
                extra_link_args=['-fopenmp', '-Wl,-z,defs'])


def build_command(mode):
    """Returns torch's build_ext, which under 'auto' builds less rather than nothing."""
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        def run(self):
            # setuptools compares the sources alone; ninja the headers and the options as well.
            self.force = True
            # A failed build must not leave an old extension in its place.
            Path(self.get_ext_fullpath('l2vit_mm._C')).unlink(missing_ok=True)
            super().run()

        def build_extensions(self):
            try:
                super().build_extensions()
            except Exception as error:  # of many kinds: torch's, setuptools', the system's
                if mode != 'auto':
                    raise
                if any(source.endswith('.cu') for source in self.extensions[0].sources):
                    warn('NO CUDA KERNELS, those for the CPU follow: the build failed, see above:'
                         f'\n{error}\nL2VIT_MM_BUILD=cuda makes this an error.')
                    vars(self.extensions[0]).update(vars(extension()))
                    self.build_extensions()
                else:
                    warn('NO COMPILED OPERATORS, PyTorch will do: the build failed, see above:'
                         f'\n{error}\nL2VIT_MM_BUILD=cpu makes this an error.')
                    self.extensions.clear()

    return Build


def plan():
    """Returns the arguments of setup() that depend on the environment."""
    mode = os.environ.get('L2VIT_MM_BUILD') or 'auto'
    if mode not in ('auto', 'cpu', 'cuda', 'none'):
        sys.exit(f'l2vit-mm: L2VIT_MM_BUILD is {mode!r}, it must be auto, cpu, cuda or none')
    if mode == 'none':
        return {}
    try:
        import torch
    except (ImportError, OSError) as error:
        text = f'the build finds no torch ({error}): pip install --no-build-isolation .'
        if mode != 'auto':
            sys.exit(f'l2vit-mm: L2VIT_MM_BUILD is {mode!r}, but {text}')
        warn(f'NO COMPILED OPERATORS, PyTorch will do: {text}')
        return {}
    cuda = {}
    if mode != 'cpu':
        try:
            home, version = find_cuda(torch)
        except NoCuda as reason:
            if mode == 'cuda':
                sys.exit(f"l2vit-mm: L2VIT_MM_BUILD is 'cuda', but: {reason}")
            print(f'l2vit-mm: kernels for the CPU only: {reason}')
        else:
            cuda = {'cuda': version, 'archs': choose_archs(torch)}
            # torch.utils.cpp_extension looks for the toolkit itself otherwise, on import.
            os.environ.update(CUDA_HOME=str(home), TORCH_CUDA_ARCH_LIST=cuda['archs'])
            print(f'l2vit-mm: kernels for the CPU and CUDA {version} ({home}): {cuda["archs"]}')
    return {'ext_modules': [extension(**cuda)], 'cmdclass': {'build_ext': build_command(mode)}}


if __name__ == '__main__':
    setup(options={'bdist_wheel': {'py_limited_api': 'cp310'}}, **plan())
