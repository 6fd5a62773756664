"""Sets up a virtual environment with one OpenMMLab stack and this project; `make` calls it.

If the environment is up to date it returns at once. Otherwise it creates what is missing and has
pip install the versions in constraints.txt. It prints which step is running and for how long. The
output of pip and the compilers goes to build/setup.log, and to the terminal if a step fails. It
runs without any packages, so it imports the standard library only.
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
import time
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
# Inputs of an environment, which is updated when one of these files changes.
INPUTS = ('pyproject.toml', 'constraints.txt', 'tools/setup_env.py')
# Inputs of the compiled operators, besides torch. The operators and the stamp of their inputs are
# in the source tree, which all environments share.
EXTENSION = 'l2vit_mm/_C.abi3.so'
EXTENSION_INPUTS = ('setup.py', 'l2vit_mm/ops/csrc/**/*.[ch]*')
EXTENSION_VARIABLES = ('L2VIT_MM_BUILD', 'TORCH_CUDA_ARCH_LIST', 'CUDA_HOME', 'CC', 'CXX')
# torch and the libraries that it loads, 5.5 GB: a second environment uses those of the first one.
# pip installs their small dependencies (sympy, jinja2, numpy, ...).
TORCH_PACKAGES = ('torch', 'torchvision', 'triton', 'nvidia-*', 'cuda-*')
# Seconds between two progress messages of a running step: on a terminal, where one line is
# rewritten, and in a file or a CI log.
HEARTBEAT_TERMINAL = 1
HEARTBEAT_LOG = 30


def duration(seconds: float) -> str:
    """Formats a time span: '42 s' or '2 min 05 s'."""
    minutes, seconds = divmod(round(seconds), 60)
    return f'{minutes} min {seconds:02d} s' if minutes else f'{seconds} s'


def last_line(log: Path) -> str:
    """Returns the last non-empty line of a log file that another process is writing."""
    with log.open('rb') as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors='replace').split('\n')
    return next((line.strip() for line in reversed(lines) if line.strip()), '')


def run(*command: object, **variables: str) -> None:
    """Runs a command of the current step with its output in the log, and prints its progress.

    Args:
        command: Program and arguments.
        variables: Environment variables to set.

    Raises:
        subprocess.CalledProcessError: If the command fails.
    """
    command = [str(part) for part in command]
    terminal = sys.stdout.isatty()
    log = REPO / 'build' / 'setup.log'
    with log.open('a') as file:
        print(
            '+',
            *(f'{name}={value}' for name, value in variables.items()),
            *command,
            file=file,
            flush=True,
        )
        process = subprocess.Popen(
            command,
            cwd=REPO,
            env={**os.environ, **variables},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    start = time.monotonic()
    while True:
        try:
            returncode = process.wait(HEARTBEAT_TERMINAL if terminal else HEARTBEAT_LOG)
            break
        except subprocess.TimeoutExpired:
            status = f'      {duration(time.monotonic() - start)}: {last_line(log)}'
            if terminal:
                width = shutil.get_terminal_size().columns - 1
                print(f'\r\033[K{status[:width]}', end='', flush=True)
            else:
                print(status[:100], flush=True)
    if terminal:
        print('\r\033[K', end='', flush=True)
    if returncode:
        raise subprocess.CalledProcessError(returncode, command)


def run_steps(steps: list[tuple[str, Callable[[], None]]]) -> None:
    """Runs steps in turn, and prints which one is running and how long each took.

    Args:
        steps: Pairs of a phrase that completes "could not ..." and a function. If the function
            fails, the program exits with this message.
    """
    log = REPO / 'build' / 'setup.log'
    log.parent.mkdir(exist_ok=True)
    log.write_text('')
    start = time.monotonic()
    for number, (title, step) in enumerate(steps, 1):
        print(f'[{number}/{len(steps)}] {title}', flush=True)
        begin, offset = time.monotonic(), log.stat().st_size
        try:
            step()
        except subprocess.CalledProcessError as error:
            print(log.read_bytes()[offset:].decode(errors='replace'))
            sys.exit(
                f'setup: could not {title}: {error.cmd[0]} returned {error.returncode}, '
                f'see the output above (and in {log})'
            )
        # Messages of setup.py (no compiler, no CUDA, ...) must also reach the terminal.
        lines = log.read_bytes()[offset:].decode(errors='replace').splitlines()
        for line in dict.fromkeys(line for line in lines if line.startswith('l2vit-mm: ')):
            print(f'      {line}')
        print(f'      done in {duration(time.monotonic() - begin)}', flush=True)
    print(f'setup: ready after {duration(time.monotonic() - start)}; log: {log}', flush=True)


def digest(parts: list[str]) -> str:
    """Returns a hash of some texts."""
    return hashlib.sha256('\0'.join(parts).encode()).hexdigest()


def venv_version(venv: Path) -> str | None:
    """Returns the 'X.Y' of an existing virtual environment, or None where there is none."""
    config = venv / 'pyvenv.cfg'
    match = config.exists() and re.search(r'^version *= *(\d+\.\d+)', config.read_text(), re.M)
    return match.group(1) if match else None


def site_packages(venv: Path, version: str) -> Path:
    """Returns the folder that packages are installed into."""
    return venv / 'lib' / f'python{version}' / 'site-packages'


def create(venv: Path, version: str) -> None:
    """Creates the environment, or completes one whose creation was interrupted."""
    # --clear empties the folder, so only where it is an environment, of another Python.
    clear = ['--clear'] if venv_version(venv) not in (None, version) else []
    run(sys.executable, '-m', 'venv', *clear, venv)


def share_torch(source: Path, venv: Path, version: str) -> None:
    """Makes the torch packages of one environment visible in another one.

    They are linked into a folder of their own, which a .pth file puts *behind* the environment's
    site-packages. There pip sees them as installed, but can't change or remove them; packages that
    it needs in another version it installs into site-packages, which come first.
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


