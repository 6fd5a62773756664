"""Linear attention and FLatten's feature map: checks, autograd, and the choice of what runs.

The compiled operators are ``torch.ops.l2vit_mm.*`` (csrc/bindings.cpp); :mod:`reference` has the
same in plain PyTorch.
"""
import itertools
import math
import weakref

import torch
from torch import Tensor

from l2vit_mm.ops import extension, reference

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MAX_DIM = 256  # of a head, in the compiled kernels


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: Tensor | float | None = None,
                     feature_map: str = 'relu', normalizer: str = 'clamp', denom_min: float = 100.,
                     eps: float = 1e-6, cu_seqlens: Tensor | None = None,
                     cu_seqlens_k: Tensor | None = None, valid_hw: Tensor | None = None,
                     backend: str = 'auto') -> Tensor:
    """Global linear attention over every image of a batch, whatever their sizes.

    With sums over all M keys j of the same image, a head at a time::

        S = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)
        out_i = scale * (phi(q_i) S) / max(phi(q_i) . z, denom_min)            normalizer='clamp'
        out_i = scale * (phi(q_i) S / M) / (phi(q_i) . z / M + eps)            normalizer='mean'

    The first is L2ViT's (arXiv 2501.16182), the second FLatten's (arXiv 2308.00442). Time and
    memory are linear in the number of tokens. Sums are held in float32 (float64 for float64), and
    an image's outputs depend on its own tokens alone: what is not finite stays in its image.

    Three layouts, H heads of size D, any strides, and so views of one projection too
    (:func:`linear_attention_qkv` spares their gradients a copy):

    - dense: q (B, N, H, D), k (B, M, H, D), v (B, M, H, Dv), images of one size;
    - packed: q (T, H, D), k (Tk, H, D), v (Tk, H, Dv) and ``cu_seqlens``, images of any sizes one
      behind the other;
    - padded maps: q, k (B, Hmax, Wmax, H, D), v (B, Hmax, Wmax, H, Dv) and ``valid_hw``, images in
      the top left corners.

    An image without tokens is legal, and so are tokens behind the last image or outside an
    image's height and width: these are not read, their outputs and gradients are zero. So are
    the outputs of an image that has queries but no keys.

    Args:
        q (Tensor): queries; float64, float32, float16 or bfloat16. Under autocast q, k and v may
            differ in type: the widest is taken.
        k (Tensor): keys, of q's type.
        v (Tensor): values, of q's type.
        scale (Tensor or float, optional): factor of the output; a tensor has one a head, (H,), and
            gets a gradient. None: 1.
        feature_map (str): phi: 'relu', or 'identity' where q and k are mapped already.
        normalizer (str): 'clamp' or 'mean'.
        denom_min (float): with 'clamp', the least that the output is divided by; positive.
        eps (float): with 'mean', what the divisor is kept above zero with; positive.
        cu_seqlens (Tensor, optional): packed: where each image begins, and where the last one
            ends, in tokens: (B + 1,), int32 or int64, from 0, not decreasing, at most T.
            On a GPU they are read back once a tensor, to be checked; inside a compiled graph
            they are not: there wrong offsets are cut to the tensor, and the outputs are undefined.
        cu_seqlens_k (Tensor, optional): packed: the same for k and v. None: as ``cu_seqlens``.
        valid_hw (Tensor, optional): padded maps: height and width of each image in tokens, (B, 2),
            int32 or int64. Checked as ``cu_seqlens``.
        backend (str): 'auto': the compiled operator where there is one for the device, else
            plain PyTorch, with one warning. 'compiled' or 'reference': that one.

    Returns:
        Tensor: as q with Dv for D, contiguous, in the type of q.

    Raises:
        TypeError: an argument of a wrong type or number format.
        ValueError: a wrong shape, device, size or option; D or Dv over 256 ('reference' takes any).
        RuntimeError: ``backend='compiled'`` without a compiled operator for the device.
    """
    _check_options(scale, feature_map, normalizer, denom_min, eps)
    for name, x in (('q', q), ('k', k), ('v', v)):
        _check_floating(name, x)
    kind = q.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        q, k, v = _promote(q, k, v)
    _check_layout('q', q, cu_seqlens, valid_hw)
    _check_same('k', k, 'q', q)
    _check_same('v', v, 'q', q)
    if k.ndim != q.ndim or k.shape[-2:] != q.shape[-2:]:
        raise ValueError(f'k has the shape {tuple(k.shape)}; accepted is one with the heads and '
                         f'channels of q, {tuple(q.shape)}')
    same_tokens = slice(0, 3) if valid_hw is not None else slice(0, int(cu_seqlens is None))
    if k.shape[same_tokens] != q.shape[same_tokens]:
        raise ValueError(f'k has the shape {tuple(k.shape)}; accepted is '
                         f'{tuple(q.shape[same_tokens])} in front, as in q {tuple(q.shape)}')
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f'v has the shape {tuple(v.shape)}; accepted is {tuple(k.shape[:-1])} '
                         f'in front, as in k {tuple(k.shape)}')
    if v.shape[-1] == 0:
        raise ValueError(f'v has the shape {tuple(v.shape)}; accepted is 1 channel or more')
    _check_scale(scale, q, q.shape[-2])
    if cu_seqlens_k is not None and cu_seqlens is None:
        raise ValueError('cu_seqlens_k is given without cu_seqlens: both are of packed tokens')
    _check_offsets('cu_seqlens', cu_seqlens, q, q.shape[0])
    _check_offsets('cu_seqlens_k', cu_seqlens_k, q, k.shape[0])
    if cu_seqlens_k is not None and cu_seqlens_k.shape != cu_seqlens.shape:
        raise ValueError(f'cu_seqlens_k has {cu_seqlens_k.shape[0]} entries; accepted are '
                         f'{cu_seqlens.shape[0]}, as in cu_seqlens')
    if cu_seqlens is not None and cu_seqlens_k is None and k.shape[0] != q.shape[0]:
        _check_offsets('cu_seqlens', cu_seqlens, k, k.shape[0])
    _check_valid_hw(valid_hw, q)

    if _runs_compiled(backend, q.device, q.shape[-1], v.shape[-1]):
        return torch.ops.l2vit_mm.linear_attention(
            q, k, v, *_split_scale(scale), _int32(cu_seqlens), _int32(cu_seqlens_k),
            _int32(valid_hw), feature_map == 'relu', normalizer == 'mean', denom_min, eps)[0]
    return reference.linear_attention(q, k, v, scale, feature_map, normalizer, denom_min, eps,
                                      cu_seqlens, cu_seqlens_k, valid_hw)


