import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.necks import SimpleFeaturePyramid


def norm(x, module):
    """LayerNorm over the channels of a map, written out."""
    centred = x - x.mean(1, keepdim=True)
    x = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return x * module.weight[:, None, None] + module.bias[:, None, None]


def deconvolve(x, module):
    """2x2, stride 2: each pixel becomes four."""
    batch, _, height, width = x.shape
    out = torch.einsum('bchw,cdyx->bdhywx', x, module.weight)
    return out.reshape(batch, -1, 2 * height, 2 * width) + module.bias[:, None, None]


def test_levels_against_their_formulas():
    neck = SimpleFeaturePyramid(8, 6, num_outs=6).double()
    for parameter in neck.parameters():
        nn.init.normal_(parameter)
    ignored, x = torch.randn(2, 2, 8, 5, 7, dtype=torch.float64)
    first, between, _, second = neck.rescale[0]
    levels = [
        deconvolve(F.gelu(norm(deconvolve(x, first), between)), second),
        deconvolve(x, neck.rescale[1]),
        x,
        F.pad(x, (0, 1, 0, 1), value=-torch.inf).unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5)),
    ]
    outs = neck((ignored, x))
    for out, level, (conv1, norm1, conv3, norm3) in zip(outs, levels, neck.convs):
        level = norm(torch.einsum('bchw,dc->bdhw', level, conv1.weight[..., 0, 0]), norm1)
        torch.testing.assert_close(out, norm(F.conv2d(level, conv3.weight, padding=1), norm3))
    assert torch.equal(outs[4], outs[3][..., ::2, ::2])
    assert torch.equal(outs[5], outs[4][..., ::2, ::2])
    assert len(outs) == 6


@pytest.mark.parametrize('size', [(1, 1), (1, 6), (5, 7)])
def test_sizes_and_gradients(size):
    neck = SimpleFeaturePyramid(8, 6)
    outs = neck((torch.randn(2, 8, *size),))
    h, w = size
    assert [tuple(out.shape) for out in outs] == [
        (2, 6, 4 * h, 4 * w),
        (2, 6, 2 * h, 2 * w),
        (2, 6, h, w),
        (2, 6, (h + 1) // 2, (w + 1) // 2),
    ]
    assert all(out.is_contiguous() for out in outs)
    sum((out * torch.randn_like(out)).sum() for out in outs).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in neck.parameters())


def test_initialisation():
    neck = SimpleFeaturePyramid(128, 64)
    assert neck.rescale[1].weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not neck.rescale[1].bias.any()
    bound = (3 / (64 * 9)) ** 0.5  # uniform of variance 1 / fan-in
    assert neck.convs[0][2].weight.abs().max().item() == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(in_channels=6), 'in_channels must be a positive multiple of 4, got 6'),
        (dict(in_channels=8, out_channels=0), 'out_channels must be 1 or more, got 0'),
        (dict(in_channels=8, num_outs=4.5), 'num_outs must be .*, got 4.5'),
        (dict(in_channels=8, num_outs=3), 'num_outs must be 4 or more, got 3'),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        SimpleFeaturePyramid(**kwargs)


def test_bad_map():
    with pytest.raises(ValueError, match=r'inputs\[-1\] must have shape \(B, 8, h, w\), got'):
        SimpleFeaturePyramid(8)((torch.zeros(1, 4, 2, 2),))


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg', 'mmpretrain'])
def test_same_dict_builds_in_every_scope(toolbox):
    registry = importlib.import_module(f'{toolbox}.registry').MODELS
    backbone = registry.build(dict(type='FLattenDeiT', arch=dict(channels=8, depth=2, num_heads=2)))
    neck = registry.build(dict(type='SimpleFeaturePyramid', in_channels=8, out_channels=4))
    maps = neck(backbone.eval()(torch.zeros(1, 3, 40, 72)))
    assert [tuple(m.shape[2:]) for m in maps] == [(12, 20), (6, 10), (3, 5), (2, 3)]
