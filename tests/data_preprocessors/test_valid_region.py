"""Sizes of images go from the data preprocessor to the backbone, and nowhere else."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.backbones import L2ViT
from l2vit_mm.data_preprocessors import ValidRegionTensor

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
SIZES = [(40, 56), (64, 33)]


@pytest.fixture
def batch():
    torch.manual_seed(0)
    images = [torch.randn(3, *size) for size in SIZES]
    padded = torch.full((2, 3, 64, 64), 7.0)
    for image, target in zip(images, padded):
        target[:, : image.shape[1], : image.shape[2]] = image
    return ValidRegionTensor.of(padded, torch.tensor(SIZES))


def backbone():
    torch.manual_seed(0)
    return L2ViT('pico').eval()


def assert_images_alone(outs, model, batch):
    for index, (h, w) in enumerate(SIZES):
        image = batch.as_subclass(torch.Tensor)[index : index + 1, :, :h, :w]
        for out, alone in zip(outs, model(image)):
            torch.testing.assert_close(
                out[index, :, : alone.shape[2], : alone.shape[3]], alone[0], rtol=1e-4, atol=1e-4
            )
            assert not out[index, :, alone.shape[2] :].any()


def test_backbone_reads_the_sizes(batch):
    model = backbone()
    outs = model(batch)
    assert_images_alone(outs, model, batch)
    assert all(type(out) is torch.Tensor for out in outs)
    plain = model(batch.as_subclass(torch.Tensor))
    assert not torch.allclose(plain[0], outs[0])  # the padding is 7


@pytest.mark.parametrize(
    'same',
    [
        lambda x: x.to('cpu'),
        lambda x: x.to(torch.float64),
        lambda x: x.clone(),
        lambda x: x.detach(),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.bfloat16(),
        lambda x: x.type(torch.float64),
        lambda x: x[:],
        lambda x: x[:, :, :, :],
    ],
)
def test_sizes_are_kept_with_the_places(batch, same):
    out = same(batch)
    assert isinstance(out, ValidRegionTensor) and out.valid_hw.tolist() == [[40, 56], [64, 33]]


@pytest.mark.parametrize(
    'other',
    [
        lambda x: x + 1,
        lambda x: x.flip(3),
        lambda x: x.transpose(2, 3),
        lambda x: x[0],
        lambda x: x[:, :, ::2],
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0),
        lambda x: x.new_zeros(2, 3),
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x.view(-1),
    ],
)
def test_sizes_are_dropped_where_places_change(batch, other):
    assert type(other(batch)) is torch.Tensor


def test_crops(batch):
    crop = batch[:, :, 30:62, 20:60]
    assert crop.valid_hw.tolist() == [[10, 36], [32, 13]]
    assert crop[1:].valid_hw.tolist() == [[32, 13]]
    # One of nothing but padding has one pixel: there is no image without any.
    assert batch[:, :, 50:, 40:].valid_hw.tolist() == [[1, 16], [14, 1]]
    assert batch[:, :, -24:, :-4].valid_hw.tolist() == [[1, 56], [24, 33]]
    model = backbone()
    expected = model(batch.as_subclass(torch.Tensor)[1:, :, 30:62, 20:33])
    out = model(crop)
    torch.testing.assert_close(out[0][1:, :, :, :4], expected[0], rtol=1e-4, atol=1e-4)


def test_models_and_batches_do_not_see_each_other(batch):
    first, second = backbone(), backbone()
    plain = batch.as_subclass(torch.Tensor).clone()
    expected = second(plain)
    first(batch)
    for a, b in zip(second(plain), expected):
        assert torch.equal(a, b)
    other = ValidRegionTensor.of(plain.clone(), torch.tensor([[64, 64], [1, 1]]))
    assert batch.valid_hw.tolist() == [[40, 56], [64, 33]] != other.valid_hw.tolist()


def test_compiled_backbone(batch):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = L2ViT(dict(channels=(8,), depths=(2,), num_heads=(1,)), out_indices=(0,))
    model.eval()
    compiled = torch.compile(model, backend='eager')
    plain = batch.as_subclass(torch.Tensor)
    # Other sizes in other batches of one shape; nothing of one is left in the next.
    for sizes in (SIZES, SIZES[::-1], [(64, 64), (64, 64)]):
        valid = ValidRegionTensor.of(plain.clone(), torch.tensor(sizes))
        gradients = []
        for run in (model, compiled):
            model.zero_grad()
            outs = run(valid)
            sum(out.square().mean() for out in outs).backward()
            gradients.append([p.grad for p in model.parameters()])
        for a, b in zip(*gradients):
            torch.testing.assert_close(a, b)
        for a, b in zip(compiled(valid), model(valid)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_data_parallel(batch, tmp_path):
    """mmengine's wrapper, one process."""
    from mmengine.model import MMDistributedDataParallel

    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    try:
        model = backbone()
        assert_images_alone(MMDistributedDataParallel(model)(batch), model, batch)
    finally:
        torch.distributed.destroy_process_group()