def linear_attention_qkv(qkv: Tensor, *, scale: Tensor | float | None = None,
                         feature_map: str = 'relu', normalizer: str = 'clamp',
                         denom_min: float = 100., eps: float = 1e-6,
                         cu_seqlens: Tensor | None = None, valid_hw: Tensor | None = None,
                         backend: str = 'auto') -> Tensor:
    """:func:`linear_attention` of the three parts of one projection.

    The gradient of the projection is written as one tensor. (That of three views is three
    tensors, which autograd then copies into one.)

    Args:
        qkv (Tensor): (B, N, 3, H, D) dense, (T, 3, H, D) packed, (B, Hmax, Wmax, 3, H, D) padded
            maps: queries, keys and values.
        scale, feature_map, normalizer, denom_min, eps, cu_seqlens, valid_hw, backend: as in
            :func:`linear_attention`.

    Returns:
        Tensor: qkv's shape without the 3, contiguous.
    """
    _check_options(scale, feature_map, normalizer, denom_min, eps)
    _check_floating('qkv', qkv)
    if qkv.ndim < 3 or qkv.shape[-3] != 3:
        raise ValueError(f'qkv has the shape {tuple(qkv.shape)}; accepted is (..., 3, H, D)')
    _check_layout('qkv', qkv, cu_seqlens, valid_hw, after_tokens='3, H, D')
    _check_scale(scale, qkv, qkv.shape[-2])
    _check_offsets('cu_seqlens', cu_seqlens, qkv, qkv.shape[0])
    _check_valid_hw(valid_hw, qkv)

    if _runs_compiled(backend, qkv.device, qkv.shape[-1]):
        return torch.ops.l2vit_mm.linear_attention_qkv(
            qkv, *_split_scale(scale), _int32(cu_seqlens), _int32(valid_hw),
            feature_map == 'relu', normalizer == 'mean', denom_min, eps)[0]
    return reference.linear_attention(*qkv.unbind(-3), scale, feature_map, normalizer, denom_min,
                                      eps, cu_seqlens, None, valid_hw)


