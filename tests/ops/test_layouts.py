"""NaN and infinity stay in their image; images and batches without tokens."""

import itertools
import math

import pytest
import torch
from op_testing import DTYPES, LAYOUTS, random_images, run

from l2vit_mm.ops import linear_attention, linear_attention_qkvpacked

SIZES = {
    'dense': [(9, 30)] * 3,
    'packed': [(9, 30), (40, 33), (1, 2)],
    'padded': [(9, 30), (40, 33), (1, 2)],
}
OTHERS = (0, 2)  # images that are not changed


def attention_of_projection(q, k, v, **options):
    return linear_attention_qkvpacked(torch.stack([q, k, v], -3), **options)


@pytest.mark.parametrize(
    'attention', [linear_attention, attention_of_projection], ids=['q, k, v', 'qkv']
)
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('where', ['q', 'k', 'v', 'dout', 'all'])
@pytest.mark.parametrize(
    'layout, normalizer, dtype',
    [
        ('dense', 'clamp', torch.float32),
        ('dense', 'mean', torch.float16),
        ('packed', 'clamp', torch.bfloat16),
        ('packed', 'mean', torch.float32),
        ('padded', 'clamp', torch.float64),
        ('padded', 'mean', torch.float32),
    ],
    ids=str,
)
def test_not_finite_in_one_image(
    layout, normalizer, dtype, where, value, attention, device, backend
):
    images = {
        name: random_images(SIZES[layout], 2, 8, dtype=dtype, device=device)
        for name in ('q', 'k', 'v', 'dout')
    }
    scale = torch.rand(2, device=device)
    options = {'normalizer': normalizer, 'attention': attention, 'backend': backend}
    before = run(layout, *images.values(), scale, **options)
    for name in images if where == 'all' else [where]:
        images[name][1][..., 0] = value
        images[name][1][0] = value
    after = run(layout, *images.values(), scale, **options)
    for name in ('out', 'dq', 'dk', 'dv'):
        for i in OTHERS:
            assert torch.equal(before[name][i], after[name][i]), (name, i)
    if math.isnan(value):
        assert after['dscale'][0].isnan().all()  # a sum over all images


@pytest.mark.parametrize('layout', LAYOUTS)
def test_nan_reaches_what_it_is_part_of(layout, device, backend):
    images = [random_images(SIZES[layout], 2, 8, device=device) for _ in range(4)]
    for x in images[:2]:
        x[1][3, 4].abs_()  # a token with gradients
    before = run(layout, *images, backend=backend)

    def with_nan(which, *place):
        changed = [[x.clone() for x in y] for y in images]
        changed[which][1][place] = math.nan
        return run(layout, *changed, backend=backend)

    query, key, value = (with_nan(i, 3, 4, 1, 5) for i in range(3))
    # A query: its own output, in its head.
    assert query['out'][1][3, 4, 1].isnan().all()
    query['out'][1][3, 4, 1] = before['out'][1][3, 4, 1]
    assert torch.equal(query['out'][1], before['out'][1])
    # A key: all outputs of its head. A value: in its channel.
    assert key['out'][1][..., 1, :].isnan().all()
    assert torch.equal(key['out'][1][..., 0, :], before['out'][1][..., 0, :])
    assert value['out'][1][..., 1, 5].isnan().all()
    assert not value['out'][1][..., 0, :].isnan().any()
    # And the gradients: clamp and relu propagate NaN.
    assert query['dq'][1][3, 4, 1, 5].isnan() and key['dk'][1][3, 4, 1, 5].isnan()
    for result in (query, key, value):
        for name in ('dq', 'dk'):
            assert result[name][1][3, 4, 1].isnan().any(), name
            assert not result[name][1][..., 0, :].isnan().any(), name


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('layout', ['packed', 'padded'])
def test_memory_of_zeros_is_written(layout, dtype, device, backend):
    """Outputs in no image are zero even where the memory held NaN, which `run` checks."""
    images = [random_images([(3, 5), (50, 50)], 2, 8, dtype=dtype, device=device) for _ in range(4)]
    for _ in range(3):
        garbage = [
            torch.full((2 * 51 * 52 * 16,), math.nan, dtype=dtype, device=device) for _ in range(8)
        ]
        del garbage
        run(layout, *images, backend=backend)


# No tokens


def inputs(*shapes, device):
    return [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]


