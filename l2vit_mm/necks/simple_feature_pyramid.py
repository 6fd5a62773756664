"""A feature pyramid from the single map of a plain backbone."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn


class MapLayerNorm(nn.LayerNorm):
    """LayerNorm over the channels of (B, C, H, W) maps."""

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        return super().forward(feature_map.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """ViTDet's simple feature pyramid (arXiv 2203.16527): strides 4, 8, 16 and 32 from one map of
    stride 16.

    A 2x2 deconvolution of stride 2 halves the stride and the channels (for stride 4 there are two,
    with LayerNorm and GELU between them); 2x2 max pooling doubles the stride. Each level then has a
    1x1 and a 3x3 convolution without bias, each followed by LayerNorm. The initialization is this
    project's choice: deconvolutions truncated normal with std 0.02, convolutions uniform with
    variance 1 / fan-in.

    Args:
        in_channels (int): channels C of the backbone's map, a multiple of 4.
        out_channels (int): channels of every level.
        num_outs (int): number of levels, 4 or more. Levels after the fourth take every second value
            of the previous one, as in MM's FPN.
        init_cfg (dict | list, optional): as in MM.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from l2vit_mm.necks import SimpleFeaturePyramid
        >>> neck = SimpleFeaturePyramid(192, 256)
        >>> [tuple(y.shape) for y in neck((torch.rand(1, 192, 7, 9),))]
        [(1, 256, 28, 36), (1, 256, 14, 18), (1, 256, 7, 9), (1, 256, 4, 5)]
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        num_outs: int = 4,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if in_channels < 4 or in_channels % 4:
            raise ValueError(f'in_channels must be a positive multiple of 4, got {in_channels}')
        if out_channels < 1:
            raise ValueError(f'out_channels must be 1 or more, got {out_channels}')
        if not isinstance(num_outs, int) or num_outs < 4:
            raise ValueError(f'num_outs must be 4 or more, got {num_outs}')
        self.in_channels = in_channels
        self.num_outs = num_outs
        half, quarter = in_channels // 2, in_channels // 4
        self.rescale = nn.ModuleList(
            [
                nn.Sequential(
                    nn.ConvTranspose2d(in_channels, half, 2, 2),
                    MapLayerNorm(half, 1e-6),
                    nn.GELU(),
                    nn.ConvTranspose2d(half, quarter, 2, 2),
                ),
                nn.ConvTranspose2d(in_channels, half, 2, 2),
                nn.Identity(),
                nn.MaxPool2d(2, 2, ceil_mode=True),
            ]
        )
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, out_channels, 1, bias=False),
                MapLayerNorm(out_channels, 1e-6),
                nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                MapLayerNorm(out_channels, 1e-6),
            )
            for channels in (quarter, half, in_channels, in_channels)
        )
        for module in self.modules():
            if isinstance(module, nn.ConvTranspose2d):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=1)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps of the backbone, of which only the last is used, to a pyramid.

        Args:
            inputs (Sequence[Tensor]): maps of stride 16; the last one is (B, C, h, w).

        Returns:
            tuple[Tensor]: contiguous (B, out_channels, ...) maps of 4h x 4w, 2h x 2w, h x w,
            ceil(h / 2) x ceil(w / 2), and so on.

        Raises:
            ValueError: if the last map has another shape.
        """
        x = inputs[-1]
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f'inputs[-1] must have shape (B, {self.in_channels}, h, w), got {tuple(x.shape)}'
            )
        outs = [
            conv(rescale(x)).contiguous()
            for rescale, conv in zip(self.rescale, self.convs, strict=True)
        ]
        while len(outs) < self.num_outs:
            outs.append(F.max_pool2d(outs[-1], 1, stride=2))
        return tuple(outs)
