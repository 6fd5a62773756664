"""Wrong arguments are errors of the form "NAME must be WHAT, got VALUE"."""

import re

import pytest
import torch
from op_testing import needs_extension, needs_gpu

from l2vit_mm.ops import focused_feature_map, linear_attention, linear_attention_qkvpacked


def tensor(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def meta(*shape):
    return torch.zeros(shape, device='meta')


DENSE = {'q': tensor(2, 5, 3, 4), 'k': tensor(2, 7, 3, 4), 'v': tensor(2, 7, 3, 6)}
PACKED = {
    'q': tensor(9, 3, 4),
    'k': tensor(9, 3, 4),
    'v': tensor(9, 3, 4),
    'cu_seqlens': ints(0, 5, 8),
}
PADDED = {
    'q': tensor(2, 4, 5, 3, 4),
    'k': tensor(2, 4, 5, 3, 4),
    'v': tensor(2, 4, 5, 3, 4),
    'valid_hw': ints([4, 5], [1, 2]),
}

HW = 'valid_hw must be at most 4 x 5, the size of the map, and not negative, got '
ATTENTION = [
    # changed arguments, type of error, message
    (DENSE, {'q': [1.0]}, TypeError, 'q must be a tensor, got list'),
    (DENSE, {'k': None}, TypeError, 'k must be a tensor, got NoneType'),
    (
        DENSE,
        {'q': tensor(2, 5, 3, 4, dtype=torch.int64)},
        TypeError,
        'q must be float64, float32, float16 or bfloat16, got torch.int64',
    ),
    (
        DENSE,
        {'v': tensor(2, 7, 3, 6, dtype=torch.complex64)},
        TypeError,
        'v must be float64, float32, float16 or bfloat16, got torch.complex64',
    ),
    (
        DENSE,
        {'q': tensor(2, 5, 3, 4).to_sparse()},
        TypeError,
        'q must be a strided tensor, got torch.sparse_coo',
    ),
    (
        DENSE,
        {'k': tensor(2, 7, 3, 4, dtype=torch.float64)},
        TypeError,
        'k must be torch.float32 like q, got torch.float64',
    ),
    (
        DENSE,
        {'v': tensor(2, 7, 3, 6, dtype=torch.float16)},
        TypeError,
        'v must be torch.float32 like q, got torch.float16',
    ),
    (DENSE, {'k': meta(2, 7, 3, 4)}, ValueError, 'k must be on cpu like q, got meta'),
    (DENSE, {'v': meta(2, 7, 3, 6)}, ValueError, 'v must be on cpu like q, got meta'),
    # shapes
    (
        DENSE,
        {'q': tensor(5, 3, 4)},
        ValueError,
        'q must have shape (B, N, H, D) in the dense layout, got (5, 3, 4)',
    ),
    (
        DENSE,
        {'q': tensor(2, 5, 3, 0)},
        ValueError,
        'q must have 1 or more heads of 1 or more channels, got shape (2, 5, 3, 0)',
    ),
    (
        DENSE,
        {'q': tensor(2, 5, 0, 4)},
        ValueError,
        'q must have 1 or more heads of 1 or more channels, got shape (2, 5, 0, 4)',
    ),
    (
        DENSE,
        {'k': tensor(2, 7, 3, 5)},
        ValueError,
        'k must have the heads and channels of q, (2, 5, 3, 4), got shape (2, 7, 3, 5)',
    ),
    (
        DENSE,
        {'k': tensor(2, 7, 2, 4)},
        ValueError,
        'k must have the heads and channels of q, (2, 5, 3, 4), got shape (2, 7, 2, 4)',
    ),
    (
        DENSE,
        {'k': tensor(7, 3, 4)},
        ValueError,
        'k must have the heads and channels of q, (2, 5, 3, 4), got shape (7, 3, 4)',
    ),
    (
        DENSE,
        {'k': tensor(1, 7, 3, 4)},
        ValueError,
        'k must start with (2,) like q (2, 5, 3, 4), got shape (1, 7, 3, 4)',
    ),
    (
        DENSE,
        {'v': tensor(2, 6, 3, 6)},
        ValueError,
        'v must start with (2, 7, 3) like k (2, 7, 3, 4), got shape (2, 6, 3, 6)',
    ),
    (DENSE, {'v': tensor(2, 7, 3)}, ValueError, 'v must start with (2, 7, 3) like k'),
    (
        DENSE,
        {'v': tensor(2, 7, 3, 0)},
        ValueError,
        'v must have 1 or more channels, got shape (2, 7, 3, 0)',
    ),
    (
        PACKED,
        {'q': tensor(1, 9, 3, 4)},
        ValueError,
        'q must have shape (T, H, D) in the packed (cu_seqlens) layout, got (1, 9, 3, 4)',
    ),
    (
        PACKED,
        {'v': tensor(8, 3, 4)},
        ValueError,
        'v must start with (9, 3) like k (9, 3, 4), got shape (8, 3, 4)',
    ),
    (
        PADDED,
        {'q': tensor(2, 20, 3, 4)},
        ValueError,
        'q must have shape (B, Hmax, Wmax, H, D) in the padded map (valid_hw) layout, '
        'got (2, 20, 3, 4)',
    ),
    (
        PADDED,
        {'k': tensor(2, 5, 4, 3, 4)},
        ValueError,
        'k must start with (2, 4, 5) like q (2, 4, 5, 3, 4), got shape (2, 5, 4, 3, 4)',
    ),
    # options
    (
        DENSE,
        {'feature_map': 'elu'},
        ValueError,
        "feature_map must be one of 'relu', 'identity', got 'elu'",
    ),
    (
        DENSE,
        {'normalizer': None},
        ValueError,
        "normalizer must be one of 'clamp', 'mean', got None",
    ),
    (
        DENSE,
        {'backend': 'cuda'},
        ValueError,
        "backend must be one of 'auto', 'compiled', 'reference', got 'cuda'",
    ),
    (DENSE, {'denom_min': 0}, ValueError, 'denom_min must be a finite positive number, got 0'),
    (
        DENSE,
        {'denom_min': -1.0},
        ValueError,
        'denom_min must be a finite positive number, got -1.0',
    ),
    (
        DENSE,
        {'denom_min': float('nan')},
        ValueError,
        'denom_min must be a finite positive number, got nan',
    ),
    (DENSE, {'eps': float('inf')}, ValueError, 'eps must be a finite positive number, got inf'),
    (DENSE, {'eps': '1'}, TypeError, 'eps must be a number, got str'),
    (DENSE, {'denom_min': tensor(1)}, TypeError, 'denom_min must be a number, got Tensor'),
    (DENSE, {'denom_min': True}, TypeError, 'denom_min must be a number, got bool'),
    (
        DENSE,
        {'scale': 'big'},
        TypeError,
        'scale must be a number, a tensor of one number per head, or None, got str',
    ),
    (
        DENSE,
        {'scale': True},
        TypeError,
        'scale must be a number, a tensor of one number per head, or None, got bool',
    ),
    (
        DENSE,
        {'scale': tensor(4)},
        ValueError,
        'scale must have shape (3,), one number per head, got (4,)',
    ),
    (
        DENSE,
        {'scale': tensor(3, 1, 1)},
        ValueError,
        'scale must have shape (3,), one number per head, got (3, 1, 1)',
    ),
    (
        DENSE,
        {'scale': tensor()},
        ValueError,
        'scale must have shape (3,), one number per head, got ()',
    ),
    (
        DENSE,
        {'scale': tensor(3, dtype=torch.int64)},
        TypeError,
        'scale must be float64, float32, float16 or bfloat16, got torch.int64',
    ),
    (DENSE, {'scale': meta(3)}, ValueError, 'scale must be on cpu like the input, got meta'),
    # sizes of the images
    (
        PACKED,
        {'valid_hw': ints([3, 3])},
        ValueError,
        'valid_hw must be None with cu_seqlens, got both',
    ),
    (
        DENSE,
        {'cu_seqlens_k': ints(0, 7)},
        ValueError,
        'cu_seqlens_k must be None without cu_seqlens, got a tensor',
    ),
    (PACKED, {'cu_seqlens': [0, 9]}, TypeError, 'cu_seqlens must be a tensor, got list'),
    (
        PACKED,
        {'cu_seqlens': tensor(3)},
        TypeError,
        'cu_seqlens must be int32 or int64, got torch.float32',
    ),
    (
        PACKED,
        {'cu_seqlens': ints(0, 9, dtype=torch.int16)},
        TypeError,
        'cu_seqlens must be int32 or int64, got torch.int16',
    ),
    (
        PACKED,
        {'cu_seqlens': meta(3).int()},
        ValueError,
        'cu_seqlens must be on cpu like the input, got meta',
    ),
    (PACKED, {'cu_seqlens': ints()}, ValueError, 'cu_seqlens must have shape (B + 1,), got (0,)'),
    (
        PACKED,
        {'cu_seqlens': ints([0, 9])},
        ValueError,
        'cu_seqlens must have shape (B + 1,), got (1, 2)',
    ),
    (PACKED, {'cu_seqlens': ints(1, 9)}, ValueError, 'cu_seqlens must start with 0, got 1'),
    (PACKED, {'cu_seqlens': ints(-1, 9)}, ValueError, 'cu_seqlens must start with 0, got -1'),
    (
        PACKED,
        {'cu_seqlens': ints(0, 5, 3, 9)},
        ValueError,
        'cu_seqlens must not decrease, got 3 after 5 at index 2',
    ),
    (
        PACKED,
        {'cu_seqlens': ints(0, -1, 9)},
        ValueError,
        'cu_seqlens must not decrease, got -1 after 0 at index 1',
    ),
    (
        PACKED,
        {'cu_seqlens': ints(0, 10)},
        ValueError,
        'cu_seqlens must end with at most 9, the number of tokens, got 10',
    ),
    (
        PACKED,
        {'cu_seqlens': ints(0, 2**40, dtype=torch.int64)},
        ValueError,
        'cu_seqlens must end with at most 9, the number of tokens, got 1099511627776',
    ),
    (
        PACKED,
        {'cu_seqlens_k': ints(0, 9)},
        ValueError,
        'cu_seqlens_k must have shape (3,) like cu_seqlens, got (2,)',
    ),
    (
        PACKED,
        {'cu_seqlens_k': ints(0, 5, 10)},
        ValueError,
        'cu_seqlens_k must end with at most 9, the number of tokens, got 10',
    ),
    (
        PACKED,
        {'cu_seqlens_k': ints(0, 5, 4)},
        ValueError,
        'cu_seqlens_k must not decrease, got 4 after 5',
    ),
    (
        PACKED,
        {'k': tensor(7, 3, 4), 'v': tensor(7, 3, 4)},
        ValueError,
        'cu_seqlens must end with at most 7, the number of tokens, got 8',
    ),
    (PADDED, {'valid_hw': (4, 5)}, TypeError, 'valid_hw must be a tensor, got tuple'),
    (
        PADDED,
        {'valid_hw': tensor(2, 2)},
        TypeError,
        'valid_hw must be int32 or int64, got torch.float32',
    ),
    (
        PADDED,
        {'valid_hw': meta(2, 2).int()},
        ValueError,
        'valid_hw must be on cpu like the input, got meta',
    ),
    (PADDED, {'valid_hw': ints([4, 5])}, ValueError, 'valid_hw must have shape (2, 2), got (1, 2)'),
    (PADDED, {'valid_hw': ints([4, 5], [5, 2])}, ValueError, HW + '5 x 2 for image 1'),
    (PADDED, {'valid_hw': ints([4, 6], [1, 2])}, ValueError, HW + '4 x 6 for image 0'),
    (PADDED, {'valid_hw': ints([4, -1], [1, 2])}, ValueError, HW + '4 x -1 for image 0'),
    (
        PADDED,
        {'valid_hw': ints([2**32 + 1, 2], [1, 2], dtype=torch.int64)},
        ValueError,
        HW + '4294967297 x 2 for image 0',
    ),
]


def check(function, arguments, error, message):
    with pytest.raises(error, match='^' + re.escape(message)):
        function(**arguments)


@pytest.mark.parametrize(
    'right, changes, error, message', ATTENTION, ids=[message[:50] for *_, message in ATTENTION]
)
def test_linear_attention(right, changes, error, message):
    assert linear_attention(**right).shape[:-1] == right['q'].shape[:-1]
    for backend in ('reference', 'auto'):
        check(linear_attention, {'backend': backend, **right, **changes}, error, message)


QKV = {'qkv': tensor(2, 5, 3, 2, 4)}
PACKED_QKV = {'qkv': tensor(9, 3, 2, 4), 'cu_seqlens': ints(0, 5, 9)}
PADDED_QKV = {'qkv': tensor(2, 4, 5, 3, 2, 4), 'valid_hw': ints([4, 5], [1, 2])}
PROJECTION = [
    (QKV, {'qkv': 3.0}, TypeError, 'qkv must be a tensor, got float'),
    (
        QKV,
        {'qkv': tensor(2, 5, 3, 2, 4, dtype=torch.uint8)},
        TypeError,
        'qkv must be float64, float32, float16 or bfloat16, got torch.uint8',
    ),
    (QKV, {'qkv': tensor(3, 4)}, ValueError, 'qkv must have shape (..., 3, H, D), got (3, 4)'),
    (
        QKV,
        {'qkv': tensor(2, 5, 4, 2, 4)},
        ValueError,
        'qkv must have shape (..., 3, H, D), got (2, 5, 4, 2, 4)',
    ),
    (
        QKV,
        {'qkv': tensor(5, 3, 2, 4)},
        ValueError,
        'qkv must have shape (B, N, 3, H, D) in the dense layout, got (5, 3, 2, 4)',
    ),
    (
        QKV,
        {'qkv': tensor(2, 5, 3, 0, 4)},
        ValueError,
        'qkv must have 1 or more heads of 1 or more channels, got shape (2, 5, 3, 0, 4)',
    ),
    (
        PACKED_QKV,
        {'qkv': tensor(1, 9, 3, 2, 4)},
        ValueError,
        'qkv must have shape (T, 3, H, D) in the packed',
    ),
    (
        PADDED_QKV,
        {'qkv': tensor(2, 20, 3, 2, 4)},
        ValueError,
        'qkv must have shape (B, Hmax, Wmax, 3, H, D) in the padded map',
    ),
    (QKV, {'feature_map': 1}, ValueError, "feature_map must be one of 'relu', 'identity', got 1"),
    (
        QKV,
        {'normalizer': 'sum'},
        ValueError,
        "normalizer must be one of 'clamp', 'mean', got 'sum'",
    ),
    (
        QKV,
        {'backend': None},
        ValueError,
        "backend must be one of 'auto', 'compiled', 'reference', got None",
    ),
    (QKV, {'denom_min': -1}, ValueError, 'denom_min must be a finite positive number, got -1'),
    (QKV, {'eps': None}, TypeError, 'eps must be a number, got NoneType'),
    (
        QKV,
        {'scale': tensor(3)},
        ValueError,
        'scale must have shape (2,), one number per head, got (3,)',
    ),
    (
        PACKED_QKV,
        {'cu_seqlens': ints(0, 6, 5)},
        ValueError,
        'cu_seqlens must not decrease, got 5 after 6',
    ),
    (
        PACKED_QKV,
        {'cu_seqlens': ints(0, 10)},
        ValueError,
        'cu_seqlens must end with at most 9, the number of tokens, got 10',
    ),
    (PADDED_QKV, {'valid_hw': ints([4, 5], [5, 2])}, ValueError, HW + '5 x 2 for image 1'),
    (
        PADDED_QKV,
        {'cu_seqlens': ints(0, 2)},
        ValueError,
        'valid_hw must be None with cu_seqlens, got both',
    ),
]


@pytest.mark.parametrize(
    'right, changes, error, message', PROJECTION, ids=[message[:50] for *_, message in PROJECTION]
)
def test_linear_attention_qkvpacked(right, changes, error, message):
    assert linear_attention_qkvpacked(**right).shape[-1] == 4
    for backend in ('reference', 'auto'):
        check(linear_attention_qkvpacked, {'backend': backend, **right, **changes}, error, message)


FOCUSED = {'x': tensor(2, 5, 8), 's': tensor(8), 'pos': tensor(5, 8)}
S = 's must have shape (8,), optionally with leading 1s, for x (2, 5, 8), got '
POS = 'pos must have a shape that, without leading 1s, is the end of that of x (2, 5, 8), got '
FEATURE_MAP = [
    ({'x': None}, TypeError, 'x must be a tensor, got NoneType'),
    (
        {'x': tensor(2, 5, 8, dtype=torch.int32)},
        TypeError,
        'x must be float64, float32, float16 or bfloat16, got torch.int32',
    ),
    ({'x': tensor()}, ValueError, 'x must have shape (..., C) with C at least 1, got ()'),
    ({'x': tensor(2, 0)}, ValueError, 'x must have shape (..., C) with C at least 1, got (2, 0)'),
    ({'s': 1.0}, TypeError, 's must be a tensor, got float'),
    (
        {'s': tensor(8, dtype=torch.int64)},
        TypeError,
        's must be float64, float32, float16 or bfloat16, got torch.int64',
    ),
    (
        {'s': tensor(7)},
        ValueError,
        's must have shape (8,), optionally with leading 1s, for x (2, 5, 8), got (7,)',
    ),
    ({'s': tensor(8, 1)}, ValueError, S + '(8, 1)'),
    ({'s': tensor()}, ValueError, S + '()'),
    ({'s': tensor(2, 8)}, ValueError, S + '(2, 8)'),
    ({'s': meta(8)}, ValueError, 's must be on cpu like x, got meta'),
    ({'pos': 0}, TypeError, 'pos must be a tensor, got int'),
    (
        {'pos': tensor(5, 8, dtype=torch.bool)},
        TypeError,
        'pos must be float64, float32, float16 or bfloat16, got torch.bool',
    ),
    ({'pos': tensor(4, 8)}, ValueError, POS + '(4, 8)'),
    ({'pos': tensor(2, 1, 8)}, ValueError, POS + '(2, 1, 8)'),
    ({'pos': tensor(5, 1)}, ValueError, POS + '(5, 1)'),
    ({'pos': tensor(3, 2, 5, 8)}, ValueError, POS + '(3, 2, 5, 8)'),
    ({'pos': tensor()}, ValueError, POS + '()'),
    ({'pos': meta(5, 8)}, ValueError, 'pos must be on cpu like x, got meta'),
    ({'power': 0}, ValueError, 'power must be a finite positive number, got 0'),
    ({'power': float('inf')}, ValueError, 'power must be a finite positive number, got inf'),
    ({'power': '3'}, TypeError, 'power must be a number, got str'),
    (
        {'backend': 'fast'},
        ValueError,
        "backend must be one of 'auto', 'compiled', 'reference', got 'fast'",
    ),
]


@pytest.mark.parametrize(
    'changes, error, message', FEATURE_MAP, ids=[message[:50] for *_, message in FEATURE_MAP]
)
def test_focused_feature_map(changes, error, message):
    assert focused_feature_map(**FOCUSED).shape == (2, 5, 8)
    for backend in ('reference', 'auto'):
        check(focused_feature_map, {'backend': backend, **FOCUSED, **changes}, error, message)


@pytest.mark.parametrize('dim, value_dim', [(257, 4), (4, 300)])
def test_heads_too_large_for_the_kernels(dim, value_dim, device, compiled):
    q, v = torch.zeros(1, 5, 2, dim, device=device), torch.zeros(1, 5, 2, value_dim, device=device)
    check(
        linear_attention,
        {'q': q, 'k': q, 'v': v, 'backend': compiled},
        ValueError,
        f"D and Dv must be at most 256, except with backend='reference', got {max(dim, value_dim)}",
    )
    if dim > 256:
        check(
            linear_attention_qkvpacked,
            {'qkv': torch.stack([q] * 3, -3), 'backend': compiled},
            ValueError,
            'D and Dv must be at most 256',
        )


def test_checks_under_autocast():
    with torch.autocast('cpu'):
        check(
            linear_attention,
            {**DENSE, 'k': meta(2, 7, 3, 4)},
            ValueError,
            'k must be on cpu like q, got meta',
        )
        check(
            linear_attention,
            {**DENSE, 'k': tensor(2, 7, 3, 5)},
            ValueError,
            'k must have the heads and channels of q',
        )


def test_meta_tensors(backend):
    """Shapes without values."""
    q, k, v = meta(2, 5, 3, 4), meta(2, 7, 3, 4), meta(2, 7, 3, 6)
    out = linear_attention(q, k, v, backend=backend)
    assert out.is_meta and out.shape == (2, 5, 3, 6)
    assert focused_feature_map(q, meta(4), backend=backend).shape == q.shape


@needs_gpu
def test_values_on_a_gpu_are_checked():
    for name, right, wrong, message in (
        ('cu_seqlens', PACKED_QKV, ints(0, 6, 5), 'cu_seqlens must not decrease'),
        ('valid_hw', PADDED_QKV, ints([4, 5], [5, 2]), HW + '5 x 2 for image 1'),
    ):
        check(
            linear_attention_qkvpacked,
            {'qkv': right['qkv'].cuda(), name: wrong.cuda()},
            ValueError,
            message,
        )
    check(
        linear_attention,
        {**{name: x.cuda() for name, x in DENSE.items()}, 'k': DENSE['k']},
        ValueError,
        'k must be on cuda:0 like q, got cpu',
    )


@needs_gpu
def test_sizes_made_in_inference_mode():
    """They have no version, so their values cannot be cached from call to call."""
    with torch.inference_mode():
        for name, right in (('cu_seqlens', PACKED_QKV), ('valid_hw', PADDED_QKV)):
            right = {key: x.cuda() for key, x in right.items()}
            right[name] = right[name].clone()
            assert linear_attention_qkvpacked(**right).is_cuda


# The operators themselves: no call of them touches foreign memory.

OPTIONS = (True, False, 100.0, 1e-6)


def operator(
    q=tensor(9, 2, 4), k=None, v=None, scale=None, cu_seqlens=None, cu_seqlens_k=None, valid_hw=None
):
    k, v = q if k is None else k, q if v is None else v
    return torch.ops.l2vit_mm.linear_attention(
        q, k, v, scale, 1.0, cu_seqlens, cu_seqlens_k, valid_hw, *OPTIONS
    )


MAP = tensor(2, 4, 5, 2, 4)
OPERATOR = [
    ({'cu_seqlens': ints(0, 5, 3)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, 5, 10)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(-3, 5)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, 2**31 - 1, 9)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, -(2**31), 9)}, 'cu_seqlens'),
    ({'cu_seqlens': ints()}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, 9, dtype=torch.int64)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, 9), 'cu_seqlens_k': ints(0, 4, 9)}, 'images'),
    ({'cu_seqlens': ints(0, 9), 'cu_seqlens_k': ints(0, 10)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, 9), 'k': tensor(8, 2, 4), 'v': tensor(8, 2, 4)}, 'cu_seqlens'),
    ({'q': MAP, 'valid_hw': ints([4, 5], [5, 5])}, 'valid_hw'),
    ({'q': MAP, 'valid_hw': ints([4, 5], [4, 6])}, 'valid_hw'),
    ({'q': MAP, 'valid_hw': ints([-1, 5], [4, 5])}, 'valid_hw'),
    ({'q': MAP, 'valid_hw': ints([4, 5])}, 'valid_hw'),
    ({'q': MAP, 'valid_hw': ints(4, 5)}, 'valid_hw'),
    (
        {
            'q': MAP,
            'k': tensor(2, 4, 4, 2, 4),
            'v': tensor(2, 4, 4, 2, 4),
            'valid_hw': ints([4, 5], [4, 5]),
        },
        'shapes',
    ),
    ({'q': MAP, 'cu_seqlens': ints(0, 2)}, 'cu_seqlens'),
    ({'q': tensor(1, 9, 2, 4), 'valid_hw': ints([1, 9])}, 'valid_hw'),
    ({}, 'dense'),
    ({'q': MAP}, 'dense'),
    ({'q': tensor(4)}, 'dimensions'),
    ({'q': tensor()}, 'dimensions'),
    ({'q': tensor(2, 5, 2, 4), 'k': tensor(2, 5, 2, 3)}, 'shapes'),
    ({'q': tensor(2, 5, 2, 4), 'v': tensor(2, 4, 2, 4)}, 'shapes'),
    ({'q': tensor(2, 5, 2, 4), 'k': tensor(1, 5, 2, 4), 'v': tensor(1, 5, 2, 4)}, 'images'),
    ({'q': tensor(2, 5, 2, 4), 'v': tensor(2, 5, 2, 4, dtype=torch.float64)}, 'type'),
    ({'q': tensor(2, 5, 2, 4, dtype=torch.int32)}, 'floating'),
    ({'q': tensor(2, 5, 2, 300)}, 'channels'),
    ({'q': tensor(2, 5, 2, 0)}, 'channels'),
    ({'q': tensor(2, 5, 2, 4), 'v': tensor(2, 5, 2, 0)}, 'channels'),
    ({'q': tensor(2, 5, 0, 4)}, 'heads'),
    ({'q': tensor(2, 5, 2, 4), 'scale': tensor(3)}, 'scale'),
]