def focused_feature_map(x: Tensor, s: Tensor, power: float = 3, pos: Tensor | None = None, *,
                        backend: str = 'auto') -> Tensor:
    """FLatten's feature map f(x + pos), over all channels of a token (arXiv 2308.00442)::

        u = (relu(x + pos) + 1e-6) / softplus(s)        f = u^power * ||u|| / ||u^power||

    It sharpens the direction of u and keeps its length. Computed in float32 (float64 for float64)
    in one pass, so that large activations in half precision stay finite.

    Args:
        x (Tensor): (..., C), queries or keys before they are split into heads.
        s (Tensor): the learnt ``scale`` as published, before the softplus; C values, any
            floating type. Under -80 or so u is beyond float32.
        power (float): p, the published ``focusing_factor``; positive.
        pos (Tensor, optional): position encoding; leading 1s apart, its shape is the end of x's:
            (N, C) or (1, N, C) for x (B, N, C). Any floating type.
        backend (str): as in :func:`linear_attention`.

    Returns:
        Tensor: as x, contiguous.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`linear_attention`.
    """
    _check_floating('x', x)
    _check_floating('s', s)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f'x has the shape {tuple(x.shape)}; accepted is (..., C), C at least 1')
    channels = x.shape[-1]
    if s.ndim == 0 or s.shape[-1] != channels or s.numel() != channels:
        raise ValueError(f's has the shape {tuple(s.shape)}; accepted is ({channels},), with any '
                         f'number of 1s in front, for x {tuple(x.shape)}')
    _check_device('s', s, 'x', x)
    if pos is not None:
        _check_floating('pos', pos)
        _check_device('pos', pos, 'x', x)
        shape = _without_leading_ones(pos)
        if pos.ndim == 0 or pos.shape[-1] != channels or shape != x.shape[x.ndim - len(shape):]:
            raise ValueError(f'pos has the shape {tuple(pos.shape)}; accepted is, leading 1s '
                             f'apart, the end of the shape of x, {tuple(x.shape)}')
    _check_positive('power', power)

    if _runs_compiled(backend, x.device):
        if pos is not None:
            pos = pos.reshape(-1, channels)
        return torch.ops.l2vit_mm.focused_feature_map(x, s, pos, power)
    if pos is not None:
        pos = pos.reshape(_without_leading_ones(pos))
    return reference.focused_feature_map(x, s.reshape(-1), power, pos)


# Checks. Each raises for one argument, with its name, its value and what is accepted.


def _check_options(scale, feature_map, normalizer, denom_min, eps):
    _check_one_of('feature_map', feature_map, ('relu', 'identity'))
    _check_one_of('normalizer', normalizer, ('clamp', 'mean'))
    _check_positive('denom_min', denom_min)
    _check_positive('eps', eps)
    if scale is not None and not isinstance(scale, Tensor) and not _is_number(scale):
        raise TypeError(f'scale is a {type(scale).__name__}; accepted are a number, a tensor of '
                        'one number a head, and None')


