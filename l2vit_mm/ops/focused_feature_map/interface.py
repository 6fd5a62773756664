"""The public function of the focused feature map: arguments, checks, and the choice of the
backend."""

import torch
from torch import Tensor

from l2vit_mm.ops.checks import check_device, check_floating, check_positive
from l2vit_mm.ops.extension import use_compiled
from l2vit_mm.ops.focused_feature_map import reference, registration  # noqa: F401


def focused_feature_map(
    x: Tensor, s: Tensor, power: float = 3, pos: Tensor | None = None, *, backend: str = 'auto'
) -> Tensor:
    """Computes FLatten's feature map f(x + pos) over all channels of a token (arXiv 2308.00442)::

        u = (relu(x + pos) + 1e-6) / softplus(s)        f = u^power * ||u|| / ||u^power||

    It sharpens the direction of u and preserves its norm. Computed in float32 (float64 for float64)
    in one pass, so that large activations in half precision stay finite.

    Args:
        x (Tensor): (..., C), queries or keys before they are split into heads.
        s (Tensor): the learned ``scale`` as published, before softplus; C values of any
            floating-point type. Below about -80, u overflows float32.
        power (float): p, the published ``focusing_factor``; positive.
        pos (Tensor, optional): position encoding of any floating-point type. Its shape without
            leading 1s is the end of the shape of x: (N, C) or (1, N, C) for x (B, N, C).
        backend (str): as in :func:`~l2vit_mm.ops.linear_attention`.

    Returns:
        Tensor: like x, contiguous.

    Raises:
        TypeError, ValueError, RuntimeError: as in :func:`~l2vit_mm.ops.linear_attention`.
    """
    check_floating('x', x)
    check_floating('s', s)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f'x must have shape (..., C) with C at least 1, got {tuple(x.shape)}')
    channels = x.shape[-1]
    if s.ndim == 0 or s.shape[-1] != channels or s.numel() != channels:
        raise ValueError(
            f's must have shape ({channels},), optionally with leading 1s, for x '
            f'{tuple(x.shape)}, got {tuple(s.shape)}'
        )
    check_device('s', s, 'x', x)
    if pos is not None:
        check_floating('pos', pos)
        check_device('pos', pos, 'x', x)
        shape = _without_leading_ones(pos)
        if pos.ndim == 0 or pos.shape[-1] != channels or shape != x.shape[x.ndim - len(shape) :]:
            raise ValueError(
                'pos must have a shape that, without leading 1s, is the end of that '
                f'of x {tuple(x.shape)}, got {tuple(pos.shape)}'
            )
    check_positive('power', power)

    if use_compiled(backend, x.device):
        if pos is not None:
            pos = pos.reshape(-1, channels)
        out: Tensor = torch.ops.l2vit_mm.focused_feature_map(x, s, pos, power)
        return out
    if pos is not None:
        pos = pos.reshape(_without_leading_ones(pos))
    return reference.focused_feature_map(x, s.reshape(-1), power, pos)


def _without_leading_ones(x: Tensor) -> torch.Size:
    shape = x.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
