"""The results of an image are the same in every layout, whatever else is in the batch."""

import pytest
import torch
from op_testing import LAYOUTS, random_images, relative_error, run

from l2vit_mm.ops import focused_feature_map, linear_attention

pytest.importorskip('hypothesis')
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SIZES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=5)
OPTIONS = st.fixed_dictionaries(
    {
        'feature_map': st.sampled_from(['relu', 'identity']),
        'normalizer': st.sampled_from(['clamp', 'mean']),
        'denom_min': st.sampled_from([1e-2, 30.0, 100.0]),
        'eps': st.just(0.1),
    }
)


def check(images, scale, layouts, compare, **options):
    together = [run(layout, *images, scale, **options) for layout in layouts]
    alone = [run('dense', *([x] for x in image), scale, **options) for image in zip(*images)]
    for result in together:
        for name in ('out', 'dq', 'dk', 'dv'):
            for actual, single in zip(result[name], alone):
                compare(actual, single[name][0])
        # The sum over the images: in another order, and small if they cancel.
        dscale = torch.stack([x['dscale'][0] for x in alone])
        error = (result['dscale'][0] - dscale.sum(0)).abs()
        assert (error <= 1e-4 * dscale.abs().sum(0) + 1e-5).all()


def same_bits(actual, wanted):
    assert torch.equal(actual, wanted)


def close(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)


def phi_inputs(sizes, heads, dim, value_dim, options, **like):
    q, k, v, dout = (
        random_images(sizes, heads, size, **like) for size in (dim, dim, value_dim, value_dim)
    )
    if options['feature_map'] == 'identity':
        q, k = [x.abs() for x in q], [x.abs() for x in k]
    return q, k, v, dout


@settings(max_examples=50, deadline=None)
@given(
    sizes=SIZES,
    heads=st.integers(1, 5),
    dim=st.integers(1, 40),
    value_dim=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    options=OPTIONS,
    seed=st.integers(0, 2**16),
)
def test_compiled_results_are_the_same_bits(
    device, compiled, sizes, heads, dim, value_dim, dtype, options, seed
):
    torch.manual_seed(seed)
    images = phi_inputs(sizes, heads, dim, value_dim, options, dtype=dtype, device=device)
    check(
        images,
        torch.rand(heads, device=device),
        ('packed', 'padded'),
        same_bits,
        backend=compiled,
        **options,
    )


@settings(max_examples=30, deadline=None)
@given(
    sizes=SIZES,
    heads=st.integers(1, 5),
    dim=st.integers(1, 40),
    options=OPTIONS,
    seed=st.integers(0, 2**16),
)
def test_reference_results_are_close(device, sizes, heads, dim, options, seed):
    torch.manual_seed(seed)
    images = phi_inputs(sizes, heads, dim, dim, options, dtype=torch.float64, device=device)
    check(
        images,
        torch.rand(heads, device=device, dtype=torch.float64),
        ('packed', 'padded'),
        close,
        backend='reference',
        **options,
    )


def test_long_images_are_the_same_bits(device, compiled):
    """Images that are processed in several parts."""
    sizes = [(90, 50), (1, 3), (10, 3), (40, 100), (64, 64)]
    images = [random_images(sizes, 3, 32, device=device) for _ in range(4)]
    check(images, torch.rand(3, device=device), ('packed', 'padded'), same_bits, backend=compiled)


def test_dense_batch_is_the_same_bits(device, compiled):
    images = [random_images([(50, 61)] * 3, 3, 32, device=device) for _ in range(4)]
    check(images, torch.rand(3, device=device), LAYOUTS, same_bits, backend=compiled)


def test_the_order_of_the_images_does_not_matter(device, compiled):
    sizes = [(9, 50), (0, 4), (70, 31), (1, 1)]
    images = [random_images(sizes, 2, 24, device=device) for _ in range(4)]
    result = run('packed', *images, backend=compiled)
    backwards = run('packed', *(x[::-1] for x in images), backend=compiled)
    for name in result:
        for x, y in zip(result[name], backwards[name][::-1]):
            same_bits(x, y)


@pytest.mark.parametrize('integer', [torch.int32, torch.int64], ids=str)
def test_sizes_of_either_integer_type(integer, device, backend):
    sizes = [(2, 3), (4, 1)]
    images = [random_images(sizes, 2, 8, device=device) for _ in range(4)]

    def attention(*args, **options):
        for name in ('cu_seqlens', 'valid_hw'):
            if name in options:
                options[name] = options[name].to(integer)
        return linear_attention(*args, **options)

    like = run('dense', *([x[0]] for x in images), backend=backend)
    for layout in ('packed', 'padded'):
        result = run(layout, *images, attention=attention, backend=backend)
        assert relative_error(result['out'][0], like['out'][0]) < 1e-6


def test_focused_feature_map_of_one_token(device, compiled):
    """The result of a token depends on nothing else."""
    x, s = torch.randn(500, 70, device=device), torch.randn(70, device=device)
    together = focused_feature_map(x, s, backend=compiled)
    for i in (0, 255, 256, 499):
        same_bits(focused_feature_map(x[i], s, backend=compiled), together[i])
