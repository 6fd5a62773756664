"""`python -m l2vit_mm`, which prints the environment."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from l2vit_mm import __main__ as cli
from l2vit_mm import compat
from l2vit_mm.ops import extension


@pytest.fixture
def report(monkeypatch, capsys):
    """Runs the command; returns what it prints, line by line, under the first words."""

    def run():
        monkeypatch.setattr(sys, 'argv', ['l2vit_mm'])
        cli.main()
        lines = capsys.readouterr().out.splitlines()
        return {line[:12].strip(): line[12:] for line in lines}

    return run


@pytest.mark.train
def test_this_environment():
    result = subprocess.run([sys.executable, '-m', 'l2vit_mm'], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = {line[:12].strip(): line[12:] for line in result.stdout.splitlines()}
    assert lines['torch'].startswith(torch.__version__)
    assert lines['operators'].startswith('plain PyTorch' if extension.load_error() else 'compiled')
    if find_spec('mmengine'):
        import mmengine

        assert lines['MM stack'] in ('OneDL', 'OpenMMLab')
        assert lines['mmengine'].startswith(mmengine.__version__ + ' (')


@pytest.mark.train
def test_without_toolboxes_and_extension():
    code = """
import runpy, sys
for name in ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'):
    sys.modules[name] = None  # as if not installed
from l2vit_mm.ops import extension
extension.load_error = lambda: 'THE REASON'
runpy.run_module('l2vit_mm', run_name='__main__', alter_sys=True)
"""
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = {line[:12].strip(): line[12:] for line in result.stdout.splitlines()}
    assert lines['operators'] == 'plain PyTorch: THE REASON'
    assert lines['MM stack'] == 'none'
    assert lines['mmdet'] == 'not installed'
    assert lines['mmcv._ext'] == 'none'


def test_what_the_extension_was_built_for(report, monkeypatch):
    info = {'torch': '2.9.0', 'compiler': '12.2.0', 'cpu': 'avx2'}
    monkeypatch.setattr(extension, 'load_error', lambda: None)
    monkeypatch.setattr(extension, 'build_info', lambda: info)
    assert report()['CUDA'] == 'not built'
    info.update(cuda='13.0', archs='8.0 9.0+PTX')
    lines = report()
    assert lines['CUDA'] == '13.0, for 8.0 9.0+PTX'
    assert 'torch 2.9.0' in lines['built']


def test_gpus(report, monkeypatch):
    for name, value in (
        ('is_available', True),
        ('device_count', 2),
        ('get_device_name', 'T4'),
        ('get_device_capability', (7, 5)),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value: value)
    lines = report()
    assert lines['GPU 0'] == lines['GPU 1'] == 'T4, 7.5'


def test_two_stacks_in_one_environment(report, monkeypatch, tmp_path):
    (tmp_path / 'mmcv').mkdir()
    (tmp_path / 'mmcv' / '__init__.py').touch()
    (tmp_path / 'mmcv' / '_ext.abi3.so').touch()
    monkeypatch.setattr(
        cli, 'find_spec', lambda name: compat.PathFinder.find_spec(name, [str(tmp_path)])
    )
    monkeypatch.setattr(cli, 'packages_distributions', lambda: {'mmcv': ['onedl-mmcv', 'mmcv']})
    monkeypatch.setattr(cli, 'version', {'onedl-mmcv': '2.3.6', 'mmcv': '2.1.0'}.get)
    lines = report()
    assert lines['MM stack'] == 'OneDL AND OpenMMLab'
    assert lines['mmcv'] == '2.1.0 (mmcv), 2.3.6 (onedl-mmcv)'
    assert lines['mmcv._ext'] == f'compiled, {tmp_path}/mmcv/_ext.abi3.so'


def test_wrong_argument(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['l2vit_mm', 'status'])
    with pytest.raises(SystemExit, match='2'):
        cli.main()
    assert 'unrecognized arguments: status' in capsys.readouterr().err
