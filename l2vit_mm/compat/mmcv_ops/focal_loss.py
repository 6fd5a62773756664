"""Sigmoid focal loss."""

from __future__ import annotations

import torch
from torch import Tensor

from l2vit_mm.compat.mmcv_ops.precision import widen

# mmcv's kernels clamp probabilities to FLT_MIN before the logarithm, whatever their type.
_FLT_MIN = torch.finfo(torch.float32).tiny


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
    p = widen(input).sigmoid()
    positive = target[:, None] == torch.arange(input.shape[1], device=target.device)
    if weight.numel() == 0:
        return p, positive, 1
    weight = torch.cat((widen(weight), weight.new_ones(1)))  # the last entry is background's
    return p, positive, weight[target, None]
