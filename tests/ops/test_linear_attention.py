"""Both backends against the definition in float64, on every device."""

import itertools

import pytest
import torch
from op_testing import (
    DTYPES,
    LAYOUTS,
    assert_close,
    expected,
    join,
    needs_extension,
    random_images,
    relative_error,
    run,
    threshold,
    tolerances,
)

from l2vit_mm.ops import linear_attention, linear_attention_qkvpacked

DIMS = [1, 5, 8, 16, 32, 33, 48, 64, 100, 128, 256, (16, 48), (64, 8), (5, 130)]
SIZES = {
    'dense': [(5, 9)] * 2,
    'packed': [(5, 9), (1, 1), (70, 3)],
    'padded': [(5, 9), (1, 1), (70, 3)],
}


def check(layout, q, k, v, dout, scale=None, **options):
    result = run(layout, q, k, v, dout, scale, **options)
    options.pop('backend')
    dtype = q[0].dtype
    assert all(
        x.dtype == dtype for name, images in result.items() if name != 'dscale' for x in images
    )
    assert_close(result, expected(q, k, v, dout, scale, **options), *tolerances(dtype))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('dims', DIMS, ids=str)
@pytest.mark.parametrize('layout', LAYOUTS)
def test_head_sizes(layout, dims, dtype, device, backend):
    dim, value_dim = dims if isinstance(dims, tuple) else (dims, dims)
    like = {'dtype': dtype, 'device': device}
    q, k, v, dout = (
        random_images(SIZES[layout], 3, size, **like) for size in (dim, dim, value_dim, value_dim)
    )
    scale = torch.rand(3, device=device, dtype=dtype if dtype == torch.float64 else None) + 0.5
    check(layout, q, k, v, dout, scale, denom_min=threshold(q, k), backend=backend)


@pytest.mark.parametrize('scale', ['none', 'number', 'tensor'])
@pytest.mark.parametrize('normalizer', ['clamp', 'mean'])
@pytest.mark.parametrize('feature_map', ['relu', 'identity'])
@pytest.mark.parametrize('layout', LAYOUTS)
def test_options(layout, feature_map, normalizer, scale, device, backend):
    q, k, v, dout = (random_images(SIZES[layout], 2, 8, device=device) for _ in range(4))
    if feature_map == 'identity' and normalizer == 'mean':
        q, k = [x.abs() for x in q], [x.abs() for x in k]  # no divisor near zero
    scale = {'none': None, 'number': -1.5, 'tensor': torch.randn(2, device=device)}[scale]
    check(
        layout,
        q,
        k,
        v,
        dout,
        scale,
        feature_map=feature_map,
        normalizer=normalizer,
        denom_min=threshold(q, k, feature_map),
        eps=0.3,
        backend=backend,
    )


@pytest.mark.parametrize(
    'layout, sizes, key_sizes',
    [
        ('dense', [(1, 7)] * 3, [(1, 200)] * 3),
        ('dense', [(40, 40)], [(1, 1)]),
        ('packed', [(1, 7), (30, 50), (1, 1)], [(30, 50), (1, 1), (1, 40)]),
    ],
    ids=['dense', 'dense, one key', 'packed'],
)
@pytest.mark.parametrize('normalizer', ['clamp', 'mean'])
def test_keys_of_another_length(layout, sizes, key_sizes, normalizer, device, backend):
    q, dout = (random_images(sizes, 2, size, device=device) for size in (16, 24))
    k, v = (random_images(key_sizes, 2, size, device=device) for size in (16, 24))
    check(
        layout,
        q,
        k,
        v,
        dout,
        normalizer=normalizer,
        denom_min=threshold(q, k),
        eps=0.1,
        backend=backend,
    )


@pytest.mark.parametrize(
    'layout, sizes, dtype, dims, heads, options',
    [
        ('dense', [(200, 350)], torch.float32, 32, 3, {}),
        ('dense', [(19, 31)] * 16, torch.bfloat16, 64, 2, {'normalizer': 'mean'}),
        ('packed', [(1, 1), (200, 350), (0, 0), (60, 101)], torch.float32, (8, 24), 2, {}),
        ('packed', [(150, 200), (3, 1000)], torch.float16, 32, 3, {'normalizer': 'mean'}),
        ('padded', [(250, 280), (1, 17), (100, 300)], torch.float32, 16, 1, {'normalizer': 'mean'}),
        ('padded', [(50, 76), (76, 50)], torch.float64, 48, 2, {}),
    ],
    ids=str,
)
def test_long_sequences(layout, sizes, dtype, dims, heads, options, device, backend):
    dim, value_dim = dims if isinstance(dims, tuple) else (dims, dims)
    q, k, v, dout = (
        random_images(sizes, heads, size, dtype=dtype, device=device)
        for size in (dim, dim, value_dim, value_dim)
    )
    scale = torch.rand(heads, device=device).to(torch.promote_types(dtype, torch.float32)) + 0.5
    check(layout, q, k, v, dout, scale, backend=backend, **options)