def _check_one_of(name, value, accepted):
    if value not in accepted:
        raise ValueError(f'{name} is {value!r}; accepted are ' +
                         ', '.join(repr(x) for x in accepted))


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_positive(name, value):
    if not _is_number(value):
        raise TypeError(f'{name} is a {type(value).__name__}; accepted is a number')
    if not 0 < value < math.inf:
        raise ValueError(f'{name} is {value}; accepted are finite numbers over 0')


def _check_floating(name, x):
    if not isinstance(x, Tensor):
        raise TypeError(f'{name} is a {type(x).__name__}; accepted is a tensor')
    if x.dtype not in _DTYPES:
        raise TypeError(f'{name} is {x.dtype}; accepted are float64, float32, float16, bfloat16')
    if x.layout != torch.strided:
        raise TypeError(f'{name} is {x.layout}; accepted is an ordinary (strided) tensor')


def _check_device(name, x, other_name, other):
    if x.device != other.device:
        raise ValueError(f'{name} is on {x.device}; accepted is {other.device}, where '
                         f'{other_name} is')


def _check_same(name, x, other_name, other):
    _check_device(name, x, other_name, other)
    if x.dtype != other.dtype:
        raise TypeError(f'{name} is {x.dtype}; accepted is {other.dtype}, as {other_name}')


def _check_layout(name, x, cu_seqlens, valid_hw, after_tokens='H, D'):
    if cu_seqlens is not None and valid_hw is not None:
        raise ValueError('cu_seqlens and valid_hw are both given; accepted is one of them')
    layout, tokens = (('packed (cu_seqlens)', 'T') if cu_seqlens is not None else
                      ('padded maps (valid_hw)', 'B, Hmax, Wmax') if valid_hw is not None else
                      ('dense', 'B, N'))
    accepted = f'{tokens}, {after_tokens}'
    if x.ndim != accepted.count(',') + 1:
        raise ValueError(f'{name} has the shape {tuple(x.shape)}; accepted is ({accepted}) for '
                         f'the {layout} layout')
    if x.shape[-2] == 0 or x.shape[-1] == 0:
        raise ValueError(f'{name} has the shape {tuple(x.shape)}; accepted are 1 head or more '
                         'of 1 channel or more')


def _check_scale(scale, x, num_heads):
    if isinstance(scale, Tensor):
        _check_floating('scale', scale)
        if scale.shape != (num_heads,):
            raise ValueError(f'scale has the shape {tuple(scale.shape)}; accepted is '
                             f'({num_heads},), one number a head')
        _check_device('scale', scale, 'the input', x)


def _check_integers(name, x, like):
    if not isinstance(x, Tensor):
        raise TypeError(f'{name} is a {type(x).__name__}; accepted is a tensor')
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(f'{name} is {x.dtype}; accepted are int32 and int64')
    _check_device(name, x, 'the input', like)


def _check_offsets(name, offsets, like, num_tokens):
    if offsets is None:
        return
    _check_integers(name, offsets, like)
    if offsets.ndim != 1 or offsets.shape[0] == 0:
        raise ValueError(f'{name} has the shape {tuple(offsets.shape)}; accepted is (B + 1,)')
    values = _host_values(offsets)
    if values is None:
        return
    if num_tokens >= 2**31:
        raise ValueError(f'{name} is of {num_tokens} tokens; accepted are fewer than 2**31')
    if values[0] != 0:
        raise ValueError(f'{name} begins with {values[0]}; accepted is 0')
    for i, (start, end) in enumerate(itertools.pairwise(values)):
        if end < start:
            raise ValueError(f'{name} decreases from {start} to {end} at {i + 1}; accepted are '
                             'offsets that do not decrease')
    if values[-1] > num_tokens:
        raise ValueError(f'{name} ends with {values[-1]}; accepted is at most {num_tokens}, the '
                         'number of tokens')


