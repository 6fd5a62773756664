"""The configs hold the published settings, and nothing that no one reads."""

import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    HOOKS,
    LOG_PROCESSORS,
    LOOPS,
    METRICS,
    MODELS,
    PARAM_SCHEDULERS,
    VISUALIZERS,
    DefaultScope,
)
from mmengine.runner import FlexibleRunner, Runner
from torch.utils.data import DataLoader

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


@cache
def meta_model(name):
    """The model of a config, without memory for its weights."""
    cfg = load(name)
    with torch.device('meta'):
        return build(MODELS, cfg.model, cfg.default_scope)


def assert_agrees(ours, theirs, where='model'):
    """What ours sets, theirs sets alike, as far as theirs sets it."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() & theirs.keys():
            assert_agrees(ours[key], theirs[key], f'{where}.{key}')
    elif isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, pair in enumerate(zip(ours, theirs)):
            assert_agrees(*pair, f'{where}.{index}')
    else:
        assert ours == theirs, where


def assert_keys_known(ours, theirs, where):
    """Theirs has every key of ours."""
    if isinstance(ours, dict):
        assert ours.keys() <= theirs.keys(), where
        for key in ours:
            assert_keys_known(ours[key], theirs[key], f'{where}.{key}')
    elif isinstance(ours, list):
        for index, pair in enumerate(zip(ours, theirs)):
            assert_keys_known(*pair, f'{where}.{index}')


def assert_takes(registry, cfg, where):
    """The class that a config names takes all that the config gives it."""
    arguments = dict(cfg)
    with registry.switch_scope_and_registry(None) as scoped:  # the default scope's
        kind = scoped.get(arguments.pop('type'))
    assert kind is not None, (where, cfg)
    try:
        inspect.signature(kind).bind_partial(**arguments)
    except TypeError as error:
        raise AssertionError(f'{where}: {kind.__name__}: {error}') from error


NAMES = sorted(path.name for path in CONFIGS.glob('*.py'))


@pytest.mark.parametrize('name', NAMES)
def test_config_imports_the_package_and_names_its_toolbox(name):
    cfg = load(name)
    # mmengine's strategies are in a private module, which only what trains with one imports.
    more = ['l2vit_mm.engine.strategies'] if 'strategy' in cfg else []
    assert cfg.custom_imports == dict(imports=['l2vit_mm', *more], allow_failed_imports=False)
    assert cfg.default_scope in ('mmdet', 'mmseg', 'mmpretrain')


# The configs of our own experiments have variables.
@pytest.mark.parametrize(
    'name', [name for name in NAMES if not name.startswith(('demo_', 'overfit_'))]
)
def test_every_top_level_key_is_read(name):
    cfg = load(name)
    runner = FlexibleRunner if cfg.get('runner_type') == 'FlexibleRunner' else Runner
    assert set(cfg) <= set(inspect.signature(runner.__init__).parameters) | {
        'custom_imports',
        'runner_type',
    }


@pytest.mark.parametrize('name', NAMES)
def test_config_builds_and_has_no_key_that_nothing_reads(name):
    cfg = load(name)
    meta_model(name)  # unknown arguments of models raise; the stock models know the rest
    if cfg.default_scope == 'mmdet':
        counterpart = stock(*STOCK[cfg.model.type]).model
        for part in ('train_cfg', 'test_cfg'):
            assert_keys_known(cfg.model[part], counterpart[part], part)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        for phase in ('train', 'val', 'test'):
            assert_takes(LOOPS, {**cfg[f'{phase}_cfg'], 'dataloader': None}, f'{phase}_cfg')
            loader = cfg[f'{phase}_dataloader']
            DATASETS.build({**loader.dataset, 'lazy_init': True})
            assert_takes(DATA_SAMPLERS, {**loader.sampler, 'dataset': None}, f'{phase} sampler')
            if 'batch_sampler' in loader:
                assert_takes(DATA_SAMPLERS, loader.batch_sampler, f'{phase} batch_sampler')
            assert set(loader) <= {*inspect.signature(DataLoader).parameters}
        for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
            assert_takes(METRICS, evaluator, 'evaluator')
        for hook in (*cfg.default_hooks.values(), *cfg.get('custom_hooks', ())):
            assert_takes(HOOKS, hook, 'hook')
            if hook.type == 'EMAHook':  # passes on whatever it gets
                assert_takes(MODELS, HOOKS.build(hook).ema_cfg, 'EMAHook')
        assert_takes(VISUALIZERS, cfg.visualizer, 'visualizer')
        assert_takes(LOG_PROCESSORS, cfg.log_processor, 'log_processor')


@pytest.mark.parametrize('name', NAMES)
def test_optimizer_and_schedulers_build(name):
    cfg, model = load(name), meta_model(name)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
        for scheduler in cfg.param_scheduler:
            arguments = dict(scheduler, optimizer=wrapper)
            kind = PARAM_SCHEDULERS.get(arguments.pop('type'))
            if arguments.pop('convert_to_iter_based', False):
                built = kind.build_iter_from_epoch(**arguments, epoch_length=10)
            else:
                built = kind(**arguments)
            for _ in range(3):
                built.step()
    paramwise = cfg.optim_wrapper.get('paramwise_cfg', {})
    assert paramwise.keys() <= {
        'custom_keys',
        'norm_decay_mult',
        'bias_decay_mult',
        'flat_decay_mult',
    }
    names = [parameter for parameter, _ in model.named_parameters()]
    for key in paramwise.get('custom_keys', ()):
        assert any(key in parameter for parameter in names), key


# What the detection and segmentation models are, but for the backbone and what is on it.
STOCK = {
    'MaskRCNN': ('mmdet', 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'),
    # The installed toolbox has Swin's Cascade Mask R-CNN with another backbone.
    'CascadeRCNN': (
        'mmdet',
        'convnext/cascade-mask-rcnn_convnext-t-p4-w7_fpn_4conv1fc-giou_amp-ms-crop-3x_coco.py',
    ),
    'RetinaNet': ('mmdet', 'retinanet/retinanet_r50_fpn_1x_coco.py'),
    'UPerHead': ('mmseg', 'upernet/upernet_r50_4xb4-160k_ade20k-512x512.py'),
    'FPNHead': ('mmseg', 'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py'),
    'ImageClassifier': ('mmpretrain', 'swin_transformer/swin-tiny_16xb64_in1k.py'),
}


@pytest.mark.parametrize(
    'name',
    [
        'mask_rcnn_l2vit_t_coco.py',
        'cascade_mask_rcnn_flatten_swin_t_coco_3x.py',
        'retinanet_flatten_pvt_t_coco.py',
        'upernet_l2vit_t_ade20k.py',
        'semantic_fpn_flatten_pvt_t_ade20k.py',
        'flatten_swin_t_imagenet.py',
    ],
)
def test_model_is_the_stock_one_around_our_backbone(name):
    ours = load(name).model
    kind = ours.decode_head.type if ours.type == 'EncoderDecoder' else ours.type
    toolbox, path = STOCK[kind]
    theirs = stock(toolbox, path).model
    theirs.pop('pretrained', None)
    theirs.backbone = ours.backbone
    for part in ('neck', 'decode_head', 'auxiliary_head', 'head'):
        if 'in_channels' in ours.get(part, {}):
            theirs[part].in_channels = ours[part].in_channels
    if kind == 'RetinaNet':
        theirs.neck.start_level = 0  # our backbone doesn't return what theirs leaves out
    if toolbox == 'mmdet':  # our backbones keep images apart from their padding
        theirs.data_preprocessor.type = 'ValidRegion' + theirs.data_preprocessor.type
    if kind == 'ImageClassifier':
        # Theirs says what a linear layer starts from once for the backbone too.
        theirs.init_cfg, theirs.head.init_cfg = None, ours.head.init_cfg
    assert_agrees(ours, theirs)
    # What ours leaves to the classes' defaults.
    with torch.device('meta'):
        assert str(build(MODELS, ours, toolbox)) == str(build(MODELS, theirs, toolbox))


def test_imagenet_is_trained_on_as_swin():
    ours = load('l2vit_t_imagenet.py').train_dataloader.dataset.pipeline
    theirs = stock(*STOCK['ImageClassifier'])
    assert_agrees(ours, theirs.train_dataloader.dataset.pipeline)
    evaluation = load('l2vit_t_imagenet.py').val_dataloader.dataset.pipeline
    assert_agrees(evaluation, theirs.val_dataloader.dataset.pipeline)


# Learning rate, weight decay, drop path, length, images an iteration on 8 GPUs.
PUBLISHED = {
    'mask_rcnn_l2vit_t_coco': (1e-4, 0.05, 0.1, 12, 16),
    'mask_rcnn_l2vit_t_coco_3x': (1e-4, 0.05, 0.2, 36, 16),
    'mask_rcnn_l2vit_s_coco': (1e-4, 0.05, 0.1, 12, 16),
    'mask_rcnn_l2vit_b_coco': (1e-4, 0.05, 0.2, 12, 16),
    'mask_rcnn_l2vit_b_coco_fsdp': (1e-4, 0.05, 0.2, 12, 16),
    'mask_rcnn_flatten_pvt_t_coco': (2e-4, 1e-4, 0.1, 12, 16),
    'mask_rcnn_flatten_pvt_s_coco': (2e-4, 1e-4, 0.1, 12, 16),
    'mask_rcnn_flatten_swin_t_coco': (1e-4, 0.05, 0.1, 12, 16),
    'mask_rcnn_flatten_cswin_t_coco': (1e-4, 0.05, 0.1, 12, 16),
    'cascade_mask_rcnn_flatten_swin_t_coco_3x': (1e-4, 0.05, 0.2, 36, 16),
    'retinanet_l2vit_t_coco': (1e-4, 0.05, 0.1, 12, 16),
    'retinanet_l2vit_t_coco_3x': (1e-4, 0.05, 0.2, 36, 16),
    'retinanet_l2vit_s_coco': (1e-4, 0.05, 0.1, 12, 16),
    'retinanet_l2vit_b_coco': (1e-4, 0.05, 0.2, 12, 16),
    'retinanet_flatten_pvt_t_coco': (1e-4, 1e-4, 0.1, 12, 16),
    'retinanet_flatten_pvt_s_coco': (1e-4, 1e-4, 0.1, 12, 16),
    'retinanet_flatten_pvt_v2_b0_coco': (1e-4, 1e-4, 0.1, 12, 16),
    'semantic_fpn_flatten_pvt_t_ade20k': (1e-4, 1e-4, 0.1, 80000, 16),
    'semantic_fpn_flatten_pvt_s_ade20k': (1e-4, 1e-4, 0.1, 80000, 16),
    'upernet_l2vit_t_ade20k': (6e-5, 0.01, 0.3, 160000, 16),
    'upernet_l2vit_s_ade20k': (6e-5, 0.01, 0.3, 160000, 16),
    'upernet_l2vit_b_ade20k': (6e-5, 0.01, 0.3, 160000, 16),
    'upernet_flatten_swin_t_ade20k': (6e-5, 0.01, 0.3, 160000, 16),
    'upernet_flatten_swin_s_ade20k': (6e-5, 0.01, 0.3, 160000, 16),
    'upernet_flatten_cswin_t_ade20k': (6e-5, 0.01, 0.3, 160000, 16),
    'upernet_flatten_deit_t_ade20k': (6e-5, 0.01, 0.1, 160000, 16),
    'l2vit_t_imagenet': (4e-3, 0.05, 0.1, 300, 4096),
    'l2vit_s_imagenet': (4e-3, 0.05, 0.2, 300, 4096),
    'l2vit_b_imagenet': (4e-3, 0.05, 0.3, 300, 4096),
    'l2vit_b_384_imagenet': (4e-5, 1e-8, 0.2, 30, 1024),
    'flatten_pvt_t_imagenet': (1e-3, 0.05, 0.1, 310, 1024),
    'flatten_pvt_v2_b0_imagenet': (1e-3, 0.05, 0.1, 310, 1024),
    'flatten_swin_t_imagenet': (1e-3, 0.05, 0.2, 300, 1024),
    'flatten_swin_s_imagenet': (1e-3, 0.05, 0.3, 300, 1024),
    'flatten_swin_b_imagenet': (5e-4, 0.05, 0.5, 300, 512),
    'flatten_swin_b_384_imagenet': (1e-5, 1e-8, 0.5, 30, 256),
    'flatten_cswin_t_imagenet': (2e-3, 0.05, 0.2, 310, 2048),
}


def test_readme_lists_every_config():
    readme = (CONFIGS.parent / 'README.md').read_text()
    assert {f'{name}.py' for name in re.findall(r'\(configs/(\w+)\.py\)', readme)} == set(NAMES)


def test_every_experiment_is_in_the_table_of_published_settings():
    assert {f'{name}.py' for name in PUBLISHED} == {
        name for name in NAMES if not name.startswith(('demo_', 'overfit_'))
    }


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_settings(name):
    cfg = load(f'{name}.py')
    optimizer, wrapper = cfg.optim_wrapper.optimizer, cfg.optim_wrapper
    length = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters
    images = 8 * cfg.train_dataloader.batch_size
    assert (
        optimizer.lr,
        optimizer.weight_decay,
        cfg.model.backbone.drop_path_rate,
        length,
        images * wrapper.get('accumulative_counts', 1),
    ) == PUBLISHED[name]
    assert wrapper.type == 'OptimWrapper' and optimizer.type == 'AdamW'
    assert optimizer.betas == (0.9, 0.999)
    if 'l2vit' in name and not name.endswith('_imagenet'):  # and nothing else
        assert wrapper.keys() == {'type', 'optimizer'}
        assert optimizer.keys() == {'type', 'lr', 'betas', 'weight_decay'}
    if '_coco' in name:
        assert cfg.model.data_preprocessor.type == 'ValidRegionDetDataPreprocessor'
        assert cfg.model.data_preprocessor.pad_size_divisor == 32
    # mmengine doesn't know what is accumulated.
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=images)


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_schedule(name):
    cfg = load(f'{name}.py')
    *warm_up, decay = cfg.param_scheduler
    warm_up = [(w.type, w.get('by_epoch', True), w.begin, w.end) for w in warm_up]
    if name.endswith('_imagenet'):
        pvt = '_pvt_' in name
        end = min(cfg.train_cfg.max_epochs, 300)  # the rest at the lowest rate
        start = 5 if pvt or end == 30 else 20
        assert warm_up == [('LinearLR', True, 0, start)]
        assert (decay.type, decay.begin, decay.end) == ('CosineAnnealingLR', start, end)
        assert all(scheduler.convert_to_iter_based for scheduler in cfg.param_scheduler)
    elif '_coco' in name:
        milestones = [27, 33] if name.endswith('_3x') else [8, 11]
        assert warm_up == [('LinearLR', False, 0, 500)]
        assert (decay.type, decay.milestones, decay.gamma, decay.end) == (
            'MultiStepLR',
            milestones,
            0.1,
            cfg.train_cfg.max_epochs,
        )
    elif name.startswith('upernet'):
        assert warm_up == [('LinearLR', False, 0, 1500)]
        assert (decay.type, decay.by_epoch, decay.power, decay.eta_min, decay.begin, decay.end) == (
            'PolyLR',
            False,
            1.0,
            0,
            1500,
            160000,
        )
    else:
        assert not warm_up
        assert (decay.type, decay.by_epoch, decay.power, decay.eta_min, decay.begin, decay.end) == (
            'PolyLR',
            False,
            0.9,
            0,
            0,
            80000,
        )


# Parts of parameters' names. Released classifiers decay whatever has more than one dimension, and
# their scales and temperatures have three.
@pytest.mark.parametrize(
    'name, decaying, kept',
    [
        ('mask_rcnn_l2vit_t_coco', ('',), ()),
        ('mask_rcnn_flatten_pvt_t_coco', ('',), ()),
        ('mask_rcnn_flatten_swin_t_coco', ('.scale', '.position.', 'qkv.bias'), ('norm', '.bias.')),
        ('mask_rcnn_flatten_cswin_t_coco', ('.scale', '.position.', 'qkv.bias'), ('norm',)),
        ('upernet_flatten_deit_t_ade20k', ('.scale', 'core.position.'), ('norm', 'stem.position.')),
        ('l2vit_t_imagenet', ('.temperature', 'qkv.weight'), ('norm', 'qkv.bias')),
        ('flatten_swin_t_imagenet', ('.scale', '.position.'), ('norm', '.bias.', 'dwc.bias')),
        ('flatten_cswin_t_imagenet', ('.scale', '.position.'), ('norm', 'dwc.bias')),
        ('flatten_pvt_t_imagenet', ('.scale', '.position.'), ('norm', 'dwc.bias')),
    ],
)
def test_what_decays(name, decaying, kept):
    cfg, backbone = load(f'{name}.py'), meta_model(f'{name}.py').backbone
    wrapper = build_optim_wrapper(backbone, cfg.optim_wrapper)
    decay = {
        id(parameter): group['weight_decay']
        for group in wrapper.param_groups
        for parameter in group['params']
    }
    for part in (*decaying, *kept):
        found = {decay[id(value)] for key, value in backbone.named_parameters() if part in key}
        assert found == {0 if part in kept else cfg.optim_wrapper.optimizer.weight_decay}, part


def test_classifiers_are_tested_as_released():
    def pipeline(name):
        return [
            step
            for step in load(f'{name}.py').test_dataloader.dataset.pipeline
            if step.type not in ('LoadImageFromFile', 'PackInputs')
        ]

    pillow = dict(backend='pillow', interpolation='bicubic')
    for name in (name for name in PUBLISHED if name.endswith('_imagenet')):
        if '_384_' in name:
            assert pipeline(name) == [dict(type='Resize', scale=(384, 384), **pillow)]
        elif name.startswith('flatten'):
            assert pipeline(name) == [
                dict(type='Resize', scale=(256, 256), **pillow),
                dict(type='CenterCrop', crop_size=224),
            ]
        else:
            assert pipeline(name) == [
                dict(type='ResizeEdge', scale=256, edge='short', **pillow),
                dict(type='CenterCrop', crop_size=224),
            ]


@pytest.mark.parametrize('name', [name for name in PUBLISHED if '_coco' in name])
def test_detectors_see_one_scale_where_pvt_does_and_masks_where_they_predict_them(name):
    cfg = load(f'{name}.py')
    steps = [step.type for step in cfg.train_dataloader.dataset.pipeline]
    assert ('Resize' in steps) == ('_pvt_' in name) == ('RandomChoiceResize' not in steps)
    masks = 'mask_rcnn' in name
    assert cfg.train_dataloader.dataset.pipeline[1].with_mask == masks
    assert cfg.val_dataloader.dataset.pipeline[2].with_mask == masks
    assert cfg.test_evaluator.metric == (['bbox', 'segm'] if masks else ['bbox'])


def test_multi_scale_training_with_the_crop_policy(tmp_path):
    generate(tmp_path / 'shapes', num_train=1, num_val=1, seed=0)
    cfg = load('mask_rcnn_l2vit_t_coco.py').train_dataloader.dataset
    cfg.update(
        data_root=str(tmp_path / 'shapes'),
        ann_file='annotations/instances_training.json',
        data_prefix=dict(img='images/training'),
        metainfo=dict(classes=CLASSES),
    )
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
    classes, palette = (
        (SEG_CLASSES, SEG_PALETTE) if cfg.default_scope == 'mmseg' else (CLASSES, PALETTE)
    )
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        dataset = build(DATASETS, {**loader.dataset, 'lazy_init': True}, cfg.default_scope)
        assert dataset.metainfo['classes'] == classes
        assert dataset.metainfo['palette'] == palette
    assert {head[-1] for head in find(cfg.model, 'num_classes')} == {len(classes)}


def find(cfg, key, path=()):
    """Yields the path and value of every occurrence of a key in a nested config."""
    for name, value in cfg.items():
        if name == key:
            yield (*path, name, value)
        elif isinstance(value, dict):
            yield from find(value, key, (*path, name))


@pytest.mark.parametrize(
    'name', ['demo_mask_rcnn_l2vit_pico_shapes.py', 'demo_upernet_l2vit_pico_shapes.py']
)
def test_demo_backbone_starts_from_the_weights_in_the_repository(name, monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    backbone = build(MODELS, load(name).model.backbone, load(name).default_scope)
    before = backbone.stem.conv1.weight.clone()
    backbone.init_weights()  # raises where a parameter is left unset
    assert not backbone.stem.conv1.weight.equal(before)
