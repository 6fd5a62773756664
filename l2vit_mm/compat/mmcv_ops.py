"""The functions of mmcv's compiled module `mmcv._ext`, made of torchvision and PyTorch.

Each has the parameters that `mmcv/ops/*.py` passes: results are written into tensors that the
caller has allocated, and the scratch buffers of mmcv's kernels are ignored. A name that is not
defined here exists too, as mmcv asserts that it does, and raises an error when it is called.

CPU and CUDA run the same code. Half and bfloat16 inputs are computed in float32 and rounded once,
which is at least as accurate as mmcv's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from l2vit_mm.compat._soft_nms import softnms as softnms

# mmcv's kernels clamp probabilities to FLT_MIN before the logarithm, whatever their type.
_FLT_MIN = torch.finfo(torch.float32).tiny


def __getattr__(name: str) -> Callable:
    if name.startswith('__'):  # attributes that Python and pytest probe for
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f'mmcv op {name!r} is not supplied by torchvision: it needs an mmcv with compiled ops '
            '(docs/compat.md says how to build one)'
        )

    return missing


def get_compiler_version() -> str:
    """What mmcv's environment report prints as its compiler."""
    return 'not compiled'


def get_compiling_cuda_version() -> str:
    """What mmcv's environment report prints as its CUDA version."""
    return f'not compiled (operators of torchvision {torchvision.__version__})'


def _wide(*tensors: Tensor) -> Any:
    """Converts half precision to float32; leaves other types as they are."""
    wide = tuple(t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors)
    return wide if len(wide) > 1 else wide[0]


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Non-maximum suppression.

    Args:
        boxes (Tensor): (N, 4), x1, y1, x2, y2; a box is x2 - x1 + offset wide.
        scores (Tensor): (N,).
        iou_threshold (float): boxes that overlap a better one by more are dropped.
        offset (int): 0 or 1.

    Returns:
        Tensor: (K,), indices of the kept boxes, best score first.
    """
    boxes = _wide(boxes)
    if offset:
        boxes = torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)
    # In mmcv the threshold is a C++ float: an IoU of exactly float32(0.1) does not exceed 0.1.
    threshold = float(np.float32(iou_threshold))
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), threshold)


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
    input, rois = _wide(input, rois)
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
    grad_output, rois = _wide(grad_output, rois)
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
    y, x = _wide(argmax_y, argmax_x)
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


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Deformable convolution (arXiv 1703.06211) of (B, C, H, W), without modulation and bias."""
    _deform_conv(
        output,
        input,
        weight,
        offset,
        None,
        None,
        (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group),
    )


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Gradients of ``deform_conv_forward`` for input and offset, into tensors of their shapes."""
    grads = _deform_conv_backward(
        gradOutput,
        input,
        weight,
        offset,
        None,
        None,
        (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group),
    )
    gradInput.copy_(grads[0])
    gradOffset.copy_(grads[2])


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> None:
    """``scale`` times the gradient of ``deform_conv_forward`` for the weight, into gradWeight."""
    kernel = gradWeight.new_zeros(1).expand_as(gradWeight)  # the gradient does not depend on it
    grads = _deform_conv_backward(
        gradOutput,
        input,
        kernel,
        offset,
        None,
        None,
        (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group),
    )
    gradWeight.copy_(scale * grads[1])


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Modulated deformable convolution (arXiv 1811.11168) of (B, C, H, W) into (B, C', H', W')."""
    _deform_conv(
        output,
        input,
        weight,
        offset,
        mask,
        bias if with_bias else None,
        (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group),
    )


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Gradients of ``modulated_deform_conv_forward``, into tensors of the arguments' shapes."""
    grads = _deform_conv_backward(
        grad_output,
        input,
        weight,
        offset,
        mask,
        bias if with_bias else None,
        (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group),
    )
    for target, grad in zip(
        (grad_input, grad_weight, grad_offset, grad_mask), grads[:4], strict=True
    ):
        target.copy_(grad)
    if with_bias:
        grad_bias.copy_(grads[4])


def _deform_conv(output: Tensor, *args: Any) -> None:
    output.copy_(torch.ops.torchvision.deform_conv2d(*_deform_conv_arguments(*args)))


def _deform_conv_backward(grad_output: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Gradients of input, weight, offset, mask and bias."""
    return torch.ops.torchvision._deform_conv2d_backward(
        _wide(grad_output), *_deform_conv_arguments(*args)
    )


def _deform_conv_arguments(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    geometry: tuple[int, ...],
) -> tuple[Any, ...]:
    """torchvision's operator has no optional tensors: it takes placeholders and a flag."""
    use_mask = mask is not None
    if mask is None:
        mask = input.new_zeros(len(input), 1)
    if bias is None:
        bias = input.new_zeros(len(weight))
    return (*_wide(input, weight, offset, mask, bias), *geometry, use_mask)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss (arXiv 1708.02002, eq. 5) of logits (N, C), per element.

    Args:
        target: (N,), the class of each row; C means background.
        weight: (C,), the weight of each class, or empty. Background rows have weight 1.
        output: (N, C), receives the loss.
    """
    p, positive, class_weight = _focal_loss_terms(input, target, weight)
    loss = torch.where(
        positive,
        -alpha * (1 - p).pow(gamma) * p.clamp(min=_FLT_MIN).log(),
        -(1 - alpha) * p.pow(gamma) * (1 - p).clamp(min=_FLT_MIN).log(),
    )
    output.copy_(loss * class_weight)


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Derivative of `sigmoid_focal_loss_forward` for its input, per element, into (N, C)."""
    p, positive, class_weight = _focal_loss_terms(input, target, weight)
    log_p, log_q = p.clamp(min=_FLT_MIN).log(), (1 - p).clamp(min=_FLT_MIN).log()
    grad = torch.where(
        positive,
        -alpha * (1 - p).pow(gamma) * (1 - p - gamma * p * log_p),
        -(1 - alpha) * p.pow(gamma) * (gamma * (1 - p) * log_q - p),
    )
    grad_input.copy_(grad * class_weight)


def _focal_loss_terms(
    input: Tensor, target: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor | int]:
    """Probability (N, C), whether the element is its row's class (N, C), weight (N, 1) or 1."""
    p = _wide(input).sigmoid()
    positive = target[:, None] == torch.arange(input.shape[1], device=target.device)
    if weight.numel() == 0:
        return p, positive, 1
    weight = torch.cat((_wide(weight), weight.new_ones(1)))  # the last entry is background's
    return p, positive, weight[target, None]


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
    wide, locations, weights = _wide(value, sampling_loc, attn_weight)
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
    """Gradients of ``ms_deform_attn_forward``, into tensors of the arguments' shapes."""
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in _wide(value, sampling_loc, attn_weight)]
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
