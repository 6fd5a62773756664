"""What importing brings in, and when things are registered; each in a process of its own."""

import os
import subprocess
import sys

import pytest


def run(code: str, *path: str) -> str:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([*path, os.environ.get('PYTHONPATH', '')]))
    result = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_ops_bring_in_torch_and_nothing_of_mm():
    run("""
import sys
import l2vit_mm.ops
found = [m for m in sys.modules if m.split('.')[0] in (
    'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'einops', 'cv2')]
assert not found, found
assert not [m for m in sys.modules if m.startswith('l2vit_mm.') and m.split('.')[1] not in (
    'ops', 'version', 'registration', '_import_hooks', 'compat')]
""")


def test_ops_and_layers_without_mm():
    run("""
import sys
for name in ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'):
    sys.modules[name] = None  # as if not installed: importing it fails
import l2vit_mm.ops, l2vit_mm.layers
""")


def test_the_package_imports_nothing():
    run("""
import sys
before = {m.split('.')[0] for m in sys.modules}
import l2vit_mm
found = {m.split('.')[0] for m in sys.modules} - before - {'l2vit_mm', *sys.stdlib_module_names}
assert not {m for m in found if not m.startswith('_')}, found
""")


@pytest.mark.train
@pytest.mark.parametrize(
    'order',
    ['import l2vit_mm, mmengine', 'import mmengine, l2vit_mm', 'import l2vit_mm, mmengine.model'],
)
def test_backbones_are_registered_in_any_order(order):
    run(f"""
import sys
{order}
found = [m for m in sys.modules if m.startswith('mmengine._') or m in (
    'mmcv.ops', 'mmdet', 'mmseg', 'mmpretrain', 'l2vit_mm.engine.strategies')]
assert not found, found
from mmengine.registry import HOOKS, MODELS, OPTIM_WRAPPER_CONSTRUCTORS
assert MODELS.get('L2ViT') is not None and MODELS.get('SimpleFeaturePyramid') is not None
assert HOOKS.get('StrictLoadHook') is not None
assert OPTIM_WRAPPER_CONSTRUCTORS.get('LayerDecayOptimWrapperConstructor') is not None
""")


@pytest.mark.train
@pytest.mark.parametrize('order', ['before', 'behind'])
@pytest.mark.parametrize(
    'toolbox, name',
    [
        ('mmdet', 'ValidRegionDetDataPreprocessor'),
        ('mmseg', 'ValidRegionSegDataPreProcessor'),
        ('mmpretrain', 'ValidRegionClsDataPreprocessor'),
    ],
)
def test_data_preprocessors_are_registered_in_any_order(toolbox, name, order):
    pytest.importorskip(toolbox)
    # A toolbox goes on without mmcv's operators if it is imported first: supply them.
    late = f'from l2vit_mm.compat import supply_mmcv_ops; import {toolbox}.models'
    run(f"""
{'import l2vit_mm' if order == 'before' else late}
import {toolbox}.models, l2vit_mm
from {toolbox}.registry import MODELS
cls = MODELS.get('{name}')
assert cls.__module__.startswith('l2vit_mm.data_preprocessors.'), cls
""")


def test_a_module_that_is_being_imported_is_waited_for(tmp_path):
    """As when mmcv's operators are ours and a toolbox imports them before it is through."""
    (tmp_path / 'theirs.py').write_text(
        "import l2vit_mm._import_hooks as hooks\nhooks.import_after('theirs', 'ours')\nlate = 1\n"
    )
    (tmp_path / 'ours.py').write_text('import theirs\nprint(theirs.late)\n')
    (tmp_path / 'another.py').touch()
    assert (
        run('import theirs, sys; assert "ours" not in sys.modules; import another', str(tmp_path))
        == '1\n'
    )


def test_waiting_does_not_change_how_modules_are_found(tmp_path):
    (tmp_path / 'theirs.py').write_text('value = 1\n')
    (tmp_path / 'ours.py').write_text('import theirs\nprint(theirs.value)\n')
    code = """
import l2vit_mm._import_hooks as hooks
hooks.import_after('theirs', 'ours')
import importlib.util
assert importlib.util.find_spec('theirs').origin.endswith('theirs.py')
import theirs
assert type(theirs.__loader__).__name__ == 'SourceFileLoader' or theirs.__spec__.loader.get_code
import inspect; assert 'value' in inspect.getsource(theirs)
"""
    assert run(code, str(tmp_path)) == '1\n'
    assert (
        'No module named'
        in subprocess.run(
            [
                sys.executable,
                '-c',
                'import l2vit_mm._import_hooks as hooks\n'
                "hooks.import_after('absent', 'ours')\nimport absent",
            ],
            text=True,
            capture_output=True,
            env=dict(os.environ),
        ).stderr
    )
