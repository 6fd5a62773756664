"""The public functions of linear attention: arguments, checks, and the choice of the backend."""

import torch
from torch import Tensor

from l2vit_mm.ops.checks import (
    check_cu_seqlens,
    check_device,
    check_floating,
    check_one_of,
    check_positive,
    check_same,
    check_valid_hw,
    is_number,
)
from l2vit_mm.ops.extension import use_compiled
from l2vit_mm.ops.linear_attention import reference, registration
from l2vit_mm.ops.precision import autocast_enabled, promote


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Tensor | float | None = None,
    feature_map: str = 'relu',
    normalizer: str = 'clamp',
    denom_min: float = 100.0,
    eps: float = 1e-6,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    valid_hw: Tensor | None = None,
    backend: str = 'auto',
) -> Tensor:
    """Computes global linear attention within every image of a batch of images of any sizes.

    For every head, with sums over all M keys j of the same image::

        S = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)
        out_i = scale * (phi(q_i) S) / max(phi(q_i) . z, denom_min)            normalizer='clamp'
        out_i = scale * (phi(q_i) S / M) / (phi(q_i) . z / M + eps)            normalizer='mean'

    The first is L2ViT's (arXiv 2501.16182), the second FLatten's (arXiv 2308.00442). Time and
    memory are linear in the number of tokens. Sums are accumulated in float32 (float64 for
    float64). The outputs of an image depend on its own tokens only: NaN and infinity do not spread
    to other images.

    There are three layouts, with H heads of size D. All tensors may have any strides, and so may be
    views of one projection (:func:`linear_attention_qkvpacked` saves copying their gradients):

    - dense: q (B, N, H, D), k (B, M, H, D), v (B, M, H, Dv); images of one size.
    - packed: q (T, H, D), k (Tk, H, D), v (Tk, H, Dv) and ``cu_seqlens``; images of any sizes,
      concatenated.
    - padded maps: q, k (B, Hmax, Wmax, H, D), v (B, Hmax, Wmax, H, Dv) and ``valid_hw``; images in
      the top left corners.

    Images may be empty, and there may be tokens after the last image or outside the height and
    width of an image: these are never read, and their outputs and gradients are zero. The outputs
    of an image with queries but without keys are zero, too.

    Args:
        q (Tensor): queries; float64, float32, float16 or bfloat16. Under autocast q, k and v may
            have different types, of which the widest is used.
        k (Tensor): keys, of the type of q.
        v (Tensor): values, of the type of q.
        scale (Tensor or float, optional): factor of the output. A tensor (H,) has one factor per
            head and gets a gradient. None: 1.
        feature_map (str): phi: 'relu', or 'identity' for q and k that are mapped already.
        normalizer (str): 'clamp' or 'mean'.
        denom_min (float): smallest denominator of 'clamp'; positive.
        eps (float): added to the denominator of 'mean'; positive.
        cu_seqlens (Tensor, optional): packed layout: cumulative numbers of tokens, where each image
            starts and the last one ends: (B + 1,), int32 or int64, starting with 0, not decreasing,
            at most T. On a GPU the values are copied to the host once per tensor to be checked. In
            a compiled graph they are not: wrong values are then clamped to the tensor, and the
            outputs are undefined.
        cu_seqlens_k (Tensor, optional): packed layout: the same for k and v. None: ``cu_seqlens``.
        valid_hw (Tensor, optional): padded maps: height and width of each image in tokens, (B, 2),
            int32 or int64. Checked like ``cu_seqlens``.
        backend (str): 'auto': the compiled operator if there is one for the device, otherwise plain
            PyTorch, with one warning. 'compiled' or 'reference': that one.

    Returns:
        Tensor: of the shape of q with Dv in place of D and of the type of q, contiguous.

    Raises:
        TypeError: wrong type or number format of an argument.
        ValueError: wrong shape, device, size or option; D or Dv over 256, which only 'reference'
            supports.
        RuntimeError: ``backend='compiled'`` without a compiled operator for the device.
    """
    _check_options(scale, feature_map, normalizer, denom_min, eps)
    for name, x in (('q', q), ('k', k), ('v', v)):
        check_floating(name, x)
    if autocast_enabled(q):
        q, k, v = promote(q, k, v)
    _check_layout('q', q, cu_seqlens, valid_hw)
    check_same('k', k, 'q', q)
    check_same('v', v, 'q', q)
    _check_shapes_match(q, k, v, 3 if valid_hw is not None else 0 if cu_seqlens is not None else 1)
    _check_scale(scale, q)
    check_cu_seqlens('cu_seqlens', cu_seqlens, q)
    if cu_seqlens_k is not None:
        if cu_seqlens is None:
            raise ValueError('cu_seqlens_k must be None without cu_seqlens, got a tensor')
        check_cu_seqlens('cu_seqlens_k', cu_seqlens_k, k)
        if cu_seqlens_k.shape != cu_seqlens.shape:
            raise ValueError(
                f'cu_seqlens_k must have shape {tuple(cu_seqlens.shape)} like '
                f'cu_seqlens, got {tuple(cu_seqlens_k.shape)}'
            )
    elif k.shape[0] != q.shape[0]:
        check_cu_seqlens('cu_seqlens', cu_seqlens, k)
    check_valid_hw(valid_hw, q)

    if use_compiled(backend, q.device):
        _check_head_dims(q.shape[-1], v.shape[-1])
        out: Tensor = torch.ops.l2vit_mm.linear_attention(
            q,
            k,
            v,
            *_split_scale(scale),
            _int32(cu_seqlens),
            _int32(cu_seqlens_k),
            _int32(valid_hw),
            feature_map == 'relu',
            normalizer == 'mean',
            denom_min,
            eps,
        )[0]
        return out
    return reference.linear_attention(
        q, k, v, scale, feature_map, normalizer, denom_min, eps, cu_seqlens, cu_seqlens_k, valid_hw
    )


