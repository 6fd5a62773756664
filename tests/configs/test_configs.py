"""The configs hold the published settings, and nothing that no one reads."""
import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest

from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, DefaultScope
from mmengine.runner import Runner

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.datasets.shapes import CLASSES, PALETTE, SEG_CLASSES, SEG_PALETTE, generate

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
SHORT_SIDES = {480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800}


def load(name):
    return Config.fromfile(str(CONFIGS / name))


def stock(toolbox, name):
    """A config of the installed toolbox."""
    folder = Path(importlib.util.find_spec(toolbox).origin).parent / '.mim' / 'configs'
    return Config.fromfile(str(folder / name))


def build(registry, cfg, scope):
    with DefaultScope.overwrite_default_scope(scope):
        return registry.build(cfg)


def assert_agrees(ours, theirs, where='model'):
    """What ours sets, theirs sets alike, as far as theirs sets it."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() & theirs.keys():
            assert_agrees(ours[key], theirs[key], f'{where}.{key}')
    else:
        assert ours == theirs, where


NAMES = sorted(path.name for path in CONFIGS.glob('*.py'))


@pytest.mark.parametrize('name', NAMES)
def test_config_imports_the_package_and_names_its_toolbox(name):
    cfg = load(name)
    assert cfg.custom_imports == dict(imports=['l2vit_mm'], allow_failed_imports=False)
    assert cfg.default_scope in ('mmdet', 'mmseg', 'mmpretrain')


# The demo configs have variables.
@pytest.mark.parametrize('name', [name for name in NAMES if not name.startswith('demo_')])
def test_every_top_level_key_is_read(name):
    assert set(load(name)) <= set(inspect.signature(Runner.__init__).parameters) | {
        'custom_imports'}


def test_mask_rcnn_is_the_stock_one_around_our_backbone():
    ours = load('mask_rcnn_l2vit_t_coco.py').model
    theirs = stock('mmdet', 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py').model
    theirs.backbone = ours.backbone
    theirs.neck.in_channels = ours.neck.in_channels
    assert_agrees(ours, theirs)
    # What ours leaves to the classes' defaults.
    assert str(build(MODELS, ours, 'mmdet')) == str(build(MODELS, theirs, 'mmdet'))


def test_upernet_is_the_stock_one_around_our_backbone():
    ours = load('upernet_l2vit_t_ade20k.py').model
    theirs = stock('mmseg', 'upernet/upernet_r50_4xb4-160k_ade20k-512x512.py').model
    theirs.pretrained, theirs.backbone = None, ours.backbone
    theirs.decode_head.in_channels = ours.decode_head.in_channels
    theirs.auxiliary_head.in_channels = ours.auxiliary_head.in_channels
    for head in (theirs.decode_head, theirs.auxiliary_head):
        del head.norm_cfg['requires_grad']  # True, the default
    assert_agrees(ours, theirs)
    assert str(build(MODELS, ours, 'mmseg')) == str(build(MODELS, theirs, 'mmseg'))


def test_published_schedule_of_mask_rcnn_1x():
    cfg = load('mask_rcnn_l2vit_t_coco.py')
    assert cfg.optim_wrapper == dict(type='OptimWrapper', optimizer=dict(
        type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05))
    assert cfg.train_cfg.max_epochs == 12 and cfg.param_scheduler[1].milestones == [8, 11]
    assert cfg.model.backbone.drop_path_rate == 0.1
    assert cfg.model.data_preprocessor.pad_size_divisor == 32
    assert cfg.auto_scale_lr.base_batch_size == 16 and cfg.train_dataloader.batch_size == 2


def test_published_schedule_of_upernet_160k():
    cfg = load('upernet_l2vit_t_ade20k.py')
    assert cfg.optim_wrapper == dict(type='OptimWrapper', optimizer=dict(
        type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01))
    warm_up, poly = cfg.param_scheduler
    assert cfg.train_cfg.max_iters == poly.end == 160000
    assert warm_up.type == 'LinearLR' and warm_up.end == poly.begin == 1500
    assert poly.type == 'PolyLR' and poly.power == 1.0 and poly.eta_min == 0
    assert not warm_up.by_epoch and not poly.by_epoch
    assert cfg.model.backbone.drop_path_rate == 0.3
    assert cfg.auto_scale_lr.base_batch_size == 16 and cfg.train_dataloader.batch_size == 2


def test_multi_scale_training_with_the_crop_policy(tmp_path):
    generate(tmp_path / 'shapes', num_train=1, num_val=1, seed=0)
    cfg = load('mask_rcnn_l2vit_t_coco.py').train_dataloader.dataset
    cfg.update(
        data_root=str(tmp_path / 'shapes'), ann_file='annotations/instances_training.json',
        data_prefix=dict(img='images/training'), metainfo=dict(classes=CLASSES))
    dataset = build(DATASETS, cfg, 'mmdet')
    np.random.seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        shapes = [tuple(dataset[0]['inputs'].shape[1:]) for _ in range(60)]
    info = dataset.get_data_info(0)
    for height, width in shapes:
        assert max(height, width) <= 1333
        assert min(height, width) in SHORT_SIDES or max(height, width) == 1333
    assert len({min(shape) for shape in shapes}) > 5
    # Half of the images are cropped first, which changes the aspect ratio.
    aspect = info['width'] / info['height']
    cropped = sum(abs(width / height / aspect - 1) > 0.02 for height, width in shapes)
    assert 15 <= cropped <= 45, cropped


@pytest.mark.parametrize('name', [name for name in NAMES if name.startswith('demo_')])
def test_demo_configs_agree_with_the_generated_data(name):
    cfg = load(name)
    classes, palette = ((SEG_CLASSES, SEG_PALETTE) if cfg.default_scope == 'mmseg' else
                        (CLASSES, PALETTE))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert loader.dataset.metainfo == dict(classes=classes, palette=palette)
    assert {head[-1] for head in find(cfg.model, 'num_classes')} == {len(classes)}


def find(cfg, key, path=()):
    """Yields the path and value of every occurrence of a key in a nested config."""
    for name, value in cfg.items():
        if name == key:
            yield (*path, name, value)
        elif isinstance(value, dict):
            yield from find(value, key, (*path, name))


@pytest.mark.parametrize('name', ['demo_mask_rcnn_l2vit_pico_shapes.py',
                                  'demo_upernet_l2vit_pico_shapes.py'])
def test_demo_backbone_starts_from_the_weights_in_the_repository(name, monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    backbone = build(MODELS, load(name).model.backbone, load(name).default_scope)
    before = backbone.stem.conv1.weight.clone()
    backbone.init_weights()  # raises where a parameter is left unset
    assert not backbone.stem.conv1.weight.equal(before)
