"""An image's features, and gradients, don't depend on the images that it is batched with."""

import pytest
import torch
from torch import nn

from l2vit_mm.backbones import (
    FLattenCSWin,
    FLattenDeiT,
    FLattenPVT,
    FLattenPVTv2,
    FLattenSwin,
    L2ViT,
)
from l2vit_mm.layers import DenseLayout
from l2vit_mm.layers.layout import packed

hypothesis = pytest.importorskip('hypothesis')
from hypothesis import strategies as st  # noqa: E402

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
# Each block's attention, also those that aren't published: linear and softmax, windows, stripes,
# whole maps, keys from smaller maps.
PYRAMID = dict(
    channels=(8, 16),
    depths=(2, 2),
    num_heads=(1, 2),
    mlp_ratios=(2, 2),
    attn_types='LSLS',
    pretrain_size=32,
)
MODELS = {
    'L2ViT': lambda: L2ViT(
        dict(channels=(8, 16, 16), depths=(2, 2, 2), num_heads=(1, 2, 2), window_size=3),
        out_indices=(0, 1, 2),
    ),
    'FLattenPVT': lambda: FLattenPVT(PYRAMID, out_indices=(0, 1), sr_ratios=(3, 1)),
    'FLattenPVTv2': lambda: FLattenPVTv2(PYRAMID, out_indices=(0, 1), sr_ratios=(2, 1)),
    'FLattenSwin': lambda: FLattenSwin(
        dict(
            channels=(8, 16),
            depths=(2, 2),
            num_heads=(1, 2),
            attn_types='LLSS',
            pretrain_size=32,
            window_size=3,
        ),
        out_indices=(0, 1),
    ),
    'FLattenSwin in windows': lambda: FLattenSwin(
        dict(
            channels=(8, 16),
            depths=(2, 2),
            num_heads=(1, 2),
            attn_types='LLSS',
            pretrain_size=32,
            window_size=3,
        ),
        out_indices=(0, 1),
        linear_window_size=(5, None),
    ),
    'FLattenCSWin': lambda: FLattenCSWin(
        dict(
            channels=(8, 16, 16),
            depths=(1, 2, 1),
            num_heads=(1, 2, 2),
            attn_types='LSS',
            split_sizes=(1, 2, 3),
            pretrain_size=32,
        ),
        out_indices=(0, 1, 2),
    ),
    'FLattenDeiT': lambda: FLattenDeiT(
        dict(channels=8, depth=2, num_heads=2, patch_size=8, attn_types='LS', pretrain_size=32)
    ),
    **{
        f'FLattenPVT, {attention}': lambda attention=attention: FLattenPVT(
            dict(PYRAMID, attn_types='L'), out_indices=(0, 1), sr_ratios=(3, 1), attention=attention
        )
        for attention in ('hydra', 'efficient', 'angular', 'elu', 'softmax')
    },
}


@pytest.fixture(params=['padded', 'by size'])
def maps(request, monkeypatch):
    """How convolutions get their maps: small ones all at once, large ones by size."""
    if request.param == 'by size':
        monkeypatch.setattr(packed, '_LARGE', 0)