def test_mixed_precision_and_checkpointing(batch):
    model = backbone()
    expected = model(batch)
    with torch.autocast('cpu', torch.bfloat16):
        outs = model(batch)
    for out, wide in zip(outs, expected):
        assert (out.float() - wide).norm() < 0.05 * wide.norm()
    model.with_cp = True
    for out, again in zip(model.train()(batch), model(batch)):
        torch.testing.assert_close(out, again)


def build(cfg, scope):
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg)


PREPROCESSORS = [
    ('mmdet', dict(type='ValidRegionDetDataPreprocessor', pad_size_divisor=32)),
    ('mmseg', dict(type='ValidRegionSegDataPreProcessor', size=(64, 64))),
    ('mmpretrain', dict(type='ValidRegionClsDataPreprocessor', pad_size_divisor=32)),
]


def samples(scope):
    if scope == 'mmdet':
        from mmdet.structures import DetDataSample as Sample
    elif scope == 'mmseg':
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample as Sample
    else:
        from mmpretrain.structures import DataSample as Sample
    result = []
    for h, w in SIZES:
        sample = Sample()
        # As if a Pad transform had changed it: not what counts.
        sample.set_metainfo(dict(img_shape=(64, 64)))
        if scope == 'mmseg':
            sample.gt_sem_seg = PixelData(data=torch.zeros(1, h, w, dtype=torch.long))
        result.append(sample)
    return result


@pytest.mark.parametrize('scope, cfg', PREPROCESSORS)
def test_preprocessors(scope, cfg):
    preprocessor = build(cfg, scope)
    stock = build({**cfg, 'type': cfg['type'].replace('ValidRegion', '')}, scope)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in SIZES]
    data = preprocessor(dict(inputs=images, data_samples=samples(scope)), training=True)
    expected = stock(dict(inputs=images, data_samples=samples(scope)), training=True)
    assert isinstance(preprocessor, type(stock))
    assert data['inputs'].valid_hw.tolist() == [list(size) for size in SIZES]
    assert torch.equal(data['inputs'].as_subclass(torch.Tensor), expected['inputs'])
    single = preprocessor(dict(inputs=images[:1], data_samples=samples(scope)[:1]))
    assert single['inputs'].valid_hw.tolist() == [[40, 56]]


def test_augmentations_of_batches():
    images = [torch.zeros(3, *size, dtype=torch.uint8) for size in SIZES]
    pad = build(
        dict(
            type='ValidRegionDetDataPreprocessor',
            batch_augments=[dict(type='BatchFixedSizePad', size=(96, 96))],
        ),
        'mmdet',
    )
    data = pad(dict(inputs=images, data_samples=samples('mmdet')), training=True)
    assert data['inputs'].shape[2:] == (96, 96)
    assert data['inputs'].valid_hw.tolist() == [[40, 56], [64, 33]]
    mixing = build(
        dict(
            type='ValidRegionClsDataPreprocessor',
            num_classes=2,
            batch_augments=dict(augments=[dict(type='Mixup', alpha=0.5)]),
        ),
        'mmpretrain',
    )

    def labelled():
        return [sample.set_gt_label(0) for sample in samples('mmpretrain')]

    with pytest.raises(ValueError, match=r'batch_augments must be BatchFixedSizePad .*\(40, 56\)'):
        mixing(dict(inputs=images, data_samples=labelled()), training=True)
    same = mixing(dict(inputs=images[:1] * 2, data_samples=labelled()), training=True)
    assert type(same['inputs']) is torch.Tensor
    assert mixing(dict(inputs=images, data_samples=labelled()))['inputs'].valid_hw is not None


def mask_rcnn(preprocessor):
    cfg = Config.fromfile(str(CONFIGS / 'mask_rcnn_l2vit_t_coco.py')).model
    cfg.data_preprocessor.type = preprocessor
    cfg.backbone.arch = 'pico'
    cfg.neck.in_channels = list(L2ViT.arch_zoo['pico']['channels'])
    torch.manual_seed(0)
    return build(cfg, 'mmdet').eval()


