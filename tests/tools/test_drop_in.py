"""The toolboxes' own tools and configs run with L2ViT as their backbone.

Their tools import mmdet or mmseg before anything of ours, so where mmcv has no operators it needs
`python -m l2vit_mm.compat install`. That is done to a copy of mmcv, which PYTHONPATH puts first.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.train
MASK_RCNN = """
_base_ = '{mim}/configs/mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
custom_imports = dict(imports=['l2vit_mm'], allow_failed_imports=False)
model = dict(
    backbone=dict(_delete_=True, type='L2ViT', arch='pico'),
    neck=dict(in_channels={channels}))
"""
UPERNET = """
_base_ = '{mim}/configs/swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'
custom_imports = dict(imports=['l2vit_mm'], allow_failed_imports=False)
model = dict(
    backbone=dict(_delete_=True, type='L2ViT', arch='pico'),
    decode_head=dict(in_channels={channels}),
    auxiliary_head=dict(in_channels={channels[2]}))
"""


def mim(toolbox):
    """The toolbox's installed tools and configs."""
    return Path(importlib.util.find_spec(toolbox).origin).parent / '.mim'


@pytest.fixture(scope='module')
def environment(tmp_path_factory):
    """Environment variables for a process whose mmcv has operators."""
    site = tmp_path_factory.mktemp('site')
    mmcv = Path(importlib.util.find_spec('mmcv').origin).parent
    if not list(mmcv.glob('_ext.*')):
        shutil.copytree(mmcv, site / 'mmcv', ignore=shutil.ignore_patterns('__pycache__'))
    path = os.pathsep.join(filter(None, [str(site), os.environ.get('PYTHONPATH')]))
    environment = {**os.environ, 'PYTHONPATH': path}
    if (site / 'mmcv').is_dir():
        subprocess.run(
            [sys.executable, '-m', 'l2vit_mm.compat', 'install'],
            env=environment,
            cwd=site,
            check=True,
        )
        assert (site / 'mmcv' / '_ext.py').exists()
    return environment


def run(tool, *argv, environment, cwd):
    process = subprocess.run(
        [sys.executable, str(tool), *map(str, argv)],
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.returncode == 0, process.stdout[-5000:]
    return process.stdout


@pytest.mark.slow
def test_mask_rcnn_in_mmdet(environment, coco_files, small_mask_rcnn, pico_channels, tmp_path):
    folder = mim('mmdet')
    config = tmp_path / 'config.py'
    config.write_text(MASK_RCNN.format(mim=folder, channels=list(pico_channels)))
    options = [
        '--cfg-options',
        *coco_files,
        *small_mask_rcnn,
        'train_dataloader.dataset.pipeline.2.scale=(160,96)',
        'train_cfg.max_epochs=1',
        'train_cfg.val_interval=2',
    ]
    work = dict(environment=environment, cwd=tmp_path)

    run(folder / 'tools' / 'train.py', config, *options, **work)
    checkpoint = tmp_path / 'work_dirs' / 'config' / 'epoch_1.pth'
    output = run(folder / 'tools' / 'test.py', config, checkpoint, *options, **work)
    assert re.search(r'coco/bbox_mAP: \d\.\d+ .*coco/segm_mAP: \d\.\d+', output)


@pytest.mark.slow
def test_upernet_in_mmseg(environment, ade_files, small_upernet, pico_channels, tmp_path):
    folder = mim('mmseg')
    config = tmp_path / 'config.py'
    config.write_text(UPERNET.format(mim=folder, channels=list(pico_channels)))
    options = [
        '--cfg-options',
        *ade_files,
        *small_upernet,
        'train_cfg.max_iters=2',
        'train_dataloader.batch_size=2',
    ]
    work = dict(environment=environment, cwd=tmp_path)

    run(folder / 'tools' / 'train.py', config, *options, **work)
    checkpoint = tmp_path / 'work_dirs' / 'config' / 'iter_2.pth'
    output = run(folder / 'tools' / 'test.py', config, checkpoint, *options, **work)
    assert re.search(r'mIoU: \d+\.\d+', output)
