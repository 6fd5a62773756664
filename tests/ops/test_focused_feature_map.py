"""FLatten's feature map: both backends against the equation in float64."""

import math

import pytest
import torch
from op_testing import DTYPES, needs_extension, relative_error, tolerances

from l2vit_mm.ops import focused_feature_map


def equation(x, s, power, pos=None):
    """In float64, whose range holds all powers of the inputs of these tests."""
    x = x.double() if pos is None else (x.double() + pos.double()).view(x.shape)
    u = (x.relu() + 1e-6) / torch.log1p(s.double().exp())
    return u**power * u.norm(dim=-1, keepdim=True) / (u**power).norm(dim=-1, keepdim=True)


def check(x, s, power, pos=None, *, backend):
    """Values and gradients."""
    leaves = [y.detach().clone().requires_grad_() for y in (x, s, *([] if pos is None else [pos]))]
    out = focused_feature_map(*leaves[:2], power, *leaves[2:], backend=backend)
    wide = [y.detach().double().requires_grad_() for y in leaves]
    like = equation(*wide[:2], power, *wide[2:])
    assert out.dtype == x.dtype and out.shape == x.shape and out.is_contiguous()
    forward, backward = tolerances(x.dtype)
    assert relative_error(out, like) <= forward
    dout = torch.randn_like(x)
    for name, leaf, actual, wanted in zip(
        ('dx', 'ds', 'dpos'),
        leaves,
        torch.autograd.grad(out, leaves, dout),
        torch.autograd.grad(like, wide, dout.double()),
    ):
        assert actual.dtype == leaf.dtype and actual.shape == leaf.shape
        # The type of s may be less precise. The gradient of pos is a sum of rounded ones, which
        # may cancel.
        tolerance = max(backward, tolerances(leaf.dtype)[1]) * (10 if name == 'dpos' else 1)
        assert relative_error(actual, wanted) <= tolerance, (name, relative_error(actual, wanted))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('channels', [1, 2, 7, 16, 33, 96, 192, 384, 768, 1024])
def test_channels(channels, dtype, device, backend):
    x = torch.randn(3, 50, channels, device=device).to(dtype)
    s = torch.randn(channels, device=device).to(torch.promote_types(dtype, torch.float32))
    check(x, s, 3, backend=backend)


@pytest.mark.parametrize('power', [1, 2, 2.5, 3, 4, 0.5, 8.0])
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_powers(power, dtype, device, backend):
    x = torch.randn(2, 70, 24, device=device).to(dtype)
    if power < 1:
        x = x.abs() + 0.1  # steep at zero
    s = torch.randn(24, device=device).to(torch.promote_types(dtype, torch.float32))
    check(x, s, power, backend=backend)


@pytest.mark.parametrize(
    'shape, pos_shape',
    [
        ((3, 20, 8), (20, 8)),
        ((3, 20, 8), (1, 20, 8)),
        ((3, 20, 8), (8,)),
        ((3, 20, 8), (1, 1, 8)),
        ((3, 20, 8), (3, 20, 8)),
        ((2, 4, 5, 8), (4, 5, 8)),
        ((2, 4, 5, 8), (1, 1, 5, 8)),
        ((20, 8), (20, 8)),
        ((8,), (8,)),
        ((8,), (1, 8)),
        ((600, 3, 8), (3, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float16], ids=str)
def test_positions(shape, pos_shape, dtype, device, backend):
    x, pos = (torch.randn(y, device=device).to(dtype) for y in (shape, pos_shape))
    s = torch.randn(8, device=device).to(torch.promote_types(dtype, torch.float32))
    check(x, s, 3, pos, backend=backend)


@pytest.mark.parametrize('s_shape', [(8,), (1, 8), (1, 1, 8)], ids=str)
@pytest.mark.parametrize('s_dtype', DTYPES, ids=str)
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_types_and_shapes_of_s(dtype, s_dtype, s_shape, device, backend):
    """As published, (1, 1, C), and of another type than x, like pos."""
    x = torch.randn(2, 20, 8, device=device).to(dtype)
    s, pos = (torch.randn(shape, device=device).to(s_dtype) for shape in (s_shape, (20, 8)))
    check(x, s, 3, pos, backend=backend)


@pytest.mark.parametrize(
    'view',
    [
        lambda x: x[..., ::2],
        lambda x: x[..., :8],
        lambda x: x[..., 1:9],
        lambda x: x[:, ::2, :8],
        lambda x: x[..., :1].expand(-1, -1, 8),
        lambda x: x[:1].expand(3, -1, -1),
        lambda x: x.transpose(0, 1),
        lambda x: x.mT,
        lambda x: x.permute(2, 1, 0),
    ],
    ids=[
        'channels apart',
        'rows apart',
        'unaligned',
        'tokens apart',
        'one channel',
        'one image',
        'images inside',
        'channels outside',
        'reversed',
    ],
)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float16], ids=str)
def test_views(view, dtype, device, backend):
    x = view(torch.randn(3, 20, 16, device=device).to(dtype)).detach().requires_grad_()
    s = torch.randn(x.shape[-1], device=device).to(torch.promote_types(dtype, torch.float32))
    dout = view(torch.randn(3, 20, 16, device=device).to(dtype))
    out = focused_feature_map(x, s, backend=backend)
    like = focused_feature_map(x.contiguous(), s, backend='reference')
    tolerance = tolerances(dtype)[1]
    assert out.is_contiguous()
    assert relative_error(out, like) <= tolerance
    assert relative_error(*(torch.autograd.grad(y, x, dout)[0] for y in (out, like))) <= tolerance


