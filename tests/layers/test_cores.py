"""Each attention against its formula, written out for one head and one image in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from l2vit_mm.layers import ATTENTIONS, DenseLayout, build_attention

BATCH, HEADS, DIM = 2, 3, 4
CHANNELS = HEADS * DIM
SIZE = (3, 5)


def focused(x, s, power=3):
    u = (x.clamp(min=0) + 1e-6) / torch.log1p(s.exp())
    return u**power * u.norm(dim=-1, keepdim=True) / (u**power).norm(dim=-1, keepdim=True)


def normalised(weights, v):
    return weights @ v / (weights.sum(1, keepdim=True) + 1e-6 * weights.shape[1])


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


# (N, D) queries, (M, D) keys, (M, D) values of one head to (N, D).
FORMULAS = {
    'focused': lambda q, k, v: normalised(q @ k.T, v),  # mapped before heads are split
    'softmax': lambda q, k, v: (q @ k.T / math.sqrt(DIM)).softmax(1) @ v,
    'relu': lambda q, k, v: normalised(q.relu() @ k.relu().T, v),
    'enhanced': lambda q, k, v: normalised(q.relu() @ k.relu().T, v),
    'elu': lambda q, k, v: normalised((F.elu(q) + 1) @ (F.elu(k) + 1).T, v),
    'angular': lambda q, k, v: normalised(0.5 + unit(q) @ unit(k).T / math.pi, v),
    'efficient': lambda q, k, v: q.softmax(1) @ (k.softmax(0).T @ v),
}
WITH_CONVOLUTION = ('focused', 'angular', 'enhanced')


def local(core, v, size):
    """The depthwise convolution of one head's values (N, D), as a map of a size."""
    v = v.T.reshape(1, DIM, *size)
    out = F.conv2d(v, core.dwc.weight, core.dwc.bias, padding=2, groups=DIM)
    return out.reshape(DIM, -1).T


def expected(core, attention, q, k, v, size, stretch=None):
    if attention == 'hydra':  # as many heads as channels: q_i k_j v_j, a channel at a time
        return unit(q) * (unit(k) * v).sum(0)
    if attention == 'focused':
        position = core.position.table.flatten(0, 1)
        q, k = focused(q, core.scale), focused(k + position, core.scale)
    outs = []
    for head in range(HEADS):
        part = slice(head * DIM, (head + 1) * DIM)
        out = FORMULAS[attention](q[:, part], k[:, part], v[:, part])
        if attention in WITH_CONVOLUTION:
            values = v[:, part] if stretch is None else stretch @ v[:, part]
            out = out + local(core, values, size)
        outs.append(out)
    return torch.cat(outs, 1)


def random_core(attention, key_size=SIZE):
    core = build_attention(attention, CHANNELS, HEADS, key_size).double()
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return core


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_against_the_formula(attention):
    core = random_core(attention)
    layout = DenseLayout(BATCH, *SIZE)
    q, k, v = torch.randn(3, BATCH, *SIZE, CHANNELS, dtype=torch.float64)
    out = core(q, k, v, layout, layout)
    assert out.shape == q.shape
    for image in range(BATCH):
        tokens = (x[image].flatten(0, 1) for x in (q, k, v))
        torch.testing.assert_close(
            out[image].flatten(0, 1), expected(core, attention, *tokens, SIZE)
        )


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_keys_of_a_smaller_map(attention):
    key_size = (2, 3)
    core = random_core(attention, key_size)
    layout, key_layout = DenseLayout(BATCH, *SIZE), DenseLayout(BATCH, *key_size)
    q = torch.randn(BATCH, *SIZE, CHANNELS, dtype=torch.float64)
    k, v = torch.randn(2, BATCH, *key_size, CHANNELS, dtype=torch.float64)
    # Linear interpolation of 6 values to 15 along the sequence, half-pixel.
    stretch = torch.zeros(15, 6, dtype=torch.float64)
    for i in range(15):
        place = min(max((i + 0.5) * 6 / 15 - 0.5, 0), 5)
        left = min(int(place), 4)
        stretch[i, left], stretch[i, left + 1] = 1 - (place - left), place - left
    out = core(q, k, v, layout, key_layout)
    for image in range(BATCH):
        tokens = (x[image].flatten(0, 1) for x in (q, k, v))
        torch.testing.assert_close(
            out[image].flatten(0, 1), expected(core, attention, *tokens, SIZE, stretch)
        )


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_strided_queries_keys_and_values(attention):
    core = random_core(attention)
    layout = DenseLayout(BATCH, *SIZE)
    qkv = torch.randn(BATCH, *SIZE, 3 * CHANNELS, dtype=torch.float64)
    views = qkv.chunk(3, -1)
    copies = [view.contiguous() for view in views]
    torch.testing.assert_close(core(*views, layout, layout), core(*copies, layout, layout))


@pytest.mark.parametrize(
    'attention', [name for name in ATTENTIONS if name not in ('hydra', 'softmax')]
)
def test_half_precision_over_many_tokens(attention):
    """Sums over 30,000 keys of magnitude 50 fit into float16's 65504 only when divided first."""
    core = build_attention(attention, 32, 1, (8, 8))
    layout = DenseLayout(1, 150, 200)
    torch.manual_seed(0)
    q, k, v = 50 * torch.randn(3, 1, layout.height, layout.width, 32)
    wide = core(q, k, v, layout, layout)
    half = core.half()(q.half(), k.half(), v.half(), layout, layout)
    assert half.dtype == torch.float16 and half.isfinite().all()
    assert (half.float() - wide).norm() / wide.norm() < 0.01


def test_focusing_factor():
    core = build_attention('focused', CHANNELS, HEADS, SIZE, focusing_factor=2).double()
    layout = DenseLayout(1, *SIZE)
    q, k, v = torch.randn(3, 1, *SIZE, CHANNELS, dtype=torch.float64)
    out = core(q, k, v, layout, layout) - core.dwc(v, layout, layout)
    maps = [focused(x.flatten(1, 2)[0], core.scale, 2) for x in (q, k)]
    first = normalised(maps[0][:, :DIM] @ maps[1][:, :DIM].T, v.flatten(1, 2)[0, :, :DIM])
    torch.testing.assert_close(out.flatten(1, 2)[0, :, :DIM], first)


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(attention='cosine'), "attention must be one of focused, hydra.*, got 'cosine'"),
        (dict(kernel_size=0), 'kernel_size must be a positive odd integer, got 0'),
        (dict(kernel_size=2.5), 'kernel_size must be .*, got 2.5'),
        (dict(focusing_factor=-1), 'focusing_factor must be a positive number, got -1'),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build_attention(
            **{'attention': 'focused', 'channels': 4, 'num_heads': 1, 'key_size': (2, 2), **kwargs}
        )
