"""Data, quick settings and in-process tools for the tests of whole runs."""

import importlib.util
from pathlib import Path

import pytest
from mmengine.utils import ManagerMixin

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.backbones import L2ViT
from l2vit_mm.datasets.shapes import CLASSES, generate

REPO = Path(__file__).resolve().parents[2]
REAL_DATA = REPO.parent / 'shared' / 'data'
PICO_CHANNELS = L2ViT.arch_zoo['pico']['channels']


def tool(name):
    """``main(argv)`` of tools/NAME.py, for several runs in this process."""
    spec = importlib.util.spec_from_file_location(f'tools_{name}', REPO / 'tools' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def main(argv):
        # mmengine's loggers, visualizers and scopes outlive a run: start each one without.
        managers = [ManagerMixin]
        while managers:
            manager = managers.pop()
            manager._instance_dict.clear()
            managers += manager.__subclasses__()
        module.main(argv)

    return main


@pytest.fixture(scope='session')
def train():
    return tool('train')


@pytest.fixture(scope='session')
def test_tool():
    return tool('test')


@pytest.fixture(scope='session')
def shapes(tmp_path_factory):
    """Generated images in both layouts: 4 to train on, 3 to test on."""
    root = tmp_path_factory.mktemp('data') / 'shapes'
    generate(root, num_train=4, num_val=3, seed=1)
    return root


@pytest.fixture
def pico_channels():
    """Channels of the four maps of L2ViT pico."""
    return PICO_CHANNELS


@pytest.fixture
def repo():
    return REPO


def in_this_process():
    return [
        f'{phase}_dataloader.{key}'
        for phase in ('train', 'val', 'test')
        for key in ('num_workers=0', 'persistent_workers=False')
    ]


@pytest.fixture
def coco_files(shapes):
    """--cfg-options that give a COCO config a few images: real ones, or else generated."""
    coco8 = REAL_DATA / 'coco8'
    options = in_this_process()
    if coco8.is_dir():
        root, ann_file = coco8, 'annotations/instances_val2017.json'
        options += [
            f'{phase}_dataloader.dataset.data_root={root}' for phase in ('train', 'val', 'test')
        ]
    else:
        root, ann_file = shapes, 'annotations/instances_validation.json'
        classes = ','.join(CLASSES)
        options += [
            f'model.roi_head.{head}.num_classes={len(CLASSES)}'
            for head in ('bbox_head', 'mask_head')
        ]
        for phase, split in (('train', 'training'), ('val', 'validation'), ('test', 'validation')):
            dataset = f'{phase}_dataloader.dataset'
            options += [
                f'{dataset}.data_root={root}',
                f'{dataset}.ann_file=annotations/instances_{split}.json',
                f'{dataset}.data_prefix.img=images/{split}/',
                f'{dataset}.metainfo.classes=[{classes}]',
            ]
    return options + [f'{phase}_evaluator.ann_file={root / ann_file}' for phase in ('val', 'test')]


@pytest.fixture
def ade_files(shapes):
    """--cfg-options that give an ADE20K config a few images: real ones, or else generated."""
    sample = REAL_DATA / 'ade_sample'
    root = sample if sample.is_dir() else shapes
    return in_this_process() + [
        f'{phase}_dataloader.dataset.data_root={root}' for phase in ('train', 'val', 'test')
    ]


@pytest.fixture
def small_mask_rcnn():
    """--cfg-options for a Mask R-CNN of seconds, whatever its config's training pipeline."""
    channels = ','.join(map(str, PICO_CHANNELS))
    return [
        'model.backbone.arch=pico',
        f'model.neck.in_channels=[{channels}]',
        'val_dataloader.dataset.pipeline.1.scale=(160,96)',
        'test_dataloader.dataset.pipeline.1.scale=(160,96)',
        'model.roi_head.bbox_head.fc_out_channels=32',
        'model.roi_head.mask_head.num_convs=1',
        'model.train_cfg.rcnn.sampler.num=64',
        'model.train_cfg.rpn_proposal.max_per_img=100',
        'model.test_cfg.rpn.max_per_img=20',
        # An untrained model is sure of nothing.
        'model.test_cfg.rcnn.score_thr=0.0',
    ]


@pytest.fixture
def small_upernet():
    """--cfg-options for a UPerNet of seconds on ADE20K."""
    channels = ','.join(map(str, PICO_CHANNELS))
    return [
        'model.backbone.arch=pico',
        f'model.decode_head.in_channels=[{channels}]',
        f'model.auxiliary_head.in_channels={PICO_CHANNELS[2]}',
        'model.decode_head.channels=32',
        'model.data_preprocessor.size=(64,64)',
        'train_dataloader.dataset.pipeline.2.scale=(256,64)',
        'train_dataloader.dataset.pipeline.3.crop_size=(64,64)',
        'val_dataloader.dataset.pipeline.1.scale=(256,64)',
        'test_dataloader.dataset.pipeline.1.scale=(256,64)',
        'train_cfg.val_interval=2',
        'default_hooks.checkpoint.interval=2',
    ]
