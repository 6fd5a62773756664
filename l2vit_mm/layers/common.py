"""Small modules that several backbones share."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from l2vit_mm.layers.layout import Layout
from l2vit_mm.layers.norm import batch_norm, build_batch_norm
from l2vit_mm.layers.position import PositionTable


def depthwise_conv(channels: int, kernel_size: int) -> nn.Conv2d:
    """A depthwise convolution that keeps the size of its (B, C, H, W) map."""
    return nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels)


def pad_to_multiple(feature_map: Tensor, divisor: int) -> Tensor:
    """Zero-pads (B, C, H, W) maps right and bottom until H and W are multiples of ``divisor``."""
    pad_h, pad_w = -feature_map.shape[-2] % divisor, -feature_map.shape[-1] % divisor
    return F.pad(feature_map, (0, pad_w, 0, pad_h)) if pad_h or pad_w else feature_map


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): drops a residual branch for whole images.

    Args:
        drop_prob (float): probability p of dropping, 0 <= p < 1.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C); in training, kept images are divided by 1 - p."""
        if not self.training or self.drop_prob == 0.0:
            return x
        keep = 1.0 - self.drop_prob
        kept = x.new_empty(layout.batch).bernoulli_(keep).div_(keep)
        return x * layout.per_image(kept)

    def extra_repr(self) -> str:
        return f'drop_prob={self.drop_prob:.3f}'


class MLP(nn.Module):
    """Linear, GELU, Linear on tokens (..., C).

    Args:
        channels (int): C.
        ratio (float): width of the hidden layer divided by C.
        depthwise (bool): add a 3x3 depthwise convolution before the GELU (PVTv2,
            arXiv 2106.13797).
    """

    def __init__(self, channels: int, ratio: float, depthwise: bool = False) -> None:
        super().__init__()
        hidden = int(channels * ratio)
        self.fc1 = nn.Linear(channels, hidden)
        self.dwconv = depthwise_conv(hidden, 3) if depthwise else None
        self.fc2 = nn.Linear(hidden, channels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        x = self.fc1(x)
        if self.dwconv is not None:
            x = layout.over_maps(self.dwconv, x)
        return self.fc2(F.gelu(x))


class TransformerBlock(nn.Module):
    """x + Attention(LN(x)), then x + MLP(LN(x)).

    Args:
        channels (int): C.
        attn (nn.Module): the attention, called with tokens (..., C) and their layout.
        mlp_ratio (float): hidden width of the MLP divided by C.
        drop_path (float): probability of dropping a branch.
        norm_eps (float): epsilon of the LayerNorms.
        depthwise_mlp (bool): whether the MLP has a depthwise convolution.
    """

    def __init__(
        self,
        channels: int,
        attn: nn.Module,
        mlp_ratio: float,
        drop_path: float,
        norm_eps: float = 1e-5,
        depthwise_mlp: bool = False,
    ) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(channels, norm_eps)
        self.attn = attn
        self.mlp_norm = nn.LayerNorm(channels, norm_eps)
        self.mlp = MLP(channels, mlp_ratio, depthwise_mlp)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        x = x + self.drop_path(self.attn(self.attn_norm(x), layout), layout)
        return x + self.drop_path(self.mlp(self.mlp_norm(x), layout), layout)


class ConditionalPositionEncoding(nn.Module):
    """x + DWConv3x3(x): encodes positions by the neighborhood of a token (CPVT, arXiv 2102.10882).

    Args:
        channels (int): C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = depthwise_conv(channels, 3)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        return x + layout.over_maps(self.conv, x)


class LocalConcentrationModule(nn.Module):
    """7x7 depthwise convolution, GELU, BatchNorm, 7x7 depthwise convolution (L2ViT,
    arXiv 2501.16182): concentrates the dispersed weights of linear attention.

    Args:
        channels (int): C.
        norm_cfg (dict): config of the BatchNorm.
    """

    def __init__(self, channels: int, norm_cfg: dict[str, Any]) -> None:
        super().__init__()
        self.conv1 = depthwise_conv(channels, 7)
        self.bn = build_batch_norm(norm_cfg, channels)
        self.conv2 = depthwise_conv(channels, 7)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        x = F.gelu(layout.over_maps(self.conv1, x))
        x = batch_norm(self.bn, x, layout)
        return layout.over_maps(self.conv2, x)


class PatchEmbedding(nn.Module):
    """A strided convolution, then optionally LayerNorm and a learned position embedding.

    Maps are zero-padded right and bottom to a multiple of the stride: sizes are rounded up.

    Args:
        in_channels (int): input channels.
        channels (int): output channels, C.
        kernel_size (int): side of the convolution's kernel.
        stride (int): stride of the convolution.
        padding (int): padding of the convolution, on all sides.
        norm (bool): whether LayerNorm follows the convolution.
        position (PositionTable, optional): position embedding that is added last.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel_size: int,
        stride: int,
        padding: int = 0,
        norm: bool = True,
        position: PositionTable | None = None,
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, channels, kernel_size, stride, padding)
        self.norm = nn.LayerNorm(channels) if norm else None
        self.position = position

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Pixels or tokens (..., in_channels) to tokens (..., C), and their layout."""
        stride = self.proj.stride[0]
        reduced = layout.reduced(stride)
        x = layout.over_maps(lambda maps: self.proj(pad_to_multiple(maps, stride)), x, reduced)
        if self.norm is not None:
            x = self.norm(x)
        if self.position is not None:
            x = x + self.position(reduced)
        return x, reduced


class ConvStem(nn.Module):
    """Two 3x3 convolutions of stride 2 with BatchNorm and a ReLU between them, then LayerNorm.

    Turns an image into tokens of stride 4. Sizes are rounded up.

    Args:
        in_channels (int): channels of the image.
        channels (int): C.
        norm_cfg (dict): config of the BatchNorms.
    """

    def __init__(self, in_channels: int, channels: int, norm_cfg: dict[str, Any]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels // 2, 3, stride=2, padding=1)
        self.bn1 = build_batch_norm(norm_cfg, channels // 2)
        self.conv2 = nn.Conv2d(channels // 2, channels, 3, stride=2, padding=1)
        self.bn2 = build_batch_norm(norm_cfg, channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Pixels (..., in_channels) of h x w images to tokens (..., C) of
        ceil(h / 4) x ceil(w / 4) maps, and their layout."""
        reduced = layout.reduced(4)
        # Between the convolutions a map extends over its padded image.
        halfway = reduced.enlarged(2)
        x = layout.over_maps(lambda maps: self.conv1(pad_to_multiple(maps, 4)), x, halfway)
        x = F.relu(batch_norm(self.bn1, x, halfway))
        x = batch_norm(self.bn2, halfway.over_maps(self.conv2, x, reduced), reduced)
        return self.norm(x), reduced


class Downsample(nn.Module):
    """LayerNorm, then a 2x2 convolution of stride 2. Sizes are rounded up.

    Args:
        in_channels (int): input channels.
        channels (int): output channels, C.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(in_channels)
        self.proj = nn.Conv2d(in_channels, channels, 2, stride=2)

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Tokens (..., in_channels) of H x W maps to tokens (..., C) of ceil(H / 2) x ceil(W / 2)
        maps, and their layout."""
        reduced = layout.reduced(2)
        x = layout.over_maps(
            lambda maps: self.proj(pad_to_multiple(maps, 2)), self.norm(x), reduced
        )
        return x, reduced
