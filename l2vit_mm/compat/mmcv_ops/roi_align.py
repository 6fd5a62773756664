"""RoIAlign: the average with torchvision, the maximum in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from l2vit_mm.compat.mmcv_ops.precision import widen


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """RoIAlign of (B, C, H, W) at (K, 5) RoIs into (K, C, aligned_height, aligned_width).

    Args:
        pool_mode: 0 for the maximum of a bin's samples, 1 for their average.
        argmax_y, argmax_x: with pool_mode 0, receive the position of the maximum, in pixels; shape
            as ``output``.
    """
    input, rois = widen(input, rois)
    if pool_mode == 1:
        output.copy_(
            torch.ops.torchvision.roi_align(
                input, rois, spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
            )
        )
        return

    shift = 0.5 if aligned else 0.0
    for k, roi in enumerate(rois):
        x1, y1, x2, y2 = roi[1:] * spatial_scale - shift
        y, grid_h = _sample_positions(y1, y2, aligned_height, sampling_ratio, aligned)
        x, grid_w = _sample_positions(x1, x2, aligned_width, sampling_ratio, aligned)
        if grid_h * grid_w == 0:  # an empty RoI: mmcv returns the initial value of its search
            output[k], argmax_y[k], argmax_x[k] = -10000, -1, -1
            continue
        # (PH, PW, grid_h * grid_w): the samples of a bin, row by row
        shape = (aligned_height, aligned_width, grid_h, grid_w)
        y = y.view(aligned_height, 1, grid_h, 1).expand(shape).flatten(2)
        x = x.view(1, aligned_width, 1, grid_w).expand(shape).flatten(2)
        image = input[int(roi[0])].flatten(1)  # (C, H * W)
        value: Any = sum(
            weight * image[:, index] for index, weight in _corners(y, x, *input.shape[2:])
        )
        largest, which = value.max(dim=-1)  # the first of equals
        found = largest > -10000
        output[k] = largest.clamp(min=-10000)
        for argmax, position in ((argmax_y, y), (argmax_x, x)):
            position = position.expand_as(value).gather(-1, which[..., None])[..., 0]
            argmax[k] = torch.where(found, position, -1)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Gradient of `roi_align_forward` for its input, into a zero-filled grad_input (B, C, H, W)."""
    grad_output, rois = widen(grad_output, rois)
    if pool_mode == 1:
        grad_input.copy_(
            torch.ops.torchvision._roi_align_backward(
                grad_output,
                rois,
                spatial_scale,
                aligned_height,
                aligned_width,
                *grad_input.shape,
                sampling_ratio,
                aligned,
            )
        )
        return

    channels, height, width = grad_input.shape[1:]
    y, x = widen(argmax_y, argmax_x)
    plane = rois[:, 0].long().view(-1, 1) * channels + torch.arange(channels, device=rois.device)
    start = (plane * (height * width)).view(*plane.shape, 1, 1)  # of each (RoI, channel) in memory
    total = grad_output.new_zeros(grad_input.numel())
    grad_output = torch.where(y == -1, 0, grad_output)
    for index, weight in _corners(y, x, height, width):
        total.index_add_(0, (start + index).flatten(), (grad_output * weight).flatten())
    grad_input.copy_(total.view_as(grad_input))


def _sample_positions(
    low: Tensor, high: Tensor, bins: int, sampling_ratio: int, aligned: bool
) -> tuple[Tensor, int]:
    """Positions (bins, grid) of the samples along one side of a RoI, and grid."""
    length = high - low
    if not aligned:
        length = length.clamp(min=1)
    size = length / bins
    grid = sampling_ratio if sampling_ratio > 0 else int(torch.ceil(size))
    bin_start = low + torch.arange(bins, dtype=low.dtype, device=low.device) * size
    within = (torch.arange(grid, dtype=low.dtype, device=low.device) + 0.5) * size / max(grid, 1)
    return bin_start[:, None] + within, grid


def _corners(y: Tensor, x: Tensor, height: int, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Flat index and bilinear weight of the four pixels around each position.

    A position more than one pixel outside the map has weight 0; closer ones move to the border.
    """
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    y_low, x_low = y.long(), x.long()
    y_high, x_high = (y_low + 1).clamp(max=height - 1), (x_low + 1).clamp(max=width - 1)
    ly, lx = y - y_low, x - x_low
    hy, hx = 1 - ly, 1 - lx
    for row, column, weight in (
        (y_low, x_low, hy * hx),
        (y_low, x_high, hy * lx),
        (y_high, x_low, ly * hx),
        (y_high, x_high, ly * lx),
    ):
        yield row * width + column, torch.where(inside, weight, 0)