def test_many_images(device, backend):
    sizes = [(i % 7, i % 5) for i in range(200)]
    q, k, v, dout = (random_images(sizes, 2, 8, device=device) for _ in range(4))
    check('packed', q, k, v, dout, normalizer='mean', backend=backend)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_zeros_have_no_gradient(dtype, device, backend):
    # The gradient of relu at zero, of either sign, is zero. Rounded inputs are often exactly zero.
    q, k, v, dout = (
        [x.round() for x in random_images([(6, 7)] * 2, 2, 8, dtype=dtype, device=device)]
        for _ in range(4)
    )
    q[0][0] = -0.0
    check('dense', q, k, v, dout, denom_min=threshold(q, k), backend=backend)
    result = run('dense', q, k, v, dout, backend=backend)
    for name, images in (('dq', q), ('dk', k)):
        for gradient, x in zip(result[name], images):
            assert not gradient[x <= 0].any()


def test_infinitely_small_denominator(device, backend):
    """Queries that see no key: zeros under both normalizers."""
    q = -torch.rand(1, 5, 2, 8, device=device)
    k, v = (torch.randn(1, 7, 2, 8, device=device) for _ in range(2))
    for normalizer in ('clamp', 'mean'):
        assert not linear_attention(q, k, v, normalizer=normalizer, backend=backend).any()


# Views


def nan_like(x):
    return torch.full_like(x, float('nan'))


def projection(x):
    """As one of the three parts of a projection."""
    return torch.stack([nan_like(x), x, nan_like(x)], -3)[..., 1, :, :]


def heads_first(x):
    return x.transpose(-3, -2).contiguous().transpose(-3, -2)


def channels_apart(x):
    return torch.stack([x, nan_like(x)], -1)[..., 0]


def channels_before_heads(x):
    return x.mT.contiguous().mT


def reversed_dims(x):
    dims = range(x.ndim - 1, -1, -1)
    return x.permute(*dims).contiguous().permute(*dims)


def odd_rows(x):
    return torch.cat([x, nan_like(x[..., :1])], -1)[..., :-1]


def unaligned(x):
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


VIEWS = [
    projection,
    heads_first,
    channels_apart,
    channels_before_heads,
    reversed_dims,
    odd_rows,
    unaligned,
]


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('view', VIEWS, ids=lambda view: view.__name__)
def test_views(view, layout, dtype, device, backend):
    q, k, v, dout = (
        random_images(SIZES[layout], 2, 16, dtype=dtype, device=device) for _ in range(4)
    )

    def attention(q, k, v, **options):
        out = linear_attention(view(q), view(k), view(v), **options)
        out.register_hook(view)  # the gradient is such a view, too
        return out

    like = run(layout, q, k, v, dout, backend=backend)
    assert_close(
        run(layout, q, k, v, dout, attention=attention, backend=backend), like, *tolerances(dtype)
    )


@pytest.mark.parametrize('dims', [(0,), (1,), (2,), (3,), (0, 1, 2, 3)], ids=str)
def test_broadcast_inputs(dims, device, backend):
    leaves, tensors = [], []
    for _ in range(3):
        leaf = torch.randn(
            *(1 if i in dims else n for i, n in enumerate((2, 9, 3, 8))),
            device=device,
            dtype=torch.float64,
            requires_grad=True,
        )
        leaves.append(leaf)
        tensors.append(leaf.expand(2, 9, 3, 8))
    dout = torch.randn(2, 9, 3, 8, device=device, dtype=torch.float64)
    out = linear_attention(*tensors, denom_min=10.0, backend=backend)
    like = linear_attention(*(x.contiguous() for x in tensors), denom_min=10.0, backend='reference')
    assert relative_error(out, like) < 1e-12
    for actual, wanted in zip(
        torch.autograd.grad(out, leaves, dout), torch.autograd.grad(like, leaves, dout)
    ):
        # Absolute: some gradients are zero up to rounding.
        assert (actual - wanted).norm() < 1e-11


def test_expanded_gradient(device, backend):
    """The gradient of a sum is expanded, with strides of zero."""
    qkv = torch.randn(2, 9, 3, 2, 8, device=device, dtype=torch.float64, requires_grad=True)
    grads = [
        torch.autograd.grad(f(backend).sum(), qkv)[0]
        for backend, f in (
            ('reference', lambda x: linear_attention(*qkv.unbind(2), denom_min=20.0, backend=x)),
            (backend, lambda x: linear_attention(*qkv.unbind(2), denom_min=20.0, backend=x)),
            (backend, lambda x: linear_attention_qkvpacked(qkv, denom_min=20.0, backend=x)),
        )
    ]
    assert relative_error(grads[1], grads[0]) < 1e-12
    assert relative_error(grads[2], grads[0]) < 1e-12