def test_mask_rcnn_features_alone_and_beside_a_larger_image():
    small, large = (
        torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in [(70, 101), (130, 150)]
    )

    def features(preprocessor, *images):
        model = mask_rcnn(preprocessor)
        data = model.data_preprocessor(
            dict(inputs=list(images), data_samples=samples('mmdet')[: len(images)])
        )
        return model.backbone(data['inputs'])

    def difference(preprocessor):
        alone = features(preprocessor, small)
        beside = features(preprocessor, small, large)
        sizes = [(-(-70 // stride), -(-101 // stride)) for stride in (4, 8, 16, 32)]
        return max(
            ((a[0, :, :h, :w] - b[0, :, :h, :w]).abs().max() / a.std()).item()
            for a, b, (h, w) in zip(alone, beside, sizes)
        )

    assert difference('ValidRegionDetDataPreprocessor') < 1e-4
    assert difference('DetDataPreprocessor') > 0.01


def test_what_a_neck_mixes():
    """docs/batching.md says it: the last row and column, where the image's own padding ends."""
    model = mask_rcnn('ValidRegionDetDataPreprocessor')
    for module in model.neck.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.normal_(module.bias)
    small, large = (
        torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in [(70, 101), (130, 150)]
    )

    def features(*images):
        data = model.data_preprocessor(
            dict(inputs=list(images), data_samples=samples('mmdet')[: len(images)])
        )
        with torch.no_grad():
            return model.extract_feat(data['inputs'])

    for a, b, stride in zip(features(small), features(small, large), (4, 8, 16, 32, 64)):
        h, w = -(-70 // stride), -(-101 // stride)
        difference = (a[0, :, :h, :w] - b[0, :, :h, :w]).abs().amax(0) / a.std()
        # Alone it is padded to 96 x 128: more rows and columns than it has at strides 4 to 16.
        inner = difference if stride <= 16 else difference[:-1, :-1]
        assert (inner < 1e-4).all()
        assert stride <= 16 or difference.max() > 0.01


def test_test_time_augmentation():
    from mmdet.models import DetTTAModel

    model = mask_rcnn('ValidRegionDetDataPreprocessor')
    del model.roi_head.mask_head  # mmdet merges boxes alone
    model.test_cfg.rcnn.score_thr = 0.0
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0].valid_hw.tolist()))
    inputs, augmented = [], []
    for scale, flip in ((1, False), (2, True)):
        inputs.append(
            [torch.randint(0, 256, (3, scale * h, scale * w), dtype=torch.uint8) for h, w in SIZES]
        )
        augmented.append(samples('mmdet'))
        for sample, size in zip(augmented[-1], SIZES):
            sample.set_metainfo(
                dict(
                    ori_shape=size,
                    img_shape=tuple(scale * side for side in size),
                    flip=flip,
                    flip_direction='horizontal' if flip else None,
                    scale_factor=(scale, scale),
                )
            )
    tta = DetTTAModel(
        module=model, tta_cfg=ConfigDict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=10)
    )
    with torch.no_grad():
        results = tta.test_step(dict(inputs=inputs, data_samples=augmented))
    assert len(results) == 2 and len(results[0].pred_instances)
    assert seen == [[[40, 56], [64, 33]], [[80, 112], [128, 66]]]


def test_sliding_window_of_a_segmenter(batch):
    cfg = Config.fromfile(str(CONFIGS / 'upernet_l2vit_t_ade20k.py')).model
    cfg.data_preprocessor = dict(type='ValidRegionSegDataPreProcessor')
    cfg.backbone.arch = 'pico'
    channels = L2ViT.arch_zoo['pico']['channels']
    cfg.decode_head.update(in_channels=list(channels), channels=16, norm_cfg=dict(type='BN'))
    cfg.auxiliary_head = None
    cfg.test_cfg = dict(mode='slide', crop_size=(48, 48), stride=(32, 32))
    torch.manual_seed(0)
    model = build(cfg, 'mmseg').eval()
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0].valid_hw.tolist()))
    with torch.no_grad():
        shapes = dict(ori_shape=(64, 64), img_shape=(64, 64), pad_shape=(64, 64))
        model.inference(batch, [shapes] * 2)
    assert seen == [
        [[40, 48], [48, 33]],
        [[40, 40], [48, 17]],
        [[24, 48], [48, 33]],
        [[24, 40], [48, 17]],
    ]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
def test_on_a_gpu(batch):
    model = backbone().cuda()
    moved = batch.cuda()
    assert moved.valid_hw.device.type == 'cpu'
    assert_images_alone(model(moved), model, moved)
