"""FLOPs as counted by torch: two per multiply-add of the products with the state S."""

import math

import pytest
import torch
from op_testing import join, layout_options, random_images, sizes_of
from torch.utils.flop_counter import FlopCounterMode

from l2vit_mm.ops import focused_feature_map, linear_attention, linear_attention_qkvpacked


def count(function):
    """Returns the FLOPs of the forward pass and of the backward pass."""
    with FlopCounterMode(display=False) as forward:
        out = function()
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def products_with_z(queries, heads, dim):
    """Returns the FLOPs of the reference that are not counted: phi(q) z and its two gradients."""
    return 2 * queries * heads * dim, 4 * queries * heads * dim


def matmuls_of_reference(q, k, v, **options):
    counted = count(lambda: linear_attention(q, k, v, backend='reference', **options))
    with_z = products_with_z(math.prod(q.shape[:-2]), *q.shape[-2:])
    return tuple(total - z for total, z in zip(counted, with_z))


@pytest.mark.parametrize('normalizer', ['clamp', 'mean'])
def test_linear_attention(normalizer, device, compiled):
    q, k, v = (
        torch.randn(2, tokens, 3, dim, device=device, requires_grad=True)
        for tokens, dim in ((50, 8), (70, 8), (70, 6))
    )
    scale = torch.rand(3, device=device, requires_grad=True)
    options = {'scale': scale, 'normalizer': normalizer}
    counted = count(lambda: linear_attention(q, k, v, backend=compiled, **options))
    assert counted == matmuls_of_reference(q, k, v, **options)
    state = 2 * 2 * 3 * 8 * 6  # per query or key, of two images with 3 heads
    assert counted == (state * (50 + 70), 2 * state * (50 + 70))


@pytest.mark.parametrize('layout', ['dense', 'packed', 'padded'])
def test_linear_attention_qkvpacked(layout, device, compiled):
    images = random_images([(5, 7)] * 2, 3, 2, 8, device=device)
    qkv = join(layout, images, outside=0.0).requires_grad_()
    options = layout_options(layout, sizes_of(images), device=device)
    counted = count(lambda: linear_attention_qkvpacked(qkv, backend=compiled, **options))
    if layout == 'dense':
        assert counted == matmuls_of_reference(*qkv.unbind(-3))
    # All tokens of the tensor, including those in no image: only shapes are known.
    tokens = math.prod(qkv.shape[:-3])
    assert counted == (2 * 2 * tokens * 2 * 8 * 8, 4 * 2 * tokens * 2 * 8 * 8)


def test_flops_without_memory(compiled):
    """Tensors without values are counted, too: tools count a whole model this way."""
    qkv = torch.empty(1, 60800, 3, 3, 32, device='meta', requires_grad=True)
    counted = count(lambda: linear_attention_qkvpacked(qkv, backend=compiled))
    assert counted == (2 * 2 * 60800 * 96 * 32, 4 * 2 * 60800 * 96 * 32)


def test_focused_feature_map(device, backend):
    """Pointwise, hence 0, like the operators of torch that it replaces."""
    x, pos = torch.randn(2, 9, 8, device=device, requires_grad=True), torch.ones(9, 8).to(device)
    s = torch.randn(8, device=device, requires_grad=True)
    assert count(lambda: focused_feature_map(x, s, 3, pos, backend=backend)) == (0, 0)


def test_every_operator_has_a_formula(compiled):
    """An operator without a formula would silently count 0."""
    from torch.utils.flop_counter import flop_registry

    operators = {
        getattr(torch.ops.l2vit_mm, schema.name.split('::')[1])
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith('l2vit_mm::')
    }
    about_the_build = {torch.ops.l2vit_mm.build_info, torch.ops.l2vit_mm.max_head_dim}
    assert len(operators) == 8
    assert operators - flop_registry.keys() == about_the_build