def linear_attention_qkvpacked(
    qkv: Tensor,
    *,
    scale: Tensor | float | None = None,
    feature_map: str = 'relu',
    normalizer: str = 'clamp',
    denom_min: float = 100.0,
    eps: float = 1e-6,
    cu_seqlens: Tensor | None = None,
    valid_hw: Tensor | None = None,
    backend: str = 'auto',
) -> Tensor:
    """Computes :func:`linear_attention` of queries, keys and values stacked in one tensor.

    The gradient of the projection is written as one tensor. (The gradients of three views are three
    tensors, which autograd then copies into one.)

    Args:
        qkv (Tensor): queries, keys and values: (B, N, 3, H, D) dense, (T, 3, H, D) packed,
            (B, Hmax, Wmax, 3, H, D) padded maps.
        scale, feature_map, normalizer, denom_min, eps, cu_seqlens, valid_hw, backend: as in
            :func:`linear_attention`.

    Returns:
        Tensor: of the shape of qkv without the 3, contiguous.

    Raises:
        TypeError, ValueError, RuntimeError: as in :func:`linear_attention`.
    """
    _check_options(scale, feature_map, normalizer, denom_min, eps)
    check_floating('qkv', qkv)
    if qkv.ndim < 3 or qkv.shape[-3] != 3:
        raise ValueError(f'qkv must have shape (..., 3, H, D), got {tuple(qkv.shape)}')
    _check_layout('qkv', qkv, cu_seqlens, valid_hw, after_tokens='3, H, D')
    _check_scale(scale, qkv)
    check_cu_seqlens('cu_seqlens', cu_seqlens, qkv)
    check_valid_hw(valid_hw, qkv)

    if use_compiled(backend, qkv.device):
        _check_head_dims(qkv.shape[-1])
        out: Tensor = torch.ops.l2vit_mm.linear_attention_qkvpacked(
            qkv,
            *_split_scale(scale),
            _int32(cu_seqlens),
            _int32(valid_hw),
            feature_map == 'relu',
            normalizer == 'mean',
            denom_min,
            eps,
        )[0]
        return out
    q, k, v = qkv.unbind(-3)
    return reference.linear_attention(
        q, k, v, scale, feature_map, normalizer, denom_min, eps, cu_seqlens, None, valid_hw
    )


