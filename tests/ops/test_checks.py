"""Wrong arguments are errors that name the argument, its value and what is accepted."""
import re

import pytest
import torch
from op_testing import needs_extension, needs_gpu

from l2vit_mm.ops import focused_feature_map, linear_attention, linear_attention_qkv


def tensor(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def meta(*shape):
    return torch.zeros(shape, device='meta')


DENSE = {'q': tensor(2, 5, 3, 4), 'k': tensor(2, 7, 3, 4), 'v': tensor(2, 7, 3, 6)}
PACKED = {'q': tensor(9, 3, 4), 'k': tensor(9, 3, 4), 'v': tensor(9, 3, 4),
          'cu_seqlens': ints(0, 5, 8)}
PADDED = {'q': tensor(2, 4, 5, 3, 4), 'k': tensor(2, 4, 5, 3, 4), 'v': tensor(2, 4, 5, 3, 4),
          'valid_hw': ints([4, 5], [1, 2])}

ATTENTION = [
    # changed arguments, kind of error, what it says
    (DENSE, {'q': [1.]}, TypeError, 'q is a list; accepted is a tensor'),
    (DENSE, {'k': None}, TypeError, 'k is a NoneType; accepted is a tensor'),
    (DENSE, {'q': tensor(2, 5, 3, 4, dtype=torch.int64)}, TypeError,
     'q is torch.int64; accepted are float64, float32, float16, bfloat16'),
    (DENSE, {'v': tensor(2, 7, 3, 6, dtype=torch.complex64)}, TypeError,
     'v is torch.complex64; accepted are float64'),
    (DENSE, {'q': tensor(2, 5, 3, 4).to_sparse()}, TypeError,
     'q is torch.sparse_coo; accepted is an ordinary'),
    (DENSE, {'k': tensor(2, 7, 3, 4, dtype=torch.float64)}, TypeError,
     'k is torch.float64; accepted is torch.float32, as q'),
    (DENSE, {'v': tensor(2, 7, 3, 6, dtype=torch.float16)}, TypeError,
     'v is torch.float16; accepted is torch.float32, as q'),
    (DENSE, {'k': meta(2, 7, 3, 4)}, ValueError, 'k is on meta; accepted is cpu, where q is'),
    (DENSE, {'v': meta(2, 7, 3, 6)}, ValueError, 'v is on meta; accepted is cpu, where q is'),
    # shapes
    (DENSE, {'q': tensor(5, 3, 4)}, ValueError,
     'q has the shape (5, 3, 4); accepted is (B, N, H, D) for the dense layout'),
    (DENSE, {'q': tensor(2, 5, 3, 0)}, ValueError,
     'q has the shape (2, 5, 3, 0); accepted are 1 head or more of 1 channel or more'),
    (DENSE, {'q': tensor(2, 5, 0, 4)}, ValueError, 'q has the shape (2, 5, 0, 4)'),
    (DENSE, {'k': tensor(2, 7, 3, 5)}, ValueError,
     'k has the shape (2, 7, 3, 5); accepted is one with the heads and channels of q'),
    (DENSE, {'k': tensor(2, 7, 2, 4)}, ValueError, 'k has the shape (2, 7, 2, 4); accepted is one'),
    (DENSE, {'k': tensor(7, 3, 4)}, ValueError, 'k has the shape (7, 3, 4); accepted is one'),
    (DENSE, {'k': tensor(1, 7, 3, 4)}, ValueError,
     'k has the shape (1, 7, 3, 4); accepted is (2,) in front, as in q (2, 5, 3, 4)'),
    (DENSE, {'v': tensor(2, 6, 3, 6)}, ValueError,
     'v has the shape (2, 6, 3, 6); accepted is (2, 7, 3) in front, as in k (2, 7, 3, 4)'),
    (DENSE, {'v': tensor(2, 7, 3)}, ValueError, 'v has the shape (2, 7, 3); accepted is (2, 7, 3)'),
    (DENSE, {'v': tensor(2, 7, 3, 0)}, ValueError,
     'v has the shape (2, 7, 3, 0); accepted is 1 channel or more'),
    (PACKED, {'q': tensor(1, 9, 3, 4)}, ValueError,
     'q has the shape (1, 9, 3, 4); accepted is (T, H, D) for the packed (cu_seqlens) layout'),
    (PACKED, {'v': tensor(8, 3, 4)}, ValueError,
     'v has the shape (8, 3, 4); accepted is (9, 3) in front, as in k (9, 3, 4)'),
    (PADDED, {'q': tensor(2, 20, 3, 4)}, ValueError, 'q has the shape (2, 20, 3, 4); accepted is '
     '(B, Hmax, Wmax, H, D) for the padded maps (valid_hw) layout'),
    (PADDED, {'k': tensor(2, 5, 4, 3, 4)}, ValueError,
     'k has the shape (2, 5, 4, 3, 4); accepted is (2, 4, 5) in front'),
    # options
    (DENSE, {'feature_map': 'elu'}, ValueError,
     "feature_map is 'elu'; accepted are 'relu', 'identity'"),
    (DENSE, {'normalizer': None}, ValueError, "normalizer is None; accepted are 'clamp', 'mean'"),
    (DENSE, {'backend': 'cuda'}, ValueError,
     "backend is 'cuda'; accepted are 'auto', 'compiled', 'reference'"),
    (DENSE, {'denom_min': 0}, ValueError, 'denom_min is 0; accepted are finite numbers over 0'),
    (DENSE, {'denom_min': -1.}, ValueError, 'denom_min is -1.0; accepted are finite'),
    (DENSE, {'denom_min': float('nan')}, ValueError, 'denom_min is nan; accepted are finite'),
    (DENSE, {'eps': float('inf')}, ValueError, 'eps is inf; accepted are finite'),
    (DENSE, {'eps': '1'}, TypeError, 'eps is a str; accepted is a number'),
    (DENSE, {'denom_min': tensor(1)}, TypeError, 'denom_min is a Tensor; accepted is a number'),
    (DENSE, {'denom_min': True}, TypeError, 'denom_min is a bool; accepted is a number'),
    (DENSE, {'scale': 'big'}, TypeError,
     'scale is a str; accepted are a number, a tensor of one number a head, and None'),
    (DENSE, {'scale': True}, TypeError, 'scale is a bool; accepted are a number'),
    (DENSE, {'scale': tensor(4)}, ValueError,
     'scale has the shape (4,); accepted is (3,), one number a head'),
    (DENSE, {'scale': tensor(3, 1, 1)}, ValueError, 'scale has the shape (3, 1, 1)'),
    (DENSE, {'scale': tensor()}, ValueError, 'scale has the shape ()'),
    (DENSE, {'scale': tensor(3, dtype=torch.int64)}, TypeError, 'scale is torch.int64; accepted'),
    (DENSE, {'scale': meta(3)}, ValueError, 'scale is on meta; accepted is cpu'),
    # where the images are
    (PACKED, {'valid_hw': ints([3, 3])}, ValueError, 'cu_seqlens and valid_hw are both given'),
    (DENSE, {'cu_seqlens_k': ints(0, 7)}, ValueError, 'cu_seqlens_k is given without cu_seqlens'),
    (PACKED, {'cu_seqlens': [0, 9]}, TypeError, 'cu_seqlens is a list; accepted is a tensor'),
    (PACKED, {'cu_seqlens': tensor(3)}, TypeError,
     'cu_seqlens is torch.float32; accepted are int32 and int64'),
    (PACKED, {'cu_seqlens': ints(0, 9, dtype=torch.int16)}, TypeError, 'cu_seqlens is torch.int16'),
    (PACKED, {'cu_seqlens': meta(3).int()}, ValueError, 'cu_seqlens is on meta; accepted is cpu'),
    (PACKED, {'cu_seqlens': ints()}, ValueError,
     'cu_seqlens has the shape (0,); accepted is (B + 1,)'),
    (PACKED, {'cu_seqlens': ints([0, 9])}, ValueError, 'cu_seqlens has the shape (1, 2)'),
    (PACKED, {'cu_seqlens': ints(1, 9)}, ValueError, 'cu_seqlens begins with 1; accepted is 0'),
    (PACKED, {'cu_seqlens': ints(-1, 9)}, ValueError, 'cu_seqlens begins with -1; accepted is 0'),
    (PACKED, {'cu_seqlens': ints(0, 5, 3, 9)}, ValueError,
     'cu_seqlens decreases from 5 to 3 at 2; accepted are offsets that do not decrease'),
    (PACKED, {'cu_seqlens': ints(0, -1, 9)}, ValueError, 'cu_seqlens decreases from 0 to -1 at 1'),
    (PACKED, {'cu_seqlens': ints(0, 10)}, ValueError,
     'cu_seqlens ends with 10; accepted is at most 9, the number of tokens'),
    (PACKED, {'cu_seqlens': ints(0, 2**40, dtype=torch.int64)}, ValueError,
     'cu_seqlens ends with 1099511627776; accepted is at most 9'),
    (PACKED, {'cu_seqlens_k': ints(0, 9)}, ValueError,
     'cu_seqlens_k has 2 entries; accepted are 3, as in cu_seqlens'),
    (PACKED, {'cu_seqlens_k': ints(0, 5, 10)}, ValueError,
     'cu_seqlens_k ends with 10; accepted is at most 9'),
    (PACKED, {'cu_seqlens_k': ints(0, 5, 4)}, ValueError, 'cu_seqlens_k decreases from 5 to 4'),
    (PACKED, {'k': tensor(7, 3, 4), 'v': tensor(7, 3, 4)}, ValueError,
     'cu_seqlens ends with 8; accepted is at most 7'),
    (PADDED, {'valid_hw': (4, 5)}, TypeError, 'valid_hw is a tuple; accepted is a tensor'),
    (PADDED, {'valid_hw': tensor(2, 2)}, TypeError,
     'valid_hw is torch.float32; accepted are int32 and int64'),
    (PADDED, {'valid_hw': meta(2, 2).int()}, ValueError, 'valid_hw is on meta; accepted is cpu'),
    (PADDED, {'valid_hw': ints([4, 5])}, ValueError,
     'valid_hw has the shape (1, 2); accepted is (2, 2)'),
    (PADDED, {'valid_hw': ints([4, 5], [5, 2])}, ValueError,
     'valid_hw is 5 x 2 for image 1; accepted is at most 4 x 5, the size of the map'),
    (PADDED, {'valid_hw': ints([4, 6], [1, 2])}, ValueError, 'valid_hw is 4 x 6 for image 0'),
    (PADDED, {'valid_hw': ints([4, -1], [1, 2])}, ValueError, 'valid_hw is 4 x -1 for image 0'),
    (PADDED, {'valid_hw': ints([2**32 + 1, 2], [1, 2], dtype=torch.int64)}, ValueError,
     'valid_hw is 4294967297 x 2 for image 0'),
]


def check(function, arguments, error, message):
    with pytest.raises(error, match='^' + re.escape(message)):
        function(**arguments)


@pytest.mark.parametrize('right, changes, error, message', ATTENTION,
                         ids=[message[:50] for *_, message in ATTENTION])
def test_linear_attention(right, changes, error, message):
    assert linear_attention(**right).shape[:-1] == right['q'].shape[:-1]
    for backend in ('reference', 'auto'):
        check(linear_attention, {'backend': backend, **right, **changes}, error, message)


QKV = {'qkv': tensor(2, 5, 3, 2, 4)}
PACKED_QKV = {'qkv': tensor(9, 3, 2, 4), 'cu_seqlens': ints(0, 5, 9)}
PADDED_QKV = {'qkv': tensor(2, 4, 5, 3, 2, 4), 'valid_hw': ints([4, 5], [1, 2])}
PROJECTION = [
    (QKV, {'qkv': 3.}, TypeError, 'qkv is a float; accepted is a tensor'),
    (QKV, {'qkv': tensor(2, 5, 3, 2, 4, dtype=torch.uint8)}, TypeError, 'qkv is torch.uint8'),
    (QKV, {'qkv': tensor(3, 4)}, ValueError,
     'qkv has the shape (3, 4); accepted is (..., 3, H, D)'),
    (QKV, {'qkv': tensor(2, 5, 4, 2, 4)}, ValueError,
     'qkv has the shape (2, 5, 4, 2, 4); accepted is (..., 3, H, D)'),
    (QKV, {'qkv': tensor(5, 3, 2, 4)}, ValueError,
     'qkv has the shape (5, 3, 2, 4); accepted is (B, N, 3, H, D) for the dense layout'),
    (QKV, {'qkv': tensor(2, 5, 3, 0, 4)}, ValueError, 'qkv has the shape (2, 5, 3, 0, 4)'),
    (PACKED_QKV, {'qkv': tensor(1, 9, 3, 2, 4)}, ValueError,
     'qkv has the shape (1, 9, 3, 2, 4); accepted is (T, 3, H, D) for the packed'),
    (PADDED_QKV, {'qkv': tensor(2, 20, 3, 2, 4)}, ValueError, 'qkv has the shape (2, 20, 3, 2, 4); '
     'accepted is (B, Hmax, Wmax, 3, H, D) for the padded maps'),
    (QKV, {'feature_map': 1}, ValueError, "feature_map is 1; accepted are 'relu', 'identity'"),
    (QKV, {'normalizer': 'sum'}, ValueError, "normalizer is 'sum'; accepted"),
    (QKV, {'backend': None}, ValueError, "backend is None; accepted are 'auto'"),
    (QKV, {'denom_min': -1}, ValueError, 'denom_min is -1; accepted'),
    (QKV, {'eps': None}, TypeError, 'eps is a NoneType; accepted is a number'),
    (QKV, {'scale': tensor(3)}, ValueError, 'scale has the shape (3,); accepted is (2,)'),
    (PACKED_QKV, {'cu_seqlens': ints(0, 6, 5)}, ValueError, 'cu_seqlens decreases from 6 to 5'),
    (PACKED_QKV, {'cu_seqlens': ints(0, 10)}, ValueError, 'cu_seqlens ends with 10; accepted'),
    (PADDED_QKV, {'valid_hw': ints([4, 5], [5, 2])}, ValueError, 'valid_hw is 5 x 2 for image 1'),
    (PADDED_QKV, {'cu_seqlens': ints(0, 2)}, ValueError, 'cu_seqlens and valid_hw are both given'),
]


@pytest.mark.parametrize('right, changes, error, message', PROJECTION,
                         ids=[message[:50] for *_, message in PROJECTION])
def test_linear_attention_qkv(right, changes, error, message):
    assert linear_attention_qkv(**right).shape[-1] == 4
    for backend in ('reference', 'auto'):
        check(linear_attention_qkv, {'backend': backend, **right, **changes}, error, message)


FOCUSED = {'x': tensor(2, 5, 8), 's': tensor(8), 'pos': tensor(5, 8)}
FEATURE_MAP = [
    ({'x': None}, TypeError, 'x is a NoneType; accepted is a tensor'),
    ({'x': tensor(2, 5, 8, dtype=torch.int32)}, TypeError, 'x is torch.int32; accepted'),
    ({'x': tensor()}, ValueError, 'x has the shape (); accepted is (..., C)'),
    ({'x': tensor(2, 0)}, ValueError, 'x has the shape (2, 0); accepted is (..., C)'),
    ({'s': 1.}, TypeError, 's is a float; accepted is a tensor'),
    ({'s': tensor(8, dtype=torch.int64)}, TypeError, 's is torch.int64; accepted'),
    ({'s': tensor(7)}, ValueError,
     's has the shape (7,); accepted is (8,), with any number of 1s in front, for x (2, 5, 8)'),
    ({'s': tensor(8, 1)}, ValueError, 's has the shape (8, 1); accepted is (8,)'),
    ({'s': tensor()}, ValueError, 's has the shape (); accepted is (8,)'),
    ({'s': tensor(2, 8)}, ValueError, 's has the shape (2, 8); accepted is (8,)'),
    ({'s': meta(8)}, ValueError, 's is on meta; accepted is cpu, where x is'),
    ({'pos': 0}, TypeError, 'pos is a int; accepted is a tensor'),
    ({'pos': tensor(5, 8, dtype=torch.bool)}, TypeError, 'pos is torch.bool; accepted'),
    ({'pos': tensor(4, 8)}, ValueError, 'pos has the shape (4, 8); accepted is, leading 1s apart, '
     'the end of the shape of x, (2, 5, 8)'),
    ({'pos': tensor(2, 1, 8)}, ValueError, 'pos has the shape (2, 1, 8); accepted'),
    ({'pos': tensor(5, 1)}, ValueError, 'pos has the shape (5, 1); accepted'),
    ({'pos': tensor(3, 2, 5, 8)}, ValueError, 'pos has the shape (3, 2, 5, 8); accepted'),
    ({'pos': tensor()}, ValueError, 'pos has the shape (); accepted'),
    ({'pos': meta(5, 8)}, ValueError, 'pos is on meta; accepted is cpu, where x is'),
    ({'power': 0}, ValueError, 'power is 0; accepted are finite numbers over 0'),
    ({'power': float('inf')}, ValueError, 'power is inf; accepted are finite numbers over 0'),
    ({'power': '3'}, TypeError, 'power is a str; accepted is a number'),
    ({'backend': 'fast'}, ValueError, "backend is 'fast'; accepted are 'auto'"),
]


@pytest.mark.parametrize('changes, error, message', FEATURE_MAP,
                         ids=[message[:50] for *_, message in FEATURE_MAP])
def test_focused_feature_map(changes, error, message):
    assert focused_feature_map(**FOCUSED).shape == (2, 5, 8)
    for backend in ('reference', 'auto'):
        check(focused_feature_map, {'backend': backend, **FOCUSED, **changes}, error, message)


@pytest.mark.parametrize('dim, value_dim', [(257, 4), (4, 300)])
def test_heads_too_large_for_the_kernels(dim, value_dim, device, compiled):
    q, v = torch.zeros(1, 5, 2, dim, device=device), torch.zeros(1, 5, 2, value_dim, device=device)
    check(linear_attention, {'q': q, 'k': q, 'v': v, 'backend': compiled}, ValueError,
          f'the channels of a head (D, Dv) are {max(dim, value_dim)}; accepted are up to 256')
    if dim > 256:
        check(linear_attention_qkv, {'qkv': torch.stack([q] * 3, -3), 'backend': compiled},
              ValueError, 'the channels of a head (D, Dv) are 257; accepted are up to 256')


def test_checks_under_autocast():
    with torch.autocast('cpu'):
        check(linear_attention, {**DENSE, 'k': meta(2, 7, 3, 4)}, ValueError, 'k is on meta')
        check(linear_attention, {**DENSE, 'k': tensor(2, 7, 3, 5)}, ValueError, 'k has the shape')


def test_meta_tensors(backend):
    """Shapes without values."""
    q, k, v = meta(2, 5, 3, 4), meta(2, 7, 3, 4), meta(2, 7, 3, 6)
    out = linear_attention(q, k, v, backend=backend)
    assert out.is_meta and out.shape == (2, 5, 3, 6)
    assert focused_feature_map(q, meta(4), backend=backend).shape == q.shape


@needs_gpu
def test_values_on_a_gpu_are_checked():
    for name, right, wrong, message in (
            ('cu_seqlens', PACKED_QKV, ints(0, 6, 5), 'cu_seqlens decreases from 6 to 5'),
            ('valid_hw', PADDED_QKV, ints([4, 5], [5, 2]), 'valid_hw is 5 x 2 for image 1')):
        check(linear_attention_qkv, {'qkv': right['qkv'].cuda(), name: wrong.cuda()}, ValueError,
              message)
    check(linear_attention, {**{name: x.cuda() for name, x in DENSE.items()}, 'k': DENSE['k']},
          ValueError, 'k is on cpu; accepted is cuda:0, where q is')


@needs_gpu
def test_sizes_made_in_inference_mode():
    """They have no version, and so can't be known from one call to the next."""
    with torch.inference_mode():
        for name, right in (('cu_seqlens', PACKED_QKV), ('valid_hw', PADDED_QKV)):
            right = {key: x.cuda() for key, x in right.items()}
            right[name] = right[name].clone()
            assert linear_attention_qkv(**right).is_cuda


# The operators themselves: no call of them touches foreign memory.

OPTIONS = (True, False, 100., 1e-6)


def operator(q=tensor(9, 2, 4), k=None, v=None, scale=None, cu_seqlens=None, cu_seqlens_k=None,
             valid_hw=None):
    k, v = q if k is None else k, q if v is None else v
    return torch.ops.l2vit_mm.linear_attention(q, k, v, scale, 1., cu_seqlens, cu_seqlens_k,
                                               valid_hw, *OPTIONS)


MAP = tensor(2, 4, 5, 2, 4)
OPERATOR = [
    ({'cu_seqlens': ints(0, 5, 3)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, 5, 10)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(-3, 5)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, 2**31 - 1, 9)}, 'cu_seqlens'),
    ({'cu_seqlens': ints(0, -2**31, 9)}, 'cu_seqlens'),
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
    ({'q': MAP, 'k': tensor(2, 4, 4, 2, 4), 'v': tensor(2, 4, 4, 2, 4),
      'valid_hw': ints([4, 5], [4, 5])}, 'shapes'),
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
            (tensor(9, 3, 2, 4), ints(0, 5, 10), None), (tensor(9, 2, 2, 4), ints(0, 9), None),
            (tensor(2, 4, 5, 3, 2, 4), None, ints([4, 5], [4, 6])), (tensor(3, 4), None, None)):
        with pytest.raises((ValueError, RuntimeError)):
            ops.linear_attention_qkv(qkv, None, 1., cu_seqlens, valid_hw, *OPTIONS)

    q = tensor(2, 5, 2, 4)
    out, state, key_sum = operator(q)
    for wrong in ((out[:, :4], state, key_sum), (out.double(), state, key_sum),
                  (out, state[:1], key_sum), (out, state, key_sum[..., :2]),
                  (out, state.double(), key_sum), (out, state.mT, key_sum)):
        with pytest.raises((ValueError, RuntimeError)):
            dout, *sums = wrong
            ops.linear_attention_backward(dout, q, q, q, None, 1., *sums, None, None, None,
                                          *OPTIONS)
    packed = tensor(9, 2, 4)
    out, *sums = operator(packed, cu_seqlens=ints(0, 4, 9))
    for cu_seqlens in (ints(0, 4, 10), ints(0, 9, 4), ints(0, 9), ints(0, 1, 2, 3)):
        with pytest.raises((ValueError, RuntimeError)):
            ops.linear_attention_backward(out, packed, packed, packed, None, 1., *sums, cu_seqlens,
                                          None, None, *OPTIONS)


@needs_extension
def test_operators_of_the_focused_map():
    ops = torch.ops.l2vit_mm
    x, s, pos = tensor(2, 5, 8), tensor(8), tensor(5, 8)
    for wrong in ((tensor(), s, pos), (tensor(2, 0), tensor(0), None), (x, tensor(7), pos),
                  (x, s, tensor(8)), (x, s, tensor(4, 8)), (x, s, tensor(0, 8)),
                  (x, s, tensor(5, 7))):
        with pytest.raises((ValueError, RuntimeError)):
            ops.focused_feature_map(*wrong, 3.)
    for dout in (tensor(2, 4, 8), tensor(2, 5, 8, dtype=torch.float64)):
        with pytest.raises((ValueError, RuntimeError)):
            ops.focused_feature_map_backward(dout, x, s, pos, 3.)