# qkv packed in one tensor


@pytest.mark.parametrize(
    'view',
    [lambda x: x, channels_apart, reversed_dims],
    ids=['contiguous', 'channels_apart', 'reversed_dims'],
)
@pytest.mark.parametrize(
    'dtype, dim',
    [(torch.float64, 5), (torch.float32, 32), (torch.float16, 48), (torch.bfloat16, 64)],
    ids=str,
)
@pytest.mark.parametrize('layout', LAYOUTS)
def test_qkv(layout, dtype, dim, view, device, backend):
    parts = [random_images(SIZES[layout], 2, dim, dtype=dtype, device=device) for _ in range(4)]
    options = {'denom_min': threshold(*parts[:2]), 'backend': backend}
    scale = torch.rand(2, device=device) + 0.5
    projections = []

    def attention(q, k, v, **options):
        projections.append(view(torch.stack([q, k, v], -3)))
        projections[0].register_hook(projections.append)
        return linear_attention_qkvpacked(projections[0], **options)

    together = run(layout, *parts, scale, attention=attention, **options)
    forward, backward = tolerances(dtype)
    assert_close(together, run(layout, *parts, scale, **options), forward, backward)
    gradient = projections[1]
    assert gradient.shape == projections[0].shape
    assert backend == 'reference' or gradient.is_contiguous()  # written as one


@pytest.mark.parametrize('packed', [False, True], ids=['dense', 'packed'])
def test_memory_between_forward_and_backward(packed, device, compiled):
    """Only the projection itself and the sums, (B, H, D, Dv) and (B, H, D), are kept."""
    qkv = torch.randn(*((600,) if packed else (2, 300)), 3, 4, 8, device=device, requires_grad=True)
    cu_seqlens = torch.tensor([0, 300, 600], device=device) if packed else None
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        linear_attention_qkvpacked(qkv, cu_seqlens=cu_seqlens, backend=compiled)
    kept.pop(qkv.untyped_storage().data_ptr())
    sums = 4 * 2 * 4 * (8 * 8 + 8)
    assert sum(kept.values()) <= sums + 64  # and cu_seqlens


# Gradients


def away_from_zero(*shape, device='cpu'):
    x = torch.rand(shape, dtype=torch.float64, device=device) + 0.5
    return torch.where(torch.rand(shape, device=device) < 0.5, -x, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    'normalizer, clamped',
    [('clamp', 'some'), ('clamp', 'all'), ('clamp', 'none'), ('mean', 'none')],
)
@pytest.mark.parametrize('feature_map', ['relu', 'identity'])
@pytest.mark.parametrize('layout', [*LAYOUTS, 'qkv'])
def test_gradcheck(layout, feature_map, normalizer, clamped, device, backend):
    sizes = [(2, 2)] * 2 if layout in ('dense', 'qkv') else [(2, 2), (1, 1), (0, 3), (1, 3)]
    images = [[away_from_zero(h, w, 2, 3, device=device) for h, w in sizes] for _ in range(3)]
    if feature_map == 'identity':
        images[:2] = [[x.abs() for x in y] for y in images[:2]]
    options = {
        'feature_map': feature_map,
        'normalizer': normalizer,
        'backend': backend,
        'eps': 0.1,
        'denom_min': {'all': 1e3, 'none': 1e-3}.get(clamped) or threshold(*images[:2], feature_map),
    }
    if layout in ('packed', 'padded'):
        lengths = [h * w for h, w in sizes]
        options |= (
            {'valid_hw': torch.tensor(sizes, device=device)}
            if layout == 'padded'
            else {'cu_seqlens': torch.tensor([0, *itertools.accumulate(lengths)], device=device)}
        )
    leaves = [
        join('dense' if layout == 'qkv' else layout, x, outside=1.0).requires_grad_()
        for x in images
    ]
    scale = away_from_zero(2, device=device).requires_grad_()
    if layout == 'qkv':
        qkv = torch.stack(leaves, -3).detach().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda qkv, scale: linear_attention_qkvpacked(qkv, scale=scale, **options), (qkv, scale)
        )
    else:
        assert torch.autograd.gradcheck(
            lambda *x: linear_attention(*x[:3], scale=x[3], **options), (*leaves, scale)
        )


