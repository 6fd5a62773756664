"""The functions of mmcv's compiled module `mmcv._ext`, made of torchvision and PyTorch.

Each has the parameters that `mmcv/ops/*.py` passes: results are written into tensors that the
caller has allocated, and the scratch buffers of mmcv's kernels are ignored. A name that is not
defined here exists too, as mmcv asserts that it does, and raises an error when it is called.

CPU and CUDA run the same code. Half and bfloat16 inputs are computed in float32 and rounded once,
which is at least as accurate as mmcv's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor

from l2vit_mm.compat.mmcv_ops.deform_attention import (
    ms_deform_attn_backward,
    ms_deform_attn_forward,
)
from l2vit_mm.compat.mmcv_ops.deform_conv import (
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    deform_conv_forward,
    modulated_deform_conv_backward,
    modulated_deform_conv_forward,
)
from l2vit_mm.compat.mmcv_ops.focal_loss import (
    sigmoid_focal_loss_backward,
    sigmoid_focal_loss_forward,
)
from l2vit_mm.compat.mmcv_ops.precision import widen
from l2vit_mm.compat.mmcv_ops.roi_align import roi_align_backward, roi_align_forward
from l2vit_mm.compat.mmcv_ops.soft_nms import softnms

__all__ = [
    'deform_conv_backward_input',
    'deform_conv_backward_parameters',
    'deform_conv_forward',
    'get_compiler_version',
    'get_compiling_cuda_version',
    'modulated_deform_conv_backward',
    'modulated_deform_conv_forward',
    'ms_deform_attn_backward',
    'ms_deform_attn_forward',
    'nms',
    'roi_align_backward',
    'roi_align_forward',
    'sigmoid_focal_loss_backward',
    'sigmoid_focal_loss_forward',
    'softnms',
]


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
    boxes = widen(boxes)
    if offset:
        boxes = torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)
    # In mmcv the threshold is a C++ float: an IoU of exactly float32(0.1) does not exceed 0.1.
    threshold = float(np.float32(iou_threshold))
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), threshold)
