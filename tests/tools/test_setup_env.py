"""What `make` decides before it installs anything; `make test` itself does the installing."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = ('l2vit_mm/ops/csrc/bindings.cpp', 'l2vit_mm/ops/csrc/cuda/kernels.cuh')
PACKAGES = Path('lib') / 'python{}.{}'.format(*sys.version_info) / 'site-packages'


@pytest.fixture
def setup_env(tmp_path, monkeypatch):
    """tools/setup_env.py with a repository of its own, which records commands, and runs none."""
    source = Path(__file__).resolve().parents[2] / 'tools' / 'setup_env.py'
    spec = importlib.util.spec_from_file_location('setup_env', source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    repo = tmp_path / 'repo'
    for name in (*module.INPUTS, 'setup.py', *CSRC):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(name)
    monkeypatch.setattr(module, 'REPO', repo)
    for name in module.EXTENSION_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    module.commands = []
    module.returncode = 0
    module.builds = True  # whether setup.py makes an extension

    class Process:
        """A subprocess that prints a line and takes two heartbeats."""

        def __init__(self, command, cwd, env, stdout, stderr):
            module.commands.append(' '.join(command))
            if '--editable' in command:  # pip builds where there is no torch
                assert env['L2VIT_MM_BUILD'] == 'none'
            if 'setup.py' in command:
                assert env.get('L2VIT_MM_BUILD') == module.os.environ.get('L2VIT_MM_BUILD')
                assert not (repo / module.EXTENSION).exists()  # not to be taken for the new one
                if module.builds and module.returncode == 0:
                    (repo / module.EXTENSION).touch()
                print('l2vit-mm: CPU only\n' * 2, file=stdout)
            print(f'output {len(module.commands)}', file=stdout, flush=True)
            self.returncodes = [None, module.returncode]

        def wait(self, timeout):
            returncode = self.returncodes.pop(0)
            if returncode is None:
                raise subprocess.TimeoutExpired('', timeout)
            return returncode

    monkeypatch.setattr(module.subprocess, 'Popen', Process)
    return module


def make_venv(folder, version='{}.{}.0'.format(*sys.version_info)):
    (folder / 'bin').mkdir(parents=True)
    (folder / 'bin' / 'pip').touch()
    (folder / PACKAGES).mkdir(parents=True)
    (folder / 'pyvenv.cfg').write_text(f'home = /usr/bin\nversion = {version}\n')
    return folder


def call(module, monkeypatch, venv, *options, stack='onedl'):
    """Runs the tool; returns the commands that it ran."""
    argv = ['setup_env.py', '--venv', str(venv), '--stack', stack, *map(str, options)]
    monkeypatch.setattr(sys, 'argv', argv)
    module.commands.clear()
    module.main()
    return list(module.commands)


def test_installs_only_when_something_changed(setup_env, monkeypatch, tmp_path):
    venv = make_venv(tmp_path / 'venv')
    first = call(setup_env, monkeypatch, venv)
    assert not any(' -m venv ' in command for command in first)  # it exists: complete it
    assert any('--constraint constraints.txt --editable .[onedl,test,dev]' in c for c in first)
    assert first[-1] == f'{venv}/bin/python setup.py build_ext --inplace'
    assert call(setup_env, monkeypatch, venv) == []
    for name in setup_env.INPUTS:
        (setup_env.REPO / name).write_text('changed')
        assert call(setup_env, monkeypatch, venv) == first
        assert call(setup_env, monkeypatch, venv) == []


def test_what_the_extension_is_made_from_rebuilds_it_alone(setup_env, monkeypatch, tmp_path):
    venv = make_venv(tmp_path / 'venv')
    build = [call(setup_env, monkeypatch, venv)[-1]]

    def rebuilt():
        return call(setup_env, monkeypatch, venv) == build and not call(
            setup_env, monkeypatch, venv
        )

    for name in ('setup.py', *CSRC):
        (setup_env.REPO / name).write_text('changed')
        assert rebuilt(), name
    (setup_env.REPO / CSRC[0]).with_name('new.h').touch()
    assert rebuilt()
    monkeypatch.setenv('TORCH_CUDA_ARCH_LIST', '9.0')
    assert rebuilt()
    monkeypatch.setattr(shutil, 'which', lambda name: f'/new/{name}')  # a compiler was installed
    assert rebuilt()
    (setup_env.REPO / setup_env.EXTENSION).unlink()
    assert rebuilt()
    setup_env.builds = False
    monkeypatch.setenv('L2VIT_MM_BUILD', 'none')
    assert rebuilt()
    assert not (setup_env.REPO / setup_env.EXTENSION).exists()


@pytest.mark.parametrize('terminal', [False, True])
def test_progress(setup_env, monkeypatch, tmp_path, capsys, terminal):
    """Steps, times and the last line of output; what setup.py says, once; the rest in the log."""
    monkeypatch.setattr(setup_env.sys.stdout, 'isatty', lambda: terminal, raising=False)
    venv = tmp_path / 'venv'
    venv.mkdir()
    commands = call(setup_env, monkeypatch, venv)
    out = capsys.readouterr().out
    assert f'[1/5] create {venv}\n' in out
    assert '[5/5] build the compiled operators' in out
    assert '0 s: output 1' in out
    assert ('\r' in out) == terminal
    assert out.count('      l2vit-mm: CPU only\n') == 1
    assert out.count('      done in 0 s\n') == 5
    assert out.splitlines()[-1].startswith('setup: ready after 0 s; log: ')
    log = (setup_env.REPO / 'build' / 'setup.log').read_text()
    assert [line for line in log.splitlines() if line.startswith('+ ')] == [
        f'+ L2VIT_MM_BUILD=none {c}' if '--editable' in c else f'+ {c}' for c in commands
    ]


def test_duration(setup_env):
    assert [setup_env.duration(t) for t in (0.4, 59.4, 59.6, 125)] == [
        '0 s',
        '59 s',
        '1 min 00 s',
        '2 min 05 s',
    ]


def test_failed_build_is_reported_and_tried_again(setup_env, monkeypatch, tmp_path, capsys):
    venv = make_venv(tmp_path / 'venv')
    build = [call(setup_env, monkeypatch, venv)[-1]]
    (setup_env.REPO / 'setup.py').write_text('changed')
    setup_env.returncode = 1
    for _ in range(2):
        with pytest.raises(SystemExit, match='could not build the compiled operators'):
            call(setup_env, monkeypatch, venv)
        assert '\noutput 1\n' in capsys.readouterr().out
    setup_env.returncode = 0
    assert call(setup_env, monkeypatch, venv) == build


def test_failed_setup_is_reported_and_tried_again(setup_env, monkeypatch, tmp_path):
    venv = make_venv(tmp_path / 'venv')
    call(setup_env, monkeypatch, venv)
    (setup_env.REPO / 'constraints.txt').write_text('changed')
    setup_env.returncode = 1
    with pytest.raises(SystemExit, match='could not install the packages into .*venv'):
        call(setup_env, monkeypatch, venv)
    (setup_env.REPO / 'constraints.txt').write_text('constraints.txt')  # as at first, but half done
    setup_env.returncode = 0
    assert call(setup_env, monkeypatch, venv)


def test_environment_of_another_python_is_recreated(setup_env, monkeypatch, tmp_path):
    venv = make_venv(tmp_path / 'venv', version='3.9.1')
    assert call(setup_env, monkeypatch, venv)[0].endswith(f'-m venv --clear {venv}')


def test_unsupported_python(setup_env, monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env.sys, 'version_info', (3, 13, 0))
    with pytest.raises(SystemExit, match=r'must be 3\.10 to 3\.12, got 3\.13'):
        call(setup_env, monkeypatch, tmp_path / 'venv')


def test_python_without_venv(setup_env, monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit, match=r'apt-get install python3\.\d+-venv'):
        call(setup_env, monkeypatch, tmp_path / 'venv')


def test_second_environment_sees_torch_and_nothing_else(setup_env, monkeypatch, tmp_path):
    first = make_venv(tmp_path / 'first')
    for name, package in (
        ('torch', 'torch'),
        ('nvidia_cublas', 'nvidia/cu13'),
        ('nvidia-nccl-cu13', 'nvidia/nccl'),
        ('onedl_mmcv', 'mmcv'),
        ('numpy', 'numpy'),
    ):
        packages = first / PACKAGES
        info = packages / f'{name}-1.0.dist-info'
        (packages / package).mkdir(parents=True)
        (packages / package / '__init__.py').write_text('origin = __file__')
        info.mkdir()
        (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n')
        (info / 'RECORD').write_text(
            f'{package}/__init__.py,,\n{info.name}/METADATA,,\n../../../bin/{name},,\n'
        )
    call(setup_env, monkeypatch, first)
    second = make_venv(tmp_path / 'second')
    arguments = (setup_env, monkeypatch, second, '--torch-from', first)
    commands = call(*arguments, stack='openmmlab')
    assert any('--editable .[openmmlab,test]' in c for c in commands)
    assert not any('setup.py' in c for c in commands)  # it shares the extension
    assert sorted(path.name for path in (second / 'shared').iterdir()) == [
        'nvidia',
        'nvidia-nccl-cu13-1.0.dist-info',
        'nvidia_cublas-1.0.dist-info',
        'torch',
        'torch-1.0.dist-info',
    ]
    assert (second / PACKAGES / 'shared.pth').read_text().strip() == str(second / 'shared')
    assert (second / 'shared' / 'torch' / '__init__.py').read_text() == 'origin = __file__'

    assert call(*arguments, stack='openmmlab') == []
    (first / 'l2vit-setup').unlink()  # the first one was made again: link again
    call(setup_env, monkeypatch, first)
    assert call(*arguments, stack='openmmlab')
