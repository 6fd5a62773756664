import subprocess
import sys


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)


def test_ops_and_layers_without_mm():
    code = """
import sys
for name in ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'):
    sys.modules[name] = None  # as if not installed: importing it fails
import l2vit_mm.ops, l2vit_mm.layers
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_importing_the_package_imports_no_toolbox():
    code = """
import sys
import l2vit_mm
found = [m for m in ('mmcv.ops', 'mmdet', 'mmseg', 'mmpretrain', 'l2vit_mm.datasets')
         if m in sys.modules]
assert not found, found
from mmengine.registry import MODELS
assert MODELS.get('L2ViT') is not None
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
