"""The definition (plain PyTorch) against the equation, and features that only it has."""

import pytest
import torch
from op_testing import LAYOUTS, expected, random_images, relative_error, run, threshold

from l2vit_mm.ops import focused_feature_map, linear_attention, linear_attention_qkvpacked

FLOAT64 = {'dtype': torch.float64}


def equation(q, k, v, scale, feature_map, normalizer, denom_min, eps):
    """One image and one head, q (N, D), k (M, D), v (M, Dv): a query and a key at a time."""
    phi = torch.relu if feature_map == 'relu' else lambda x: x
    out = []
    for query in phi(q):
        weights = [query @ key for key in phi(k)]
        numerator = sum(weight * value for weight, value in zip(weights, v))
        denominator = sum(weights)
        if normalizer == 'clamp':
            out.append(scale * numerator / max(denominator, denom_min))
        else:
            out.append(scale * (numerator / len(k)) / (denominator / len(k) + eps))
    return torch.stack(out)


def inputs(layout, other_keys=False):
    sizes = [(3, 4), (3, 4)] if layout == 'dense' else [(3, 4), (1, 2), (5, 1)]
    key_sizes = [(2, 5), (2, 5)] if layout == 'dense' else [(1, 3), (4, 1), (2, 5)]
    key_sizes = key_sizes if other_keys else sizes
    return (
        random_images(sizes, 3, 4, **FLOAT64),
        random_images(key_sizes, 3, 4, **FLOAT64),
        random_images(key_sizes, 3, 6, **FLOAT64),
        random_images(sizes, 3, 6, **FLOAT64),
    )


@pytest.mark.parametrize('normalizer', ['clamp', 'mean'])
@pytest.mark.parametrize('feature_map', ['relu', 'identity'])
@pytest.mark.parametrize(
    'layout, other_keys', [('dense', True), ('packed', True), ('packed', False), ('padded', False)]
)
def test_against_the_equation(layout, other_keys, feature_map, normalizer):
    q, k, v, dout = inputs(layout, other_keys)
    if feature_map == 'identity':  # mapped already
        q, k = [x.abs() for x in q], [x.abs() for x in k]
    scale = torch.rand(3, dtype=torch.float64)
    options = {
        'feature_map': feature_map,
        'normalizer': normalizer,
        'eps': 0.1,
        'denom_min': threshold(q, k, feature_map),
    }
    result = run(layout, q, k, v, dout, scale, backend='reference', **options)

    leaves = [x.requires_grad_() for x in (*q, *k, *v, scale)]
    outs = [
        torch.stack(
            [
                equation(*(x.flatten(0, 1)[:, h] for x in image), scale[h], **options)
                for h in range(3)
            ],
            1,
        )
        for image in zip(q, k, v)
    ]
    total = sum((out * x.flatten(0, 1)).sum() for out, x in zip(outs, dout))
    grads = torch.autograd.grad(total, leaves)
    names = ['dq'] * len(q) + ['dk'] * len(q) + ['dv'] * len(q) + ['dscale']
    for name, gradient in zip(names, grads):
        assert relative_error(result[name].pop(0), gradient) < 1e-12, name
    for actual, out in zip(result['out'], outs):
        assert relative_error(actual.flatten(0, 1), out) < 1e-12


@pytest.mark.parametrize('layout', LAYOUTS)
def test_expected_is_the_same_definition(layout):
    # op_testing assembles what the other tests compare with.
    images = inputs(layout)
    scale = torch.rand(3, dtype=torch.float64)
    result = run(layout, *images, scale, denom_min=5.0, backend='reference')
    for name, tensors in expected(*images, scale, denom_min=5.0).items():
        assert all(relative_error(*x) < 1e-13 for x in zip(result[name], tensors)), name


def test_heads_of_any_size():
    q = torch.randn(1, 3, 2, 300)
    assert linear_attention(q, q, q, backend='reference').shape == (1, 3, 2, 300)


def test_second_derivatives():
    q, k, v = (
        (torch.rand(1, 3, 2, 2, dtype=torch.float64) + 0.5).requires_grad_() for _ in range(3)
    )
    assert torch.autograd.gradgradcheck(
        lambda *x: linear_attention(*x, denom_min=1.0, backend='reference'), (q, k, v)
    )


def test_second_derivatives_need_the_reference(device, compiled):
    qkv = torch.randn(1, 5, 3, 2, 4, device=device, requires_grad=True)
    x = torch.randn(5, 4, device=device, requires_grad=True)
    s = torch.zeros(4, device=device)
    for leaf, out in (
        (qkv, linear_attention(*qkv.unbind(2), backend=compiled)),
        (qkv, linear_attention_qkvpacked(qkv, backend=compiled)),
        (x, focused_feature_map(x, s, backend=compiled)),
    ):
        (gradient,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        with pytest.raises(NotImplementedError, match="backend='reference'"):
            gradient.sum().backward()
