"""Linear attention in plain PyTorch: the definition and the fallback."""

import torch
import torch.nn.functional as F
from torch import Tensor

from l2vit_mm.ops.precision import no_autocast, widen


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor | float | None = None,
    feature_map: str = 'relu',
    normalizer: str = 'clamp',
    denom_min: float = 100.0,
    eps: float = 1e-6,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    valid_hw: Tensor | None = None,
) -> Tensor:
    """Computes linear attention, image by image where sizes differ. Shapes: see the interface.

    The arguments are those of :func:`l2vit_mm.ops.linear_attention`, checked there.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attend(q, k, v, scale, feature_map, normalizer, denom_min, eps)

    if cu_seqlens is not None:
        bounds_q = cu_seqlens.tolist()
        bounds_k = bounds_q if cu_seqlens_k is None else cu_seqlens_k.tolist()
        images = zip(bounds_q, bounds_q[1:], bounds_k, bounds_k[1:], strict=False)
        out = [attend(q[None, a:b], k[None, c:d], v[None, c:d])[0] for a, b, c, d in images]
        return torch.cat([*out, _zeros(q[bounds_q[-1] :], k, v, scale)])
    if valid_hw is not None:
        height, width = q.shape[1:3]
        out = [
            F.pad(
                attend(*(x[i, :h, :w].flatten(0, 1)[None] for x in (q, k, v))).reshape(
                    1, h, w, *v.shape[-2:]
                ),
                (0, 0, 0, 0, 0, width - w, 0, height - h),
            )
            for i, (h, w) in enumerate(valid_hw.tolist())
        ]
        return torch.cat(out) if out else _zeros(q, k, v, scale)
    return attend(q, k, v)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor | float | None,
    feature_map: str,
    normalizer: str,
    denom_min: float,
    eps: float,
) -> Tensor:
    """Maps (B, N, H, D), (B, M, H, D) and (B, M, H, Dv) to (B, N, H, Dv)."""
    dtype, num_keys = q.dtype, k.shape[1]
    if num_keys == 0:
        return _zeros(q, k, v, scale)
    with no_autocast(q):
        q, k, v = (widen(x).transpose(1, 2) for x in (q, k, v))  # (B, H, N, D)
        if feature_map == 'relu':
            q, k = q.relu(), k.relu()
        state = k.transpose(-2, -1) @ v  # (B, H, D, Dv)
        denom = q @ k.sum(-2, keepdim=True).transpose(-2, -1)  # (B, H, N, 1)
        if normalizer == 'clamp':
            out = q @ state / denom.clamp(min=denom_min)
        else:
            out = q @ (state / num_keys) / (denom / num_keys + eps)
        if scale is not None:
            out = out * (widen(scale)[:, None, None] if isinstance(scale, Tensor) else scale)
        return out.transpose(1, 2).to(dtype).contiguous()


def _zeros(q: Tensor, k: Tensor, v: Tensor, scale: Tensor | float | None) -> Tensor:
    """Returns zeros in the shape of the output, whose gradients to all inputs are zero."""
    zero = k[:0].sum() + v[:0].sum()
    if isinstance(scale, Tensor):
        zero = zero + scale[:0].sum()
    return F.pad(q[..., :0], (0, v.shape[-1])) + zero.to(q.dtype)
