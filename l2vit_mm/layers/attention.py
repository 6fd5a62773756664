"""Attention modules over the tokens of a :class:`Layout`, with their input and output Linears."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2vit_mm.layers.common import pad_to_multiple
from l2vit_mm.layers.layout import Layout, Window
from l2vit_mm.layers.position import RelativePositionBias
from l2vit_mm.ops import linear_attention_qkvpacked


class SelfAttention(nn.Module):
    """Self-attention over windows or whole maps: a qkv Linear, the core, the output Linear.

    Maps are zero-padded right and bottom to whole windows. The padding is attended to, as in the
    published code.

    Args:
        channels (int): C.
        core (nn.Module): the attention without its Linears, from :mod:`l2vit_mm.layers.cores`.
        window (Window, optional): size of the windows. None: whole maps.
    """

    def __init__(self, channels: int, core: nn.Module, window: Window | None = None) -> None:
        super().__init__()
        self.window = window
        self.qkv = nn.Linear(channels, 3 * channels)
        self.core = core
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        windows, window_layout = layout.to_windows(x, self.window)
        q, k, v = self.qkv(windows).chunk(3, -1)
        out = self.core(q, k, v, window_layout, window_layout)
        # The output Linear works token by token: after the crop there are fewer of them.
        return self.proj(layout.from_windows(out, self.window))


class LinearGlobalAttention(nn.Module):
    """L2ViT's linear global attention (arXiv 2501.16182): ReLU features, a learned temperature per
    head, a denominator of at least 100.

    Args:
        channels (int): C.
        num_heads (int): H, a divisor of C.
    """

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.temperature = nn.Parameter(torch.full((num_heads,), (channels // num_heads) ** -0.5))
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        qkv = layout.to_sequences(self.qkv(x)).unflatten(-1, (3, self.num_heads, -1))
        out = linear_attention_qkvpacked(
            qkv, scale=self.temperature, denom_min=100.0, cu_seqlens=layout.cu_seqlens(x.device)
        ).flatten(-2)
        return self.proj(layout.from_sequences(out))


class SpatialReductionAttention(nn.Module):
    """PVT's attention (arXiv 2102.12122): keys and values come from a map that a convolution
    reduces by r in height and width.

    Args:
        channels (int): C.
        core (nn.Module): the attention without its Linears, from :mod:`l2vit_mm.layers.cores`.
        reduction (int): r. Maps are zero-padded right and bottom to multiples of it. 1: keys and
            values come from the map itself.
    """

    def __init__(self, channels: int, core: nn.Module, reduction: int) -> None:
        super().__init__()
        self.q = nn.Linear(channels, channels)
        self.kv = nn.Linear(channels, 2 * channels)
        self.reduction = None
        if reduction > 1:
            self.reduction = nn.Conv2d(channels, channels, reduction, stride=reduction)
            self.reduction_norm = nn.LayerNorm(channels)
        self.core = core
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        q, reduced, key_layout = self.q(x), x, layout
        reduction = self.reduction
        if reduction is not None:
            stride = reduction.stride[0]
            key_layout = layout.reduced(stride)
            reduced = self.reduction_norm(
                layout.over_maps(
                    lambda maps: reduction(pad_to_multiple(maps, stride)), x, key_layout
                )
            )
        k, v = self.kv(reduced).chunk(2, -1)
        return self.proj(self.core(q, k, v, layout, key_layout))


class ShiftedWindowAttention(nn.Module):
    """Swin's softmax attention in windows with a relative position bias (arXiv 2103.14030).

    In a shifted window, tokens from different parts of the map do not attend to each other. Maps
    are zero-padded right and bottom to whole windows. The padding is attended to, as in the
    published code.

    Args:
        channels (int): C.
        num_heads (int): H, a divisor of C.
        window_size (int): side of the square windows in tokens.
        shift (bool): whether windows are shifted by half of their size.
    """

    def __init__(self, channels: int, num_heads: int, window_size: int, shift: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.window = Window(window_size, window_size, shift=shift)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.bias = RelativePositionBias(num_heads, window_size)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        windows, window_layout = layout.to_windows(x, self.window)
        qkv = window_layout.to_sequences(self.qkv(windows))
        qkv = qkv.unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (windows, H, n, D)
        bias = self.bias()[None].to(q.dtype)
        parts = layout.window_parts(self.window, x.device)
        if parts is not None:
            apart = parts[:, None, :, None] != parts[:, None, None, :]
            bias = bias.masked_fill(apart, -100.0)  # as published, not minus infinity
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out = window_layout.from_sequences(out.transpose(1, 2).flatten(2))
        return self.proj(layout.from_windows(out, self.window))