def build(name, dtype=torch.float64):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        if not parameter.any() or (parameter == 1).all():  # what begins at 0 or 1
            nn.init.normal_(parameter, mean=parameter.flatten()[0].item(), std=0.3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
    return model.to(dtype)


def pad(images, filler, extra=(0, 0)):
    """A batch padded right and bottom, and its valid_hw."""
    height = max(image.shape[1] for image in images) + extra[0]
    width = max(image.shape[2] for image in images) + extra[1]
    batch = images[0].new_full((len(images), 3, height, width), filler)
    for padded, image in zip(batch, images):
        padded[:, : image.shape[1], : image.shape[2]] = image
    return batch, torch.tensor([image.shape[1:] for image in images])


def gradients(model, run):
    model.zero_grad()
    run().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(a, b, tolerance):
    return (a - b).abs().max() <= tolerance * b.abs().max() + 1e-30


size = st.tuples(st.integers(1, 60), st.integers(1, 60))


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize(
    'maps, dtype',
    [('padded', torch.float32), ('padded', torch.float64), ('by size', torch.float64)],
    indirect=['maps'],
)
def test_alone_and_in_a_batch(name, maps, dtype):
    model = build(name, dtype)
    tolerance = TOLERANCE[dtype]

    @hypothesis.settings(max_examples=12, deadline=None)
    @hypothesis.given(
        sizes=st.lists(size, min_size=1, max_size=4),
        extra=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        seed=st.integers(0, 2**32 - 1),
    )
    def check(sizes, extra, seed):
        generator = torch.Generator().manual_seed(seed)
        images = [torch.randn(3, *hw, generator=generator, dtype=dtype) for hw in sizes]
        batch, valid_hw = pad(images, torch.nan, extra)
        outs = model(batch, valid_hw)
        alone = [model(image[None]) for image in images]
        weights = []
        for level, out in enumerate(outs):
            weights.append([])
            for index, maps in enumerate(alone):
                expected = maps[level][0]
                _, h, w = expected.shape
                assert close(out[index, :, :h, :w], expected, tolerance)
                assert not out[index, :, h:].any() and not out[index, :, :, w:].any()
                weights[-1].append(torch.randn(expected.shape, generator=generator, dtype=dtype))

        def loss_of_batch():
            return sum(
                (out[i, :, : w.shape[1], : w.shape[2]] * w).sum()
                for out, ws in zip(model(batch, valid_hw), weights)
                for i, w in enumerate(ws)
            )

        def loss_alone():
            return sum(
                (maps[0] * ws[i]).sum()
                for i, image in enumerate(images)
                for maps, ws in zip(model(image[None]), weights)
            )

        of_batch, one_by_one = gradients(model, loss_of_batch), gradients(model, loss_alone)
        assert of_batch.keys() == one_by_one.keys()
        scale = max(gradient.abs().max() for gradient in one_by_one.values())
        for key, gradient in of_batch.items():
            # Relative to the largest of all: some are sums that cancel.
            error = (gradient - one_by_one[key]).abs().max()
            assert error <= tolerance * max(one_by_one[key].abs().max(), 0.01 * scale), key

    check()


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.usefixtures('maps')
def test_gradient_of_the_image(name):
    model = build(name)
    images = [torch.randn(3, *hw, dtype=torch.float64) for hw in [(24, 40), (33, 17)]]
    batch, valid_hw = pad(images, torch.nan)
    batch.requires_grad_()
    sum(out.square().sum() for out in model(batch, valid_hw)).backward()
    for image, gradient in zip(images, batch.grad):
        image = image[None].clone().requires_grad_()
        sum(out.square().sum() for out in model(image)).backward()
        _, _, h, w = image.shape
        torch.testing.assert_close(gradient[:, :h, :w], image.grad[0])
        assert not gradient[:, h:].any() and not gradient[:, :, w:].any()


def test_batch_norm_in_training_counts_valid_positions_only():
    images = torch.randn(2, 3, 40, 56, dtype=torch.float64)
    dense, packed = build('L2ViT').train(), build('L2ViT').train()
    batch, valid_hw = pad([*images], torch.nan, (24, 8))
    for a, b in zip(dense(images), packed(batch, valid_hw)):
        torch.testing.assert_close(b[:, :, : a.shape[2], : a.shape[3]], a)
    buffers = dict(packed.named_buffers())
    assert any('running_var' in name for name in buffers)
    for name, buffer in dense.named_buffers():
        torch.testing.assert_close(buffers[name], buffer)


@pytest.mark.parametrize('name', ['L2ViT', 'FLattenSwin', 'FLattenCSWin'])
def test_checkpointing_and_frozen_stages(name):
    images = [torch.randn(3, *hw, dtype=torch.float64) for hw in [(24, 40), (33, 17)]]
    batch, valid_hw = pad(images, torch.nan)
    grads = []
    for with_cp in (False, True):
        model = build(name).train()
        model.with_cp = with_cp
        grads.append(
            gradients(model, lambda: sum(out.square().sum() for out in model(batch, valid_hw)))
        )
    for key, gradient in grads[0].items():
        torch.testing.assert_close(gradient, grads[1][key])


@pytest.mark.parametrize('name', ['L2ViT', 'FLattenSwin'])
def test_mixed_precision(name):
    model = build(name, torch.float32)
    images = [torch.randn(3, *hw) for hw in [(24, 40), (33, 17)]]
    batch, valid_hw = pad(images, torch.nan)
    expected = model(batch, valid_hw)
    with torch.autocast('cpu', torch.bfloat16):
        outs = model(batch, valid_hw)
    for out, wide in zip(outs, expected):
        assert (out.float() - wide).norm() / wide.norm() < 0.05


def test_drop_path_drops_whole_images():
    model = build('FLattenPVT').train()
    for stage in model.stages:
        for block in stage:
            block.drop_path.drop_prob = 1.0 - 1e-12  # what is kept is so rare that none is
    images = [torch.randn(3, *hw, dtype=torch.float64) for hw in [(24, 40), (33, 17)]]
    batch, valid_hw = pad(images, 0.0)
    stem = model(batch, valid_hw)[0][1, :, :9, :5]
    pixels = DenseLayout(1, 33, 17)
    tokens, reduced = model.stem(pixels.from_map(images[1][None]), pixels)
    torch.testing.assert_close(stem, reduced.to_map(tokens, 9, 5)[0])


def test_a_full_batch_takes_the_dense_path(monkeypatch):
    from l2vit_mm.backbones import base

    monkeypatch.delattr(base, 'PackedLayout')
    model = build('L2ViT')
    images = torch.randn(2, 3, 24, 40, dtype=torch.float64)
    full = model(images, torch.tensor([[24, 40], [24, 40]]))
    for a, b in zip(full, model(images)):
        assert torch.equal(a, b)
    with pytest.raises(NameError, match='PackedLayout'):
        model(images, torch.tensor([[24, 40], [24, 39]]))


@pytest.mark.parametrize(
    'valid_hw, message',
    [
        (torch.tensor([[24, 40]]), r'integers, \(2, 2\), got torch.int64 of the shape \(1, 2\)'),
        (torch.ones(2, 2), r'got torch.float32 of the shape'),
        ([[24, 40], [24, 40]], 'valid_hw must be a tensor of integers, .* got a list'),
        (torch.tensor([[24, 40], [25, 40]]), r'heights from 1 to 24 .* 1 to 40, got .*\(25, 40\)'),
        (torch.tensor([[24, 40], [0, 40]]), r'\(0, 40\)'),
    ],
)
def test_bad_sizes(valid_hw, message):
    with pytest.raises(ValueError, match=message):
        build('L2ViT')(torch.zeros(2, 3, 24, 40, dtype=torch.float64), valid_hw)
