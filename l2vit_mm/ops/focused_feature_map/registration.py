"""The compiled operator of the focused feature map: fake kernels, autograd, FLOP formulas.

It takes x (..., C), s of C values, pos (N, C) or None, and the power.
"""

from typing import Any

import torch
from torch import Tensor

from l2vit_mm.ops import extension, library
from l2vit_mm.ops.precision import acc_dtype


def _fake(x: Tensor, s: Tensor, pos: Tensor | None, power: float) -> Tensor:
    return x.new_empty(x.shape)


def _fake_backward(
    dout: Tensor, x: Tensor, s: Tensor, pos: Tensor | None, power: float
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(s)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.power = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    x, s, pos = ctx.saved_tensors
    dx, ds = torch.ops.l2vit_mm.focused_feature_map_backward(dout, x, s, pos, ctx.power)
    dpos = None
    if ctx.needs_input_grad[2]:
        repeats = x.numel() // max(pos.numel(), 1)
        dpos = dx.reshape(repeats, *pos.shape).sum(0, dtype=acc_dtype(x)).to(pos.dtype)
    return dx, ds, dpos, None


def _flops(*_: Any, **__: Any) -> int:
    """Pointwise operations and norms count 0, as in torch."""
    return 0


if extension.load_error() is None:
    library.register_operator(
        'focused_feature_map',
        fake=_fake,
        setup_context=_setup_context,
        backward=_backward,
        flops=_flops,
    )
    library.register_backward('focused_feature_map_backward', fake=_fake_backward, flops=_flops)