def _check_options(
    scale: Tensor | float | None, feature_map: str, normalizer: str, denom_min: float, eps: float
) -> None:
    check_one_of('feature_map', feature_map, ('relu', 'identity'))
    check_one_of('normalizer', normalizer, ('clamp', 'mean'))
    check_positive('denom_min', denom_min)
    check_positive('eps', eps)
    if scale is not None and not isinstance(scale, Tensor) and not is_number(scale):
        raise TypeError(
            'scale must be a number, a tensor of one number per head, or None, got '
            f'{type(scale).__name__}'
        )


def _check_layout(
    name: str,
    x: Tensor,
    cu_seqlens: Tensor | None,
    valid_hw: Tensor | None,
    after_tokens: str = 'H, D',
) -> None:
    if cu_seqlens is not None and valid_hw is not None:
        raise ValueError('valid_hw must be None with cu_seqlens, got both')
    layout, tokens = (
        ('packed (cu_seqlens)', 'T')
        if cu_seqlens is not None
        else ('padded map (valid_hw)', 'B, Hmax, Wmax')
        if valid_hw is not None
        else ('dense', 'B, N')
    )
    expected = f'{tokens}, {after_tokens}'
    if x.ndim != expected.count(',') + 1:
        raise ValueError(
            f'{name} must have shape ({expected}) in the {layout} layout, got {tuple(x.shape)}'
        )
    if x.shape[-2] == 0 or x.shape[-1] == 0:
        raise ValueError(
            f'{name} must have 1 or more heads of 1 or more channels, got shape {tuple(x.shape)}'
        )


def _check_shapes_match(q: Tensor, k: Tensor, v: Tensor, same_dims: int) -> None:
    """The first ``same_dims`` dimensions of q and k must be equal, and those of heads and channels;
    all but the channels of k and v."""
    if k.ndim != q.ndim or k.shape[-2:] != q.shape[-2:]:
        raise ValueError(
            f'k must have the heads and channels of q, {tuple(q.shape)}, got shape {tuple(k.shape)}'
        )
    if k.shape[:same_dims] != q.shape[:same_dims]:
        raise ValueError(
            f'k must start with {tuple(q.shape[:same_dims])} like q '
            f'{tuple(q.shape)}, got shape {tuple(k.shape)}'
        )
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            f'v must start with {tuple(k.shape[:-1])} like k {tuple(k.shape)}, got '
            f'shape {tuple(v.shape)}'
        )
    if v.shape[-1] == 0:
        raise ValueError(f'v must have 1 or more channels, got shape {tuple(v.shape)}')


def _check_scale(scale: Tensor | float | None, x: Tensor) -> None:
    if isinstance(scale, Tensor):
        num_heads = x.shape[-2]
        check_floating('scale', scale)
        if scale.shape != (num_heads,):
            raise ValueError(
                f'scale must have shape ({num_heads},), one number per head, got '
                f'{tuple(scale.shape)}'
            )
        check_device('scale', scale, 'the input', x)


def _check_head_dims(*dims: int) -> None:
    for dim in dims:
        if dim > registration.MAX_HEAD_DIM:
            raise ValueError(
                f'D and Dv must be at most {registration.MAX_HEAD_DIM}, except with '
                f"backend='reference', got {dim}"
            )


def _split_scale(scale: Tensor | float | None) -> tuple[Tensor | None, float]:
    """Returns the scale as the operators take it: one factor per head or None, and one for all."""
    return (scale, 1.0) if isinstance(scale, Tensor) else (None, 1.0 if scale is None else scale)


def _int32(sizes: Tensor | None) -> Tensor | None:
    return None if sizes is None else sizes.to(torch.int32)
