"""BatchNorm layers by their names in MM configs, without mmcv."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from l2vit_mm.layers.layout import Layout

BATCH_NORMS = {
    'BN': nn.BatchNorm2d,
    'BN2d': nn.BatchNorm2d,
    'SyncBN': nn.SyncBatchNorm,
}


def build_batch_norm(norm_cfg: dict[str, Any], channels: int) -> nn.Module:
    """Builds a BatchNorm for (B, C, H, W) maps.

    Args:
        norm_cfg (dict): as in MM: ``type`` (one of ``BATCH_NORMS``), ``requires_grad`` (default
            True) and the arguments of the torch class (``eps``, ``momentum``, ...).
        channels (int): C.

    Returns:
        nn.Module: the BatchNorm.

    Raises:
        ValueError: if the type is not one of ``BATCH_NORMS``.
    """
    cfg = dict(norm_cfg)
    kind = cfg.pop('type', None)
    if kind not in BATCH_NORMS:
        raise ValueError(f'norm_cfg.type must be one of {", ".join(BATCH_NORMS)}, got {kind!r}')
    requires_grad = cfg.pop('requires_grad', True)
    norm = BATCH_NORMS[kind](channels, **cfg)
    norm.requires_grad_(requires_grad)
    return norm


def batch_norm(norm: nn.Module, tokens: Tensor, layout: Layout) -> Tensor:
    """Applies a BatchNorm to tokens (..., C); padding is not part of the statistics."""
    return layout.channels_last(norm(layout.channels_first(tokens)))