def environment_steps(
    venv: Path, version: str, stack: str, torch_from: Path | None, state: str
) -> list[tuple[str, Callable[[], None]]]:
    """Returns the steps that create or update an environment, without the compiled operators.

    Args:
        venv: Folder of the environment.
        version: Its Python, 'X.Y'.
        stack: Which MM stack, 'onedl' or 'openmmlab'.
        torch_from: Environment whose torch it uses, or None for a torch of its own.
        state: Hash of its inputs, with which a finished environment is stamped.

    Returns:
        Steps for :func:`run_steps`; none if the environment is up to date.
    """
    stamp = venv / 'l2vit-setup'
    complete = venv_version(venv) == version and (venv / 'bin' / 'pip').exists()
    if complete and stamp.exists() and stamp.read_text() == state:
        return []

    python = venv / 'bin' / 'python'
    pip = (
        python,
        '-m',
        'pip',
        '--disable-pip-version-check',
        'install',
        '--constraint',
        'constraints.txt',
    )
    # The tools for contributors (ruff, mypy, ...) are needed once, in the main environment.
    extras = f'{stack},test' if torch_from else f'{stack},test,dev'

    def install() -> None:
        stamp.unlink(missing_ok=True)
        # pip builds mmcv and this project isolated from torch: mmcv would compile for most of an
        # hour if it saw torch. This project can't compile there: setuptools builds it later.
        run(*pip, '--editable', f'.[{extras}]', 'setuptools>=77', L2VIT_MM_BUILD='none')

    def check() -> None:
        run(
            python,
            '-c',
            'import torch, torchvision, cv2, mmengine, mmcv; assert cv2.version.headless',
        )
        stamp.write_text(state)

    steps = []
    if not complete:
        if importlib.util.find_spec('ensurepip') is None:
            sys.exit(
                f'setup: {sys.executable} cannot create virtual environments: install its '
                f'venv module (on Debian: apt-get install python{version}-venv)'
            )
        steps.append((f'create {venv}', lambda: create(venv, version)))
    if torch_from:
        steps.append(
            (f'link the torch of {torch_from}', lambda: share_torch(torch_from, venv, version))
        )
    steps.append((f'install the packages into {venv}', install))
    # mmcv requires opencv-python, which needs libGL.so.1 and so fails on a machine without a
    # desktop. The headless build has the same files in the same folder: it must come last.
    steps.append(
        (
            'install OpenCV without a GUI',
            lambda: run(*pip, '--force-reinstall', '--no-deps', 'opencv-python-headless'),
        )
    )
    steps.append(('import what was installed', check))
    return steps


def extension_steps(venv: Path, packages: str) -> list[tuple[str, Callable[[], None]]]:
    """Returns the step that builds the compiled operators, if one of their inputs has changed.

    Args:
        venv: Environment with the torch that they are built for.
        packages: Hash of the inputs of that environment, as torch may have changed.

    Returns:
        Steps for :func:`run_steps`.
    """
    files = sorted(path for pattern in EXTENSION_INPUTS for path in REPO.glob(pattern))
    state = digest(
        [
            packages,
            *(os.environ.get(name, '') for name in EXTENSION_VARIABLES),
            *(shutil.which(name) or '' for name in ('c++', 'nvcc')),
            *(f'{path}\0{path.read_text()}' for path in files),
        ]
    )
    extension = REPO / EXTENSION
    stamp = REPO / 'build' / 'l2vit-extension'
    # setup.py may skip the build and say why; with the same inputs there is no need to try again.
    if stamp.exists() and stamp.read_text() == f'{state} {extension.exists()}':
        return []

    def build() -> None:
        stamp.unlink(missing_ok=True)
        extension.unlink(missing_ok=True)
        # Not by pip: this keeps the objects of files that did not change.
        run(venv / 'bin' / 'python', 'setup.py', 'build_ext', '--inplace')
        stamp.write_text(f'{state} {extension.exists()}')

    return [('build the compiled operators (L2VIT_MM_BUILD=none skips them)', build)]


def main() -> None:
    """Creates or updates an environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--venv', type=Path, required=True, help='folder of the environment')
    parser.add_argument(
        '--stack',
        choices=('onedl', 'openmmlab'),
        required=True,
        help='which releases of mmengine, mmcv, mmdet, mmseg and mmpretrain',
    )
    parser.add_argument(
        '--torch-from',
        type=Path,
        metavar='VENV',
        help='use the torch of this environment, created before by this script',
    )
    args = parser.parse_args()
    venv = args.venv.absolute()
    source = args.torch_from and args.torch_from.absolute()
    version = '{}.{}'.format(*sys.version_info)
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        sys.exit(
            f'setup: Python must be 3.10 to 3.12, got {version} ({sys.executable}); '
            'choose another one, for example: make test PYTHON=python3.11'
        )

    parts = [version, args.stack] + [(REPO / name).read_text() for name in INPUTS]
    if source:
        if venv_version(source) != version:
            sys.exit(f'setup: the Python of {source} must be {version}, got {venv_version(source)}')
        parts.append(str((source / 'l2vit-setup').stat().st_mtime_ns))
    state = digest(parts)
    steps = environment_steps(venv, version, args.stack, source, state)
    if not source:  # else they have been built already, for that torch
        steps += extension_steps(venv, state)
    if steps:
        run_steps(steps)


if __name__ == '__main__':
    main()
