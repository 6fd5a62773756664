"""Deformable convolutions, with torchvision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from l2vit_mm.compat.mmcv_ops.precision import widen


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
    """Gradients of ``deform_conv_forward`` into gradInput (B, C, H, W) and gradOffset."""
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
    """``scale`` times the gradient for the weight, into gradWeight (C', C / group, kH, kW)."""
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
    """Gradients of ``modulated_deform_conv_forward``, for example into grad_input (B, C, H, W)."""
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
        widen(grad_output), *_deform_conv_arguments(*args)
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
    return (*widen(input, weight, offset, mask, bias), *geometry, use_mask)