def _check_valid_hw(valid_hw, like):
    if valid_hw is None:
        return
    _check_integers('valid_hw', valid_hw, like)
    batch, height, width = like.shape[:3]
    if valid_hw.shape != (batch, 2):
        raise ValueError(f'valid_hw has the shape {tuple(valid_hw.shape)}; accepted is '
                         f'({batch}, 2)')
    for i, (h, w) in enumerate(_host_values(valid_hw) or ()):
        if not (0 <= h <= height and 0 <= w <= width):
            raise ValueError(f'valid_hw is {h} x {w} for image {i}; accepted is at most '
                             f'{height} x {width}, the size of the map')


# The values of sizes on a GPU that were read back: id -> (reference, version, values).
_read_back: dict[int, tuple[weakref.ref, int, list]] = {}


def _host_values(x):
    """The values of a small integer tensor; None where they can't be known: in a traced graph,
    while a CUDA graph is captured, on the meta device.

    Reading from a GPU waits for it, so that is done once a tensor and not once a layer.
    """
    if (torch.compiler.is_compiling() or x.device.type == 'meta'
            or isinstance(x, torch._subclasses.FakeTensor)):
        return None
    if x.device.type == 'cpu':
        return x.tolist()
    if x.device.type == 'cuda' and torch.cuda.is_current_stream_capturing():
        return None
    if x.is_inference():  # has no version to tell whether it was changed since
        return x.tolist()
    key, version = id(x), x._version
    known = _read_back.get(key)
    if known is None or known[0]() is not x or known[1] != version:
        known = weakref.ref(x, lambda _: _read_back.pop(key, None)), version, x.tolist()
        _read_back[key] = known
    return known[2]


def _without_leading_ones(x):
    shape = x.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


# What runs


def _runs_compiled(backend, device, *dims):
    _check_one_of('backend', backend, ('auto', 'compiled', 'reference'))
    if backend == 'reference':
        return False
    missing = extension.missing_for(device)
    if missing:
        if backend == 'compiled':
            raise RuntimeError(f"backend is 'compiled', but {missing}")
        if not torch.compiler.is_compiling():
            extension.warn_once(missing)
        return False
    for dim in dims:
        if dim > _MAX_DIM:
            raise ValueError(f'the channels of a head (D, Dv) are {dim}; accepted are up to '
                             f"{_MAX_DIM}, and any number with backend='reference'")
    return True


def _split_scale(scale):
    """A scale as the operators take it: one number a head or None, and a factor for all."""
    return (scale, 1.) if isinstance(scale, Tensor) else (None, 1. if scale is None else scale)


def _int32(sizes):
    return sizes if sizes is None else sizes.to(torch.int32)


def _promote(q, k, v):
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype)


# Autograd, fake kernels and autocast of the compiled operators. Their arguments behind the tensors
# (relu, mean, denom_min, eps) are the options; `sizes` are cu_seqlens, cu_seqlens_k, valid_hw.


