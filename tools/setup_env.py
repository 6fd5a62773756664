"""Makes a virtual environment with one OpenMMLab stack and this project; `make` calls it.

Where the environment is up to date this returns at once. Otherwise it creates what is missing and
lets pip bring the rest to the versions in constraints.txt. It runs on a bare Python, so it imports
nothing but the standard library.
"""
import argparse
import fnmatch
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
# What an environment is made from: it is brought up to date when one of them changes.
INPUTS = ('pyproject.toml', 'constraints.txt', 'tools/setup_env.py')
# What the compiled operators are made from, torch apart. They lie in the source tree, which all
# environments share, and so does the note of what they were built from.
EXTENSION = 'l2vit_mm/_C.abi3.so'
EXTENSION_INPUTS = ('setup.py', 'l2vit_mm/ops/csrc/**/*.[ch]*')
EXTENSION_VARIABLES = ('L2VIT_MM_BUILD', 'TORCH_CUDA_ARCH_LIST', 'CUDA_HOME', 'CC', 'CXX')
# torch and the libraries it loads, 5.5 GB: what a second environment takes from the first one.
# Their small pure dependencies (sympy, jinja2, numpy, ...) are left to pip.
TORCH_PACKAGES = ('torch', 'torchvision', 'triton', 'nvidia-*', 'cuda-*')


def run(what, *command, **variables):
    """Runs a command; when it fails, ends with a line that says what was being done."""
    command = [str(part) for part in command]
    print('+', *(f'{name}={value}' for name, value in variables.items()), *command, flush=True)
    if subprocess.run(command, cwd=REPO, env={**os.environ, **variables}).returncode:
        sys.exit(f'setup: could not {what}: see the output above')


def digest(parts):
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()


def venv_version(venv):
    """Returns the 'X.Y' of an existing virtual environment, or None where there is none."""
    config = venv / 'pyvenv.cfg'
    match = config.exists() and re.search(r'^version *= *(\d+\.\d+)', config.read_text(), re.M)
    return match.group(1) if match else None


def site_packages(venv, version):
    return venv / 'lib' / f'python{version}' / 'site-packages'


def create(venv, version):
    """Creates the environment, or completes one whose creation was interrupted."""
    if importlib.util.find_spec('ensurepip') is None:
        sys.exit(f'setup: {sys.executable} cannot make virtual environments: install its venv '
                 f'module (on Debian: apt-get install python{version}-venv)')
    # --clear empties the folder, so only where it is an environment, of another Python.
    clear = ['--clear'] if venv_version(venv) not in (None, version) else []
    run(f'create {venv}', sys.executable, '-m', 'venv', *clear, venv)


def share_torch(source, venv, version):
    """Makes the torch packages of one environment visible in another one.

    They are linked into a folder of their own, which a .pth file puts *behind* the environment's
    site-packages: pip there sees them as installed, yet can neither change nor remove them, and
    whatever else it wants in another version it puts in front.
    """
    packages = site_packages(source, version)
    shared = venv / 'shared'
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    for dist in importlib.metadata.distributions(path=[str(packages)]):
        name = dist.metadata['Name'].lower().replace('_', '-')
        if any(fnmatch.fnmatch(name, pattern) for pattern in TORCH_PACKAGES):
            for entry in {file.parts[0] for file in dist.files} - {'..', '__pycache__'}:
                # Several packages may share a folder: nvidia/, cuda/.
                if not (shared / entry).exists():
                    (shared / entry).symlink_to(packages / entry)
    (site_packages(venv, version) / 'shared.pth').write_text(f'{shared}\n')


def install(venv, version, stack, torch_from):
    """Makes the environment, or brings it up to date: everything but the compiled operators."""
    if venv_version(venv) != version or not (venv / 'bin' / 'pip').exists():
        create(venv, version)
    if torch_from:
        share_torch(torch_from.absolute(), venv, version)
    pip = (venv / 'bin' / 'python', '-m', 'pip', '--disable-pip-version-check', 'install',
           '--constraint', 'constraints.txt')
    # pip builds mmcv and this project apart from torch: mmcv would compile for most of an hour if
    # it saw torch, and this project can't, so it is told not to try. setuptools builds it later.
    run(f'install the packages into {venv}', *pip, '--editable', f'.[{stack},test]',
        'setuptools>=77', L2VIT_MM_BUILD='none')
    # mmcv requires opencv-python, which needs libGL.so.1 and so fails on a machine without a
    # desktop. The headless build has the same files in the same folder: let it come last.
    run('install OpenCV without a GUI', *pip, '--force-reinstall', '--no-deps',
        'opencv-python-headless')
    run('import what was installed', venv / 'bin' / 'python', '-c',
        'import torch, torchvision, cv2, mmengine, mmcv; assert cv2.version.headless')


def build_extension(venv, packages):
    """Builds the compiled operators, where something that they are made from has changed.

    Args:
        venv: The environment whose torch they are for.
        packages: The state of its packages, in which torch may have changed.
    """
    files = sorted(path for pattern in EXTENSION_INPUTS for path in REPO.glob(pattern))
    state = digest([packages, *(os.environ.get(name, '') for name in EXTENSION_VARIABLES),
                    *(shutil.which(name) or '' for name in ('c++', 'nvcc')),
                    *(f'{path}\0{path.read_text()}' for path in files)])
    extension = REPO / EXTENSION
    stamp = REPO / 'build' / 'l2vit-extension'
    # setup.py may go without it, and says why: no reason to try again before something changes.
    if stamp.exists() and stamp.read_text() == f'{state} {extension.exists()}':
        return

    stamp.unlink(missing_ok=True)
    extension.unlink(missing_ok=True)
    # Not by pip: this keeps the objects of files that did not change.
    run('build the compiled operators (L2VIT_MM_BUILD=none goes without them)',
        venv / 'bin' / 'python', 'setup.py', 'build_ext', '--inplace')
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(f'{state} {extension.exists()}')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--venv', type=Path, required=True, help='folder of the environment')
    parser.add_argument('--stack', choices=('onedl', 'openmmlab'), required=True,
                        help='which releases of mmengine, mmcv, mmdet, mmseg and mmpretrain')
    parser.add_argument('--torch-from', type=Path, metavar='VENV',
                        help='use the torch of this environment, made before by this script')
    args = parser.parse_args()
    venv = args.venv.absolute()
    version = '{}.{}'.format(*sys.version_info)
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        sys.exit(f'setup: {sys.executable} is Python {version}; the pinned packages need Python '
                 '3.10 to 3.12: make ... PYTHON=python3.11, say')

    state = [version, args.stack] + [(REPO / name).read_text() for name in INPUTS]
    if args.torch_from:
        source = args.torch_from.absolute()
        if venv_version(source) != version:
            sys.exit(f'setup: {source} is of Python {venv_version(source)}, not {version}')
        state.append(str((source / 'l2vit-setup').stat().st_mtime_ns))
    state = digest(state)
    stamp = venv / 'l2vit-setup'
    if venv_version(venv) != version or not stamp.exists() or stamp.read_text() != state:
        stamp.unlink(missing_ok=True)
        install(venv, version, args.stack, args.torch_from)
        stamp.write_text(state)
        print(f'setup: {venv} is ready', flush=True)
    if not args.torch_from:  # else they are there already, built for that torch
        build_extension(venv, state)


if __name__ == '__main__':
    main()