def check_zeros(out, shape, leaves):
    assert out.shape == shape and not out.any()
    for x, gradient in zip(
        leaves,
        torch.autograd.grad(
            out, leaves, torch.ones_like(out), allow_unused=True, materialize_grads=True
        ),
    ):
        assert gradient.shape == x.shape and not gradient.any()


@pytest.mark.parametrize('normalizer', ['clamp', 'mean'])
@pytest.mark.parametrize(
    'batch, queries, keys',
    [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0), (0, 0, 0), (1, 5000, 0), (1, 0, 5000)],
)
def test_empty_dense(batch, queries, keys, normalizer, device, backend):
    leaves = inputs(
        (batch, queries, 3, 4), (batch, keys, 3, 4), (batch, keys, 3, 6), (3,), device=device
    )
    out = linear_attention(*leaves[:3], scale=leaves[3], normalizer=normalizer, backend=backend)
    check_zeros(out, (batch, queries, 3, 6), leaves)


@pytest.mark.parametrize('normalizer', ['clamp', 'mean'])
@pytest.mark.parametrize(
    'lengths, key_lengths, tail',
    [
        ((), (), 0),
        ((), (), 5),
        ((0, 0, 0), (0, 0, 0), 0),
        ((0,), (0,), 5),
        ((3, 4), (0, 0), 5),
        ((0, 0), (3, 4), 5),
        ((3, 0, 4), (0, 6, 0), 5),
    ],
)
def test_empty_packed(lengths, key_lengths, tail, normalizer, device, backend):
    ends, key_ends = ([0, *itertools.accumulate(x)] for x in (lengths, key_lengths))
    leaves = inputs(
        (ends[-1] + tail, 3, 4),
        (key_ends[-1] + tail, 3, 4),
        (key_ends[-1] + tail, 3, 6),
        (3,),
        device=device,
    )
    out = linear_attention(
        *leaves[:3],
        scale=leaves[3],
        normalizer=normalizer,
        backend=backend,
        cu_seqlens=torch.tensor(ends, device=device),
        cu_seqlens_k=torch.tensor(key_ends, device=device),
    )
    check_zeros(out, (ends[-1] + tail, 3, 6), leaves)


@pytest.mark.parametrize(
    'shape, sizes',
    [
        ((0, 5, 6), ()),
        ((2, 5, 6), ((0, 0), (0, 0))),
        ((2, 5, 6), ((0, 6), (5, 0))),
        ((2, 0, 6), ((0, 6), (0, 0))),
        ((1, 0, 0), ((0, 0),)),
    ],
)
def test_empty_padded(shape, sizes, device, backend):
    leaves = inputs((*shape, 3, 4), (*shape, 3, 4), (*shape, 3, 6), (3,), device=device)
    out = linear_attention(
        *leaves[:3],
        scale=leaves[3],
        backend=backend,
        valid_hw=torch.tensor(sizes, device=device).view(-1, 2).int(),
    )
    check_zeros(out, (*shape, 3, 6), leaves)


@pytest.mark.parametrize(
    'shape, options',
    [
        ((0, 5, 3, 2, 4), {}),
        ((2, 0, 3, 2, 4), {}),
        ((0, 3, 2, 4), {'cu_seqlens': [0]}),
        ((5, 3, 2, 4), {'cu_seqlens': [0, 0]}),
        ((1, 5, 6, 3, 2, 4), {'valid_hw': [[0, 3]]}),
    ],
    ids=str,
)
def test_empty_projection(shape, options, device, backend):
    leaves = inputs(shape, (2,), device=device)
    options = {name: torch.tensor(x, device=device) for name, x in options.items()}
    out = linear_attention_qkvpacked(leaves[0], scale=leaves[1], backend=backend, **options)
    check_zeros(out, (*shape[:-3], *shape[-2:]), leaves)


def test_empty_images_among_others(device, backend):
    sizes = [(0, 4), (5, 6), (3, 0), (2, 2), (0, 0)]
    images = [random_images(sizes, 2, 8, device=device) for _ in range(4)]
    for layout in ('packed', 'padded'):
        result = run(layout, *images, backend=backend)
        for i in (1, 3):
            alone = run('dense', *([x[i]] for x in images), backend=backend)
            for name in result:
                torch.testing.assert_close(result[name][i], alone[name][0])