@pytest.mark.parametrize('wanted', ['q', 'k', 'v', 'scale', 'none'])
def test_gradient_of_one_input(wanted, device, backend):
    inputs = {name: torch.randn(2, 9, 2, 8, device=device) for name in 'qkv'}
    inputs['scale'] = torch.rand(2, device=device)
    for x in inputs.values():
        x.requires_grad_(wanted != 'none')
    out = linear_attention(**inputs, denom_min=20.0, backend=backend)
    assert out.requires_grad == (wanted != 'none')
    if wanted == 'none':
        return
    all_grads = dict(zip(inputs, torch.autograd.grad(out.square().sum(), inputs.values())))
    alone = {name: x.detach().requires_grad_(name == wanted) for name, x in inputs.items()}
    linear_attention(**alone, denom_min=20.0, backend=backend).square().sum().backward()
    torch.testing.assert_close(alone[wanted].grad, all_grads[wanted])


# Half precision


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_large_activations(dtype, device, backend):
    """67,000 tokens, as in an 800 x 1333 image, of values in the thousands: sums and products
    are far outside the range of float16, the results are not."""
    q, k = ([torch.rand(200, 335, 2, 16, device=device).mul(3000).to(dtype)] for _ in range(2))
    v, dout = (
        [torch.randn(200, 335, 2, 16, device=device).mul(size).to(dtype)] for size in (5000, 1000)
    )
    for normalizer in ('clamp', 'mean'):
        check('dense', q, k, v, dout, normalizer=normalizer, backend=backend)


def test_scale_and_factor_of_the_operator(device, compiled):
    """Both are factors of the output, and the factor is part of the gradient of scale."""
    q, k, v, scale = (
        torch.rand(shape, device=device, dtype=torch.float64, requires_grad=True)
        for shape in [(2, 9, 3, 8)] * 3 + [(3,)]
    )

    def operator(scale, factor):
        return torch.ops.l2vit_mm.linear_attention(
            q, k, v, scale, factor, None, None, None, True, False, 100.0, 1e-6
        )[0]

    out, like = operator(scale, 2.5), operator(scale * 2.5, 1.0)
    assert relative_error(out, like) < 1e-12
    for actual, wanted in zip(
        *(torch.autograd.grad(x.square().sum(), (q, k, v, scale)) for x in (out, like))
    ):
        assert relative_error(actual, wanted) < 1e-12


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_once_and_to_the_nearest(dtype, device, backend):
    """From the smallest numbers of float16 to beyond its largest."""
    q, k, v, dout = (torch.randn(9, 11, 2, 29, device=device) for _ in range(4))
    v = v * torch.logspace(0, -7, 29, device=device)
    halves = [[x.to(dtype)] for x in (q, k, v, dout)]
    scale = torch.tensor([1.0, 1e6], device=device)
    result = run('dense', *halves, scale, backend=backend)
    like = run('dense', *([x[0].float()] for x in halves), scale, backend=backend)
    for name in ('out', 'dq', 'dk', 'dv'):
        different = result[name][0] != like[name][0].to(dtype)
        # Sums in another order rarely end on the other side of a tie.
        assert different.float().mean() < 0.02, name


@pytest.mark.parametrize('scale_dtype', DTYPES, ids=str)
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_scale_of_another_type(dtype, scale_dtype, device, backend):
    """The output has the type of q, the gradient that of scale."""
    q, k, v, dout = (random_images([(5, 9)], 2, 8, dtype=dtype, device=device) for _ in range(4))
    scale = (torch.rand(2, device=device) + 0.5).to(scale_dtype)
    result = run('dense', q, k, v, dout, scale, backend=backend)
    assert result['dscale'][0].dtype == scale_dtype
    epsilon = max(torch.finfo(x).eps for x in (dtype, scale_dtype))
    assert_close(result, expected(q, k, v, dout, scale), 10 * epsilon, 100 * epsilon)


# Determinism


@pytest.mark.parametrize('layout', LAYOUTS)
def test_two_runs_are_the_same_bits(layout, device, compiled):
    sizes = [(60, 70)] * 2 if layout == 'dense' else [(60, 70), (3, 3), (100, 40)]
    images = [random_images(sizes, 3, 32, device=device) for _ in range(4)]
    scale = torch.rand(3, device=device)
    first, second = (run(layout, *images, scale, backend=compiled) for _ in range(2))
    for name in first:
        assert all(torch.equal(*x) for x in zip(first[name], second[name])), name


@needs_extension
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_the_number_of_threads_changes_no_bit(dtype):
    images = [random_images([(60, 70), (3, 3), (100, 40)], 5, 32, dtype=dtype) for _ in range(4)]
    scale = torch.rand(5)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run('packed', *images, scale, backend='compiled'))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for name in other:
            assert all(torch.equal(*x) for x in zip(results[0][name], other[name])), name
