"""The operators in plain PyTorch: their definition, and what runs where none was compiled.

The arguments are those of :mod:`l2vit_mm.ops.linear_attention`, checked there.
"""
import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_attention(q: Tensor, k: Tensor, v: Tensor, scale: Tensor | float | None = None,
                     feature_map: str = 'relu', normalizer: str = 'clamp', denom_min: float = 100.,
                     eps: float = 1e-6, cu_seqlens: Tensor | None = None,
                     cu_seqlens_k: Tensor | None = None, valid_hw: Tensor | None = None) -> Tensor:
    """Linear attention, an image at a time where they differ in size."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attend(q, k, v, scale, feature_map, normalizer, denom_min, eps)

    if cu_seqlens is not None:
        ends_q = cu_seqlens.tolist()
        ends_k = ends_q if cu_seqlens_k is None else cu_seqlens_k.tolist()
        images = zip(ends_q, ends_q[1:], ends_k, ends_k[1:])
        out = [attend(q[None, a:b], k[None, c:d], v[None, c:d])[0] for a, b, c, d in images]
        return torch.cat([*out, _zeros(q[ends_q[-1]:], k, v, scale)])
    if valid_hw is not None:
        height, width = q.shape[1:3]
        out = [F.pad(attend(*(x[i, :h, :w].flatten(0, 1)[None] for x in (q, k, v)))
                     .unflatten(1, (h, w)), (0, 0, 0, 0, 0, width - w, 0, height - h))
               for i, (h, w) in enumerate(valid_hw.tolist())]
        return torch.cat(out) if out else _zeros(q, k, v, scale)
    return attend(q, k, v)


def _attend(q, k, v, scale, feature_map, normalizer, denom_min, eps):
    """(B, N, H, D), (B, M, H, D) and (B, M, H, Dv) to (B, N, H, Dv)."""
    dtype, num_keys = q.dtype, k.shape[1]
    if num_keys == 0:
        return _zeros(q, k, v, scale)
    with _no_autocast(q):
        q, k, v = (_widen(x).transpose(1, 2) for x in (q, k, v))  # (B, H, N, D)
        if feature_map == 'relu':
            q, k = q.relu(), k.relu()
        state = k.transpose(-2, -1) @ v  # (B, H, D, Dv)
        denom = q @ k.sum(-2, keepdim=True).transpose(-2, -1)  # (B, H, N, 1)
        if normalizer == 'clamp':
            out = q @ state / denom.clamp(min=denom_min)
        else:
            out = q @ (state / num_keys) / (denom / num_keys + eps)
        if scale is not None:
            out = out * (_widen(scale)[:, None, None] if isinstance(scale, Tensor) else scale)
        return out.transpose(1, 2).to(dtype).contiguous()


def focused_feature_map(x: Tensor, s: Tensor, power: float = 3, pos: Tensor | None = None) -> Tensor:
    """FLatten's feature map."""
    dtype = x.dtype
    with _no_autocast(x):
        x = _widen(x)
        if pos is not None:
            x = x + pos.to(x.dtype)
        u = (x.relu() + 1e-6) / F.softplus(s.to(x.dtype))
        # f(a u) = a f(u): within (0, 1], no power overflows.
        largest = u.detach().amax(-1, keepdim=True)
        u = u / largest
        focused = u**power
        ratio = u.norm(dim=-1, keepdim=True) / focused.norm(dim=-1, keepdim=True)
        return (largest * focused * ratio).to(dtype).contiguous()


def _widen(x: Tensor) -> Tensor:
    """Half precisions to float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _no_autocast(x: Tensor) -> contextlib.AbstractContextManager:
    """Autocast would put sums over tens of thousands of keys back into half precision."""
    kind = x.device.type
    available = torch.amp.is_autocast_available(kind)  # not so on the meta device
    return torch.autocast(kind, enabled=False) if available else contextlib.nullcontext()


def _zeros(q: Tensor, k: Tensor, v: Tensor, scale: Tensor | float | None) -> Tensor:
    """Zeros in the shape of the output, with a gradient: zeros to everything."""
    nothing = sum(x[:0].sum() for x in (k, v, scale) if isinstance(x, Tensor))
    return F.pad(q[..., :0], (0, v.shape[-1])) + nothing.to(q.dtype)