def _acc_dtype(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _fake_attention(q, v, cu_seqlens):
    images = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    heads, dim = q.shape[-2:]
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    state = q.new_empty((images, heads, dim, v.shape[-1]), dtype=_acc_dtype(q))
    return out, state, q.new_empty((images, heads, dim), dtype=_acc_dtype(q))


def _fake_scale_gradient(scale, x):
    return x.new_empty(0) if scale is None else torch.empty_like(scale)


def _no_second_derivative(ctx, *grads):
    raise NotImplementedError("l2vit_mm's compiled operators have first derivatives only; "
                              "backend='reference' has all")


def _register() -> None:
    ops = torch.ops.l2vit_mm
    library = torch.library.Library('l2vit_mm', 'FRAGMENT')

    def register(name, fake, backward, setup_context):
        torch.library.register_fake(f'l2vit_mm::{name}', fake, lib=library)
        torch.library.register_autograd(f'l2vit_mm::{name}', backward,
                                        setup_context=setup_context, lib=library)

    def fake(q, k, v, scale, factor, cu_seqlens, cu_seqlens_k, valid_hw, *options):
        return _fake_attention(q, v, cu_seqlens)

    def setup_context(ctx, inputs, output):
        *tensors, scale, ctx.factor, cu_seqlens, cu_seqlens_k, valid_hw = inputs[:8]
        _, state, key_sum = output
        ctx.options = inputs[8:]
        ctx.mark_non_differentiable(state, key_sum)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, scale, state, key_sum, cu_seqlens, cu_seqlens_k, valid_hw)

    def backward(ctx, dout, *_):
        if dout is None:
            return (None, ) * 12
        q, k, v, scale, state, key_sum, *sizes = ctx.saved_tensors
        dq, dk, dv, dscale = ops.linear_attention_backward(
            dout, q, k, v, scale, ctx.factor, state, key_sum, *sizes, *ctx.options)
        return dq, dk, dv, None if scale is None else dscale, *[None] * 8

    def fake_backward(dout, q, k, v, scale, *_):
        return tuple(x.new_empty(x.shape) for x in (q, k, v)) + (_fake_scale_gradient(scale, q), )

    def fake_qkv(qkv, scale, factor, cu_seqlens, *_):
        q = qkv.select(-3, 0)
        return _fake_attention(q, q, cu_seqlens)

    def setup_context_qkv(ctx, inputs, output):
        qkv, scale, ctx.factor, cu_seqlens, valid_hw = inputs[:5]
        _, state, key_sum = output
        ctx.options = inputs[5:]
        ctx.mark_non_differentiable(state, key_sum)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(qkv, scale, state, key_sum, cu_seqlens, valid_hw)

    def backward_qkv(ctx, dout, *_):
        if dout is None:
            return (None, ) * 9
        qkv, scale, state, key_sum, *sizes = ctx.saved_tensors
        dqkv, dscale = ops.linear_attention_qkv_backward(
            dout, qkv, scale, ctx.factor, state, key_sum, *sizes, *ctx.options)
        return dqkv, None if scale is None else dscale, *[None] * 7

    def fake_qkv_backward(dout, qkv, scale, *_):
        return qkv.new_empty(qkv.shape), _fake_scale_gradient(scale, qkv)

    def fake_focused(x, s, pos, power):
        return x.new_empty(x.shape)

    def setup_context_focused(ctx, inputs, output):
        *tensors, ctx.power = inputs
        ctx.save_for_backward(*tensors)

    def backward_focused(ctx, dout):
        x, s, pos = ctx.saved_tensors
        dx, ds = ops.focused_feature_map_backward(dout, x, s, pos, ctx.power)
        dpos = None
        if ctx.needs_input_grad[2]:
            repeats = x.numel() // max(pos.numel(), 1)
            dpos = dx.reshape(repeats, *pos.shape).sum(0, dtype=_acc_dtype(x)).to(pos.dtype)
        return dx, ds, dpos, None

    def fake_focused_backward(dout, x, s, pos, power):
        return x.new_empty(x.shape), torch.empty_like(s)

    def no_context(ctx, inputs, output):
        pass

    register('linear_attention', fake, backward, setup_context)
    register('linear_attention_qkv', fake_qkv, backward_qkv, setup_context_qkv)
    register('focused_feature_map', fake_focused, backward_focused, setup_context_focused)
    register('linear_attention_backward', fake_backward, _no_second_derivative, no_context)
    register('linear_attention_qkv_backward', fake_qkv_backward, _no_second_derivative, no_context)
    register('focused_feature_map_backward', fake_focused_backward, _no_second_derivative,
             no_context)

    # Sums are in float32 whatever comes in, so autocast rounds nothing: it lets the types differ.
    def autocast(q, k, v, *rest):
        with torch.autocast(q.device.type, enabled=False):
            return ops.linear_attention(*_promote(q, k, v), *rest)

    for key in ('AutocastCPU', 'AutocastCUDA'):
        library.impl('linear_attention', autocast, key)
    _library.append(library)  # what it registered lasts as long as it does


_library: list[torch.library.Library] = []
if extension.load_error() is None:
    _register()
