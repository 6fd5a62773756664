"""Each method on each family trains and is tested on generated data, shrunk by sizes alone."""

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.utils import ManagerMixin
from PIL import Image

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm import backbones
from l2vit_mm.datasets.shapes import CLASSES

pytestmark = pytest.mark.train
CHANNELS = (8, 16, 24, 32)
PYRAMID = dict(channels=CHANNELS, depths=(1, 1, 2, 1), num_heads=(1, 2, 2, 4))
ARCHES = {
    'L2ViT': PYRAMID,
    'FLattenPVT': dict(PYRAMID, mlp_ratios=(2, 2, 2, 2)),
    'FLattenPVTv2': dict(PYRAMID, mlp_ratios=(2, 2, 2, 2)),
    'FLattenSwin': dict(PYRAMID, window_size=3),
    'FLattenCSWin': dict(PYRAMID, split_sizes=(1, 2, 3, 3)),
    'FLattenDeiT': dict(channels=8, depth=2, num_heads=2),
}


def shrink_model(model):
    """A small arch, and its channels wherever those of the published one are named."""
    family = getattr(backbones, model.backbone.type)
    published = family.arch_zoo[model.backbone.arch]['channels']
    smaller = (
        dict(zip(published, CHANNELS)) if model.backbone.type != 'FLattenDeiT' else {published: 8}
    )
    model.backbone.arch = ARCHES[model.backbone.type]
    for name in ('neck', 'decode_head', 'auxiliary_head', 'head'):
        part = model.get(name)
        if part is not None and 'in_channels' in part:
            channels = part.in_channels
            part.in_channels = (
                [smaller.get(c, c) for c in channels]
                if isinstance(channels, (list, tuple))
                else smaller.get(channels, channels)
            )


def shrink_pipeline(pipeline):
    for transform in pipeline:
        if transform.type == 'RandomApply':
            shrink_pipeline(transform.transforms)
        if transform.type in ('Resize', 'RandomResize'):
            transform.scale = (160, 96) if transform.scale[0] != transform.scale[1] else (72, 72)
        if transform.type == 'RandomChoiceResize':
            transform.scales = [(96, 160)]
        if transform.type == 'ResizeEdge':
            transform.scale = 72
        if transform.type == 'RandomResizedCrop':
            transform.scale = 64
        if transform.type in ('RandomCrop', 'CenterCrop'):
            transform.crop_size = 64 if transform.type == 'CenterCrop' else (64, 64)


def run(cfg, work_dir):
    """One iteration, one test."""
    managers = [ManagerMixin]
    while managers:  # mmengine's loggers and scopes outlive a run
        manager = managers.pop()
        manager._instance_dict.clear()
        managers += manager.__subclasses__()
    cfg.work_dir = str(work_dir)
    cfg.default_hooks.logger.interval = 1
    for phase in ('train', 'val', 'test'):
        loader = cfg[f'{phase}_dataloader']
        shrink_pipeline(loader.dataset.pipeline)
        loader.update(
            num_workers=0, persistent_workers=False, batch_size=2 if phase == 'train' else 1
        )
        loader.dataset.indices = 2
    if cfg.train_cfg.get('type') == 'IterBasedTrainLoop':
        cfg.train_cfg.max_iters = 1
    else:
        cfg.train_cfg.max_epochs = 1
    runner = Runner.from_cfg(cfg)
    before = {name: p.detach().clone() for name, p in runner.model.backbone.named_parameters()}
    runner.train()
    losses = runner.message_hub.get_scalar('train/loss')
    assert len(losses.data[0]) == 1 and np.isfinite(losses.current())
    assert any(not p.equal(before[name]) for name, p in runner.model.backbone.named_parameters())
    return runner.test()


