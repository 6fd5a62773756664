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
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
# What an environment is made from: it is brought up to date when one of them changes.
INPUTS = ('pyproject.toml', 'constraints.txt', 'tools/setup_env.py')
# torch and the libraries it loads, 5.5 GB: what a second environment takes from the first one.
# Their small pure dependencies (sympy, jinja2, numpy, ...) are left to pip.
TORCH_PACKAGES = ('torch', 'torchvision', 'triton', 'nvidia-*', 'cuda-*')


def run(what, *command):
    """Runs a command; when it fails, ends with a line that says what was being done."""
    command = [str(part) for part in command]
    print('+', *command, flush=True)
    if subprocess.run(command, cwd=REPO).returncode:
        sys.exit(f'setup: could not {what}: see the output above')


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
    state = hashlib.sha256('\0'.join(state).encode()).hexdigest()
    stamp = venv / 'l2vit-setup'
    if venv_version(venv) == version and stamp.exists() and stamp.read_text() == state:
        return

    stamp.unlink(missing_ok=True)
    if venv_version(venv) != version or not (venv / 'bin' / 'pip').exists():
        create(venv, version)
    if args.torch_from:
        share_torch(source, venv, version)
    pip = (venv / 'bin' / 'python', '-m', 'pip', '--disable-pip-version-check', 'install',
           '--constraint', 'constraints.txt')
    run(f'install the packages into {venv}', *pip, '--editable', f'.[{args.stack},test]')
    # mmcv requires opencv-python, which needs libGL.so.1 and so fails on a machine without a
    # desktop. The headless build has the same files in the same folder: let it come last.
    run('install OpenCV without a GUI', *pip, '--force-reinstall', '--no-deps',
        'opencv-python-headless')
    run('import what was installed', venv / 'bin' / 'python', '-c',
        'import torch, torchvision, cv2, mmengine, mmcv; assert cv2.version.headless')
    stamp.write_text(state)
    print(f'setup: {venv} is ready', flush=True)


if __name__ == '__main__':
    main()
