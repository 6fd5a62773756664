import pytest
import torch

from l2vit_mm.ops import linear_attention


def naive(q, k, v, scale, denom_min):
    """The equation, a token and a head at a time."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            keys, values = k[b, :, h].relu(), v[b, :, h]
            for i, query in enumerate(q[b, :, h].relu()):
                weights = keys @ query
                out[b, i, h] = scale[h] * (weights @ values) / weights.sum().clamp(min=denom_min)
    return out


@pytest.mark.parametrize('denom_min', [0.5, 1e4])
def test_against_the_equation(denom_min):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 3, d, dtype=torch.float64) for n, d in ((5, 4), (7, 4), (7, 6)))
    scale = torch.rand(3, dtype=torch.float64)
    out = linear_attention(q, k, v, scale=scale, denom_min=denom_min)
    torch.testing.assert_close(out, naive(q, k, v, scale, denom_min))


def test_gradients():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 5, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    scale = torch.rand(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *x: linear_attention(*x[:3], scale=x[3], denom_min=1.), (q, k, v, scale))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dtype):
    # 67,000 keys, as an 800 x 1333 image has: their sum is beyond float16's range.
    torch.manual_seed(0)
    q, k, v = (torch.rand(1, 67_000, 1, 8) * 10 for _ in range(3))
    out = linear_attention(*(x.to(dtype) for x in (q, k, v)))
    with torch.autocast('cpu', torch.bfloat16):
        under_autocast = linear_attention(q, k, v)
    expected = linear_attention(*(x.double() for x in (q, k, v))).float()
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    torch.testing.assert_close(under_autocast, expected, rtol=1e-4, atol=0)
