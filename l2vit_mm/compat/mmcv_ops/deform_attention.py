"""Multi-scale deformable attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from l2vit_mm.compat.mmcv_ops.precision import widen


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    im2col_step: int,
) -> Tensor:
    """Multi-scale deformable attention (arXiv 2010.04159, eq. 3), before the output projection.

    Args:
        value: (B, sum of H * W over the levels, heads, D).
        spatial_shapes: (L, 2), height and width of each level.
        sampling_loc: (B, Q, heads, L, P, 2), x and y in [0, 1] over the map of the level.
        attn_weight: (B, Q, heads, L, P).

    Returns:
        Tensor: (B, Q, heads * D), of the type of ``value``.
    """
    wide, locations, weights = widen(value, sampling_loc, attn_weight)
    return _ms_deform_attn(wide, locations, weights, spatial_shapes).to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Gradients of ``ms_deform_attn_forward``, into tensors of the arguments' shapes.

    Args:
        grad_output: (B, Q, heads * D).
    """
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in widen(value, sampling_loc, attn_weight)]
        output = _ms_deform_attn(inputs[0], inputs[1], inputs[2], spatial_shapes)
    grads = torch.autograd.grad(output, inputs, grad_output.to(output.dtype))
    for target, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads, strict=True):
        target.copy_(grad)


def _ms_deform_attn(
    value: Tensor, sampling_loc: Tensor, attn_weight: Tensor, spatial_shapes: Tensor
) -> Tensor:
    batch, _, heads, dim = value.shape
    queries = sampling_loc.shape[1]
    shapes = spatial_shapes.tolist()
    # grid_sample gets each head as an image; it counts from -1 to 1 over the map.
    maps = value.permute(0, 2, 3, 1).flatten(0, 1).split([h * w for h, w in shapes], dim=-1)
    grids = (2 * sampling_loc - 1).transpose(1, 2).flatten(0, 1)  # (B * heads, Q, L, P, 2)
    weights = attn_weight.transpose(1, 2).flatten(0, 1)  # (B * heads, Q, L, P)
    output = value.new_zeros(batch * heads, dim, queries)
    for level, (height, width) in enumerate(shapes):
        samples = F.grid_sample(
            maps[level].unflatten(-1, (height, width)),
            grids[:, :, level],
            mode='bilinear',
            padding_mode='zeros',
            align_corners=False,
        )
        output = output + (samples * weights[:, None, :, level]).sum(-1)
    return output.view(batch, heads * dim, queries).transpose(1, 2).contiguous()