@pytest.mark.parametrize('power', [1, 2.5, 3])
@pytest.mark.parametrize('with_pos', [False, True], ids=['no pos', 'pos'])
def test_gradcheck(power, with_pos, device, backend):
    x = torch.rand(2, 3, 4, dtype=torch.float64, device=device) + 0.5
    x = torch.where(torch.rand_like(x) < 0.3, -x, x).requires_grad_()
    s = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
    pos = (torch.rand(3, 4, dtype=torch.float64, device=device) * 0.4 - 0.2).requires_grad_()
    leaves = (x, s, pos) if with_pos else (x, s)
    assert torch.autograd.gradcheck(
        lambda x, s, *pos: focused_feature_map(x, s, power, *pos, backend=backend), leaves
    )


# The range of numbers


@pytest.mark.parametrize(
    'dtype, largest', [(torch.float16, 6e4), (torch.bfloat16, 1e30), (torch.float32, 1e30)], ids=str
)
@pytest.mark.parametrize('power', [2.5, 3, 4])
def test_large_activations(dtype, largest, power, device, backend):
    """Their powers exceed the range even of float32; the results do not."""
    x = (torch.randn(5, 40, 32, device=device) * (largest / 100)).to(dtype)
    x.view(-1)[::97] = largest
    s = torch.randn(32, device=device).abs() + 1  # divides by more than 1
    x.requires_grad_(), s.requires_grad_()
    out, like = focused_feature_map(x, s, power, backend=backend), equation(x, s, power)
    dout = torch.randn_like(x)
    forward, backward = tolerances(dtype)
    # Scaled, so that float64 can square them for the norms.
    assert relative_error(out.double() / largest, like / largest) <= forward
    dx, ds = torch.autograd.grad(out, (x, s), dout)
    wanted_dx, wanted_ds = torch.autograd.grad(like, (x, s), dout.double())
    assert relative_error(dx, wanted_dx) <= 2 * backward
    assert relative_error(ds.double() / largest, wanted_ds / largest) <= backward


@pytest.mark.parametrize(
    'dtype, value',
    [
        *((dtype, value) for dtype in DTYPES for value in (-10.0, 10.0, 50.0)),
        (torch.float64, -30.0),
        (torch.float32, -30.0),
        (torch.bfloat16, -30.0),
    ],
    ids=str,
)
def test_extreme_s(dtype, value, device, backend):
    """softplus(-10) is 4.5e-5, softplus(-30) 9e-14: small divisors."""
    s = torch.full((32,), value, device=device, dtype=torch.promote_types(dtype, torch.float32))
    s[::5] = value / 2
    size = math.log1p(math.exp(value))
    x, dout = ((torch.randn(2, 40, 32, device=device) * size).to(dtype) for _ in range(2))
    x.requires_grad_(), s.requires_grad_()
    out, like = focused_feature_map(x, s, backend=backend), equation(x, s, 3)
    # torch approximates softplus(s) by s over 20.
    forward, backward = (max(tolerance, 1e-9) for tolerance in tolerances(dtype))
    assert relative_error(out, like) <= forward
    for actual, wanted in zip(
        torch.autograd.grad(out, (x, s), dout), torch.autograd.grad(like, (x, s), dout.double())
    ):
        assert relative_error(actual, wanted) <= backward


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('size', [0.0, 1e-8, 1e-6, 1e-3])
def test_small_activations(dtype, size, device, backend):
    """The 1e-6 keeps norms above zero, and nothing is lost before it is added."""
    x = (torch.randn(2, 40, 32, device=device) * size).to(dtype)
    s = torch.randn(32, device=device, dtype=torch.float64 if dtype == torch.float64 else None)
    wanted = equation(x, s, 3)
    out = focused_feature_map(x, s, backend=backend)
    # float16 has no numbers below 6e-8.
    error = (out.double() - wanted).norm() / wanted.norm()
    assert error <= (0.1 if dtype == torch.float16 and size < 1e-4 else tolerances(dtype)[0])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_once_and_to_the_nearest(dtype, device, backend):
    x, dout = (torch.randn(200, 29, device=device).to(dtype) for _ in range(2))
    s, pos = torch.randn(29, device=device), torch.randn(29, device=device)

    def run(x, dout):
        x.requires_grad_()
        out = focused_feature_map(x, s, 3, pos, backend=backend)
        return out, *torch.autograd.grad(out, x, dout)

    for half, like in zip(run(x, dout), run(x.float(), dout.float())):
        assert (half != like.to(dtype)).float().mean() < 0.02