# A method, its losses and its metrics depend on the stack; which family it has under it does not.
def first(method, *names):
    return [
        pytest.param(f'{method}{name}', marks=[pytest.mark.once] if index else [])
        for index, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    'name',
    [
        *first(
            'mask_rcnn_',
            'l2vit_t_coco_3x',
            'flatten_pvt_t_coco',
            'flatten_swin_t_coco',
            'flatten_cswin_t_coco',
        ),
        *first('cascade_mask_rcnn_', 'flatten_swin_t_coco_3x'),
        *first('retinanet_', 'flatten_pvt_v2_b0_coco', 'flatten_pvt_t_coco', 'l2vit_t_coco'),
    ],
)
def test_detectors(name, repo, shapes, tmp_path):
    cfg = Config.fromfile(str(repo / 'configs' / f'{name}.py'))
    shrink_model(cfg.model)
    if 'roi_head' in cfg.model:
        heads = cfg.model.roi_head.bbox_head
        for head in heads if isinstance(heads, list) else [heads]:
            head.fc_out_channels = 32
            head.num_classes = len(CLASSES)
            if head.type == 'ConvFCBBoxHead':
                head.conv_out_channels = 32
        cfg.model.roi_head.mask_head.update(num_convs=1, num_classes=len(CLASSES))
        rcnn = cfg.model.train_cfg.rcnn
        for part in rcnn if isinstance(rcnn, list) else [rcnn]:
            part.sampler.num = 32
        cfg.model.train_cfg.rpn_proposal.max_per_img = 50
        cfg.model.test_cfg.rpn.max_per_img = 20
        cfg.model.test_cfg.rcnn.score_thr = 0.0
    else:
        cfg.model.bbox_head.update(num_classes=len(CLASSES), stacked_convs=1)
        cfg.model.test_cfg.score_thr = 0.0  # an untrained model is sure of nothing
    for phase, split in (('train', 'training'), ('val', 'validation'), ('test', 'validation')):
        cfg[f'{phase}_dataloader'].dataset.update(
            data_root=str(shapes),
            ann_file=f'annotations/instances_{split}.json',
            data_prefix=dict(img=f'images/{split}/'),
            metainfo=dict(classes=CLASSES),
        )
    for phase in ('val', 'test'):
        cfg[f'{phase}_evaluator'].ann_file = str(shapes / 'annotations/instances_validation.json')
    assert 'coco/bbox_mAP' in run(cfg, tmp_path)


@pytest.mark.parametrize(
    'name',
    [
        *first('semantic_fpn_', 'flatten_pvt_t_ade20k'),
        *first(
            'upernet_',
            'flatten_deit_t_ade20k',
            'flatten_swin_t_ade20k',
            'flatten_cswin_t_ade20k',
            'l2vit_s_ade20k',
        ),
    ],
)
def test_segmenters(name, repo, shapes, tmp_path):
    cfg = Config.fromfile(str(repo / 'configs' / f'{name}.py'))
    shrink_model(cfg.model)
    cfg.model.data_preprocessor.size = (64, 64)
    if cfg.model.decode_head.type == 'UPerHead':
        cfg.model.decode_head.channels = 32
    for phase in ('train', 'val', 'test'):
        cfg[f'{phase}_dataloader'].dataset.data_root = str(shapes)
    assert 0 <= run(cfg, tmp_path)['mIoU'] <= 100


@pytest.mark.parametrize(
    'name',
    first(
        '',
        'flatten_cswin_t_imagenet',
        'l2vit_t_imagenet',
        'l2vit_b_384_imagenet',
        'flatten_pvt_t_imagenet',
        'flatten_pvt_v2_b0_imagenet',
        'flatten_swin_t_imagenet',
        'flatten_swin_b_384_imagenet',
    ),
)
def test_classifiers(name, repo, tmp_path):
    pytest.importorskip('mmpretrain')
    from mmpretrain.datasets.categories import IMAGENET_CATEGORIES

    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        for number in range(2):
            folder = tmp_path / 'data' / split / f'n0{number}'
            folder.mkdir(parents=True)
            image = rng.integers(0, 256, (80, 90, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / f'{number}.JPEG')
    cfg = Config.fromfile(str(repo / 'configs' / f'{name}.py'))
    shrink_model(cfg.model)
    for phase in ('train', 'val', 'test'):
        cfg[f'{phase}_dataloader'].dataset.update(
            data_root=str(tmp_path / 'data'), metainfo=dict(classes=IMAGENET_CATEGORIES[:2])
        )
    assert 0 <= run(cfg, tmp_path / 'work')['accuracy/top1'] <= 100
