"""The supply of mmcv's operators: before, after, and with the install command."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from l2vit_mm import compat
from l2vit_mm.compat import __main__ as cli

needs_mmcv = pytest.mark.skipif(find_spec('mmcv') is None, reason='needs mmcv')


@pytest.fixture
def fake_mmcv(tmp_path, monkeypatch):
    """An mmcv without operators, first on the path."""
    (tmp_path / 'mmcv').mkdir()
    (tmp_path / 'mmcv' / '__init__.py').touch()
    real = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split('.')[0] == 'mmcv'}
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / 'mmcv'
    for name in [name for name in sys.modules if name.split('.')[0] == 'mmcv']:
        del sys.modules[name]
    sys.modules.update(real)


def run_cli(monkeypatch, command):
    monkeypatch.setattr(sys, 'argv', ['compat', command])
    return cli.main()


def run_python(code, *path):
    """Runs code in a new process; returns the last line of its output, or of its error."""
    env = dict(
        os.environ,
        OMP_NUM_THREADS='1',
        PYTHONPATH=os.pathsep.join([*map(str, path), os.environ.get('PYTHONPATH', '')]),
    )
    result = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code], env=env, text=True, capture_output=True
    )
    return (result.stderr if result.returncode else result.stdout).splitlines()[-1]


def test_install_and_uninstall(fake_mmcv, monkeypatch, capsys):
    file = fake_mmcv / '_ext.py'
    run_cli(monkeypatch, 'status')
    assert 'none' in capsys.readouterr().out
    for _ in range(2):
        assert run_cli(monkeypatch, 'install') is None
        assert file.exists()
    run_cli(monkeypatch, 'status')
    assert f'torchvision, {file}' in capsys.readouterr().out
    for _ in range(2):
        assert run_cli(monkeypatch, 'uninstall') is None
        assert not file.exists()
    assert 'nothing to remove' in capsys.readouterr().out


@pytest.mark.parametrize('name', ['_ext.py', '_ext.abi3.so'])
def test_operators_that_are_not_ours_are_left_alone(fake_mmcv, monkeypatch, capsys, name):
    (fake_mmcv / name).write_bytes(b'\x7fELF')
    for command in ('install', 'uninstall'):
        assert 'nothing changed' in run_cli(monkeypatch, command)
        assert [file.name for file in fake_mmcv.glob('_ext*')] == [name]
        assert (fake_mmcv / name).read_bytes() == b'\x7fELF'
    run_cli(monkeypatch, 'status')
    assert 'compiled' in capsys.readouterr().out


def test_a_compiled_mmcv_wins(fake_mmcv, monkeypatch):
    """Even if it appears later than our finder."""
    compat.supply_mmcv_ops()
    (fake_mmcv / '_ext.py').write_text('compiled = True')
    from mmcv import _ext

    assert _ext.compiled


def test_without_mmcv(monkeypatch):
    monkeypatch.setattr(compat.importlib.util, 'find_spec', lambda name: None)
    monkeypatch.setattr(sys, 'meta_path', list(sys.meta_path))
    monkeypatch.setattr(compat, '_ops_finder', compat._OpsFinder())
    compat.supply_mmcv_ops()
    assert compat._ops_finder not in sys.meta_path


@pytest.mark.train
@needs_mmcv
def test_supply_is_lazy():
    """Importing l2vit_mm imports neither torchvision nor a toolbox."""
    heavy = run_python(
        'import sys, l2vit_mm; print({m for m in ("torchvision", "mmcv", "mmcv.ops", "mmdet", '
        '"mmseg", "mmpretrain") if m in sys.modules})'
    )
    assert heavy == 'set()'


# A toolbox's module that goes on without the operators, as several do.
GUARDED = 'try:\n    from mmcv.ops import nms\nexcept ImportError:\n    nms = None\n'
CONFIG = "custom_imports = dict(imports=['l2vit_mm'])\n"


@pytest.mark.train
@needs_mmcv
def test_wrong_import_order_is_told(tmp_path):
    """To the user of a config, past mmengine, which hides the text of an ImportError."""
    (tmp_path / 'mmdet').mkdir()
    (tmp_path / 'mmdet' / '__init__.py').touch()
    (tmp_path / 'mmdet' / 'guarded.py').write_text(GUARDED)
    (tmp_path / 'config.py').write_text(CONFIG)
    code = (
        'import mmdet.guarded; from mmengine.config import Config\n'
        f'Config.fromfile({str(tmp_path / "config.py")!r}); print(mmdet.guarded.nms)'
    )
    output = run_python(code, tmp_path)
    if find_spec('mmcv._ext').origin.startswith(str(Path(compat.__file__).parent)):
        assert output.startswith('RuntimeError: mmcv has no compiled operators, and mmdet.guarded')
        assert output.endswith('run once: python -m l2vit_mm.compat install')
    else:  # compiled or installed
        assert output.startswith('<function nms')


@pytest.mark.train
@needs_mmcv
def test_stock_tool_after_install(tmp_path):
    """Everything of the real mmcv, with our file in it: mmdet may now be imported first."""
    pytest.importorskip('mmdet')
    real = Path(find_spec('mmcv').origin).parent
    (tmp_path / 'mmcv').mkdir()
    for entry in real.iterdir():
        if not entry.name.startswith('_ext'):
            (tmp_path / 'mmcv' / entry.name).symlink_to(entry)
    (tmp_path / 'mmcv' / '_ext.py').write_text(cli._EXT)
    code = (
        'import mmdet.apis, mmcv, torch\n'
        'from mmengine.runner import CheckpointLoader\n'
        'import mmdet.structures.mask.structures as masks\n'
        'out = masks.roi_align(torch.ones(1, 1, 4, 4), torch.tensor([[0., 0, 0, 4, 4]]), 2)\n'
        'print(mmcv._ext.__file__, out.sum().item(),\n'
        '      CheckpointLoader._get_checkpoint_loader("x.pth").__module__)'
    )
    assert run_python(code, tmp_path) == f'{tmp_path}/mmcv/_ext.py 4.0 l2vit_mm.compat.mmengine'
