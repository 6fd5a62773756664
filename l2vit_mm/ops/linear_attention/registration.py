"""The compiled operators of linear attention: fake kernels, autograd, FLOP formulas, autocast.

``linear_attention`` takes q, k, v and ``linear_attention_qkvpacked`` qkv, then both ``scale`` (H,)
or None, a ``factor``, the sizes (cu_seqlens, cu_seqlens_k, valid_hw, or cu_seqlens, valid_hw) and
the options (relu, mean, denom_min, eps). They return the output, the state S (B, H, D, Dv) and the
sums of keys z (B, H, D), which backward needs.

FLOPs: every multiply-add of the products with S counts 2, as for matrix products in torch: two
products per token in forward (S, out), four in backward (dq, dS, dk, dv). The products with z,
which are Dv times fewer, and everything pointwise count 0. All tokens of the tensors count,
including those in no image, because a formula only knows shapes.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from l2vit_mm.ops import extension, library
from l2vit_mm.ops.precision import acc_dtype, no_autocast, promote

_Gradients = tuple[Tensor | None, ...]

MAX_HEAD_DIM = 0  # largest D and Dv of the compiled kernels


# Fake kernels


def _fake_output(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    images = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    heads, dim = q.shape[-2:]
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    state = q.new_empty((images, heads, dim, v.shape[-1]), dtype=acc_dtype(q))
    return out, state, q.new_empty((images, heads, dim), dtype=acc_dtype(q))


def _fake_dscale(scale: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(0) if scale is None else torch.empty_like(scale)


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor | None,
    factor: float,
    cu_seqlens: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_output(q, v, cu_seqlens)


def _fake_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return *(x.new_empty(x.shape) for x in (q, k, v)), _fake_dscale(scale, q)


def _fake_qkvpacked(
    qkv: Tensor, scale: Tensor | None, factor: float, cu_seqlens: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    q = qkv.select(-3, 0)
    return _fake_output(q, q, cu_seqlens)


def _fake_qkvpacked_backward(
    dout: Tensor, qkv: Tensor, scale: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor]:
    return qkv.new_empty(qkv.shape), _fake_dscale(scale, qkv)


# Autograd


def _save(
    ctx: Any,
    inputs: Sequence[Tensor],
    scale: Tensor | None,
    factor: float,
    sizes: Sequence[Tensor | None],
    options: Sequence[Any],
    output: Sequence[Tensor],
) -> None:
    _, state, key_sum = output
    ctx.mark_non_differentiable(state, key_sum)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, scale, state, key_sum, *sizes)
    ctx.factor, ctx.options = factor, options


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save(ctx, inputs[:3], inputs[3], inputs[4], inputs[5:8], inputs[8:], output)


def _backward(ctx: Any, dout: Tensor | None, *_: Any) -> _Gradients:
    if dout is None:
        return (None,) * 12
    q, k, v, scale, state, key_sum, *sizes = ctx.saved_tensors
    dq, dk, dv, dscale = torch.ops.l2vit_mm.linear_attention_backward(
        dout, q, k, v, scale, ctx.factor, state, key_sum, *sizes, *ctx.options
    )
    return dq, dk, dv, None if scale is None else dscale, *[None] * 8


def _setup_context_qkvpacked(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save(ctx, inputs[:1], inputs[1], inputs[2], inputs[3:5], inputs[5:], output)


def _backward_qkvpacked(ctx: Any, dout: Tensor | None, *_: Any) -> _Gradients:
    if dout is None:
        return (None,) * 9
    qkv, scale, state, key_sum, *sizes = ctx.saved_tensors
    dqkv, dscale = torch.ops.l2vit_mm.linear_attention_qkvpacked_backward(
        dout, qkv, scale, ctx.factor, state, key_sum, *sizes, *ctx.options
    )
    return dqkv, None if scale is None else dscale, *[None] * 7


# FLOPs, from the shapes q (..., H, D), k (..., H, D), v (..., H, Dv), qkv (..., 3, H, D)

_Shape = Sequence[int]


def _flops(q: _Shape, k: _Shape, v: _Shape, *_: Any, **__: Any) -> int:
    return 2 * v[-1] * (math.prod(q) + math.prod(k))


def _flops_backward(dout: _Shape, q: _Shape, k: _Shape, v: _Shape, *_: Any, **__: Any) -> int:
    return 2 * _flops(q, k, v)


def _flops_qkvpacked(qkv: _Shape, *_: Any, **__: Any) -> int:
    part = *qkv[:-3], *qkv[-2:]
    return _flops(part, part, part)


def _flops_qkvpacked_backward(dout: _Shape, qkv: _Shape, *_: Any, **__: Any) -> int:
    return 2 * _flops_qkvpacked(qkv)


# Autocast


def _autocast(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Sums are in float32 for all inputs, so autocast rounds nothing: it lets the types differ."""
    with no_autocast(q):
        return torch.ops.l2vit_mm.linear_attention(*promote(q, k, v), *rest)


if extension.load_error() is None:
    MAX_HEAD_DIM = torch.ops.l2vit_mm.max_head_dim()
    library.register_operator(
        'linear_attention',
        fake=_fake,
        setup_context=_setup_context,
        backward=_backward,
        flops=_flops,
    )
    library.register_backward(
        'linear_attention_backward', fake=_fake_backward, flops=_flops_backward
    )
    library.register_operator(
        'linear_attention_qkvpacked',
        fake=_fake_qkvpacked,
        setup_context=_setup_context_qkvpacked,
        backward=_backward_qkvpacked,
        flops=_flops_qkvpacked,
    )
    library.register_backward(
        'linear_attention_qkvpacked_backward',
        fake=_fake_qkvpacked_backward,
        flops=_flops_qkvpacked_backward,
    )
    library.register_autocast('linear_attention', _autocast)