def test_all_negative_tokens_have_no_gradient(device, backend):
    x = -torch.rand(7, 16, device=device) - 0.1
    x[3] *= -1
    x.requires_grad_()
    focused_feature_map(x, torch.zeros(16, device=device), backend=backend).sum().backward()
    assert x.grad[3].any()
    assert not x.grad[[0, 1, 2, 4, 5, 6]].any()


def test_length_is_kept(device, backend):
    """||f|| = ||u||, and the largest channel stays the largest: what the map is for."""
    x, s = torch.rand(50, 16, device=device), torch.randn(16, device=device)
    u = focused_feature_map(x, s, 1, backend=backend)
    f = focused_feature_map(x, s, 3, backend=backend)
    torch.testing.assert_close(f.norm(dim=-1), u.norm(dim=-1))
    assert torch.equal(f.argmax(-1), u.argmax(-1))


@pytest.mark.parametrize('where', [5, slice(None)], ids=['a channel', 'all'])
@pytest.mark.parametrize('channels', [16, 20])
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_not_finite_stays_in_its_token(value, channels, where, device, backend):
    x = torch.randn(300, channels, device=device, requires_grad=True)
    s = torch.zeros(channels, device=device)
    others = torch.arange(300, device=device) != 150

    def run(x):
        out = focused_feature_map(x, s, backend=backend)
        return out, torch.autograd.grad(out, x, torch.ones_like(out))[0]

    before, changed = run(x), x.detach().clone()
    changed[150, where] = value
    after = run(changed.requires_grad_())
    for a, b in zip(before, after):
        assert torch.equal(a[others], b[others])
        assert not b[150].isfinite().all()


@pytest.mark.parametrize(
    'shape, pos_shape',
    [((0, 8), None), ((2, 0, 8), (0, 8)), ((0, 5, 8), (5, 8)), ((0, 5, 8), (1, 8))],
    ids=str,
)
def test_no_tokens(shape, pos_shape, device, backend):
    x = torch.randn(shape, device=device, requires_grad=True)
    s = torch.randn(8, device=device, requires_grad=True)
    pos = pos_shape and torch.randn(pos_shape, device=device, requires_grad=True)
    out = focused_feature_map(x, s, 3, pos, backend=backend)
    assert out.shape == shape
    for leaf, gradient in zip(
        (x, s, pos), torch.autograd.grad(out.sum(), (x, s) if pos is None else (x, s, pos))
    ):
        assert gradient.shape == leaf.shape and not gradient.any()


def test_many_tokens(device, backend):
    """The gradients of s and pos are sums over all of them."""
    x, pos = torch.randn(4, 17_000, 12, device=device), torch.randn(17_000, 12, device=device)
    check(x, torch.randn(12, device=device), 3, pos, backend=backend)


def test_expanded_gradient(device, backend):
    x, s = torch.randn(30, 8, device=device, requires_grad=True), torch.randn(8, device=device)
    grads = [
        torch.autograd.grad(focused_feature_map(x, s, backend=b).sum(), x)[0]
        for b in (backend, 'reference')
    ]
    assert relative_error(*grads) < 1e-4


def test_two_runs_are_the_same_bits(device, compiled):
    x = torch.randn(3000, 48, device=device, requires_grad=True)
    s = torch.randn(48, device=device, requires_grad=True)

    def run():
        out = focused_feature_map(x, s, backend=compiled)
        return out, *torch.autograd.grad(out, (x, s), torch.ones_like(out))

    assert all(torch.equal(*pair) for pair in zip(run(), run()))


@needs_extension
def test_the_number_of_threads_changes_no_bit():
    x = torch.randn(9000, 48, requires_grad=True)
    s = torch.randn(48, requires_grad=True)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            out = focused_feature_map(x, s, backend='compiled')
            results.append((out, *torch.autograd.grad(out, (x, s), torch.ones_like(out))))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], other))