@needs_extension
@pytest.mark.parametrize('arguments, message', OPERATOR)
def test_operator(arguments, message):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        operator(**arguments)


@needs_extension
def test_operators_of_the_projection_and_backward():
    ops = torch.ops.l2vit_mm
    for qkv, cu_seqlens, valid_hw in (
        (tensor(9, 3, 2, 4), ints(0, 5, 10), None),
        (tensor(9, 2, 2, 4), ints(0, 9), None),
        (tensor(2, 4, 5, 3, 2, 4), None, ints([4, 5], [4, 6])),
        (tensor(3, 4), None, None),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            ops.linear_attention_qkvpacked(qkv, None, 1.0, cu_seqlens, valid_hw, *OPTIONS)

    q = tensor(2, 5, 2, 4)
    out, state, key_sum = operator(q)
    for wrong in (
        (out[:, :4], state, key_sum),
        (out.double(), state, key_sum),
        (out, state[:1], key_sum),
        (out, state, key_sum[..., :2]),
        (out, state.double(), key_sum),
        (out, state.mT, key_sum),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            dout, *sums = wrong
            ops.linear_attention_backward(
                dout, q, q, q, None, 1.0, *sums, None, None, None, *OPTIONS
            )
    packed = tensor(9, 2, 4)
    out, *sums = operator(packed, cu_seqlens=ints(0, 4, 9))
    for cu_seqlens in (ints(0, 4, 10), ints(0, 9, 4), ints(0, 9), ints(0, 1, 2, 3)):
        with pytest.raises((ValueError, RuntimeError)):
            ops.linear_attention_backward(
                out, packed, packed, packed, None, 1.0, *sums, cu_seqlens, None, None, *OPTIONS
            )


@needs_extension
def test_operators_of_the_focused_map():
    ops = torch.ops.l2vit_mm
    x, s, pos = tensor(2, 5, 8), tensor(8), tensor(5, 8)
    for wrong in (
        (tensor(), s, pos),
        (tensor(2, 0), tensor(0), None),
        (x, tensor(7), pos),
        (x, s, tensor(8)),
        (x, s, tensor(4, 8)),
        (x, s, tensor(0, 8)),
        (x, s, tensor(5, 7)),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            ops.focused_feature_map(*wrong, 3.0)
    for dout in (tensor(2, 4, 8), tensor(2, 5, 8, dtype=torch.float64)):
        with pytest.raises((ValueError, RuntimeError)):
            ops.focused_feature_map_backward(dout, x, s, pos, 3.0)
