"""Attention cores: queries, keys and values to outputs, without input and output Linears.

Each is called with tokens q (..., C) of ``layout`` and k, v (..., C) of ``key_layout``, and returns
tokens (..., C) of ``layout``. Both layouts have the same images; they differ where keys come from a
reduced map. In the equations i is a query, j a key of the same image, M the number of keys, and D
the channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2vit_mm.layers.layout import Layout
from l2vit_mm.layers.position import PositionTable
from l2vit_mm.ops import focused_feature_map, linear_attention


def _groups(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, key_layout: Layout
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries (B', N, C), keys and values (B', M, C), group by group of images of one size."""
    return zip(layout.split(q), key_layout.split(k), key_layout.split(v), strict=True)


def _heads(tokens: Tensor, layout: Layout, num_heads: int) -> Tensor:
    """Tokens (..., C) to (B, N, H, D), or packed (T, H, D)."""
    return layout.to_sequences(tokens).unflatten(-1, (num_heads, -1))


def _linear(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, key_layout: Layout, feature_map: str
) -> Tensor:
    """The operator on q, k and v as :func:`_heads` returns them, to tokens (..., C)."""
    out = linear_attention(
        q,
        k,
        v,
        feature_map=feature_map,
        normalizer='mean',
        cu_seqlens=layout.cu_seqlens(q.device),
        cu_seqlens_k=None if key_layout == layout else key_layout.cu_seqlens(q.device),
    )
    return layout.from_sequences(out.flatten(-2))


class SharedDepthwiseConv(nn.Conv2d):
    """A depthwise convolution over the map of values, with the same weights for every head.

    Args:
        head_dim (int): D.
        kernel_size (int): side of the kernel, odd.
    """

    def __init__(self, head_dim: int, kernel_size: int) -> None:
        super().__init__(head_dim, head_dim, kernel_size, padding=kernel_size // 2, groups=head_dim)

    def forward(  # type: ignore[override]
        self,
        v: Tensor,
        key_layout: Layout,
        layout: Layout,
    ) -> Tensor:
        """Values (..., C) of ``key_layout`` to tokens (..., C) of ``layout``.

        Where the layouts differ, an image's values are first interpolated to its number of queries,
        linearly along the flattened sequence and not in the plane: surprising, but as published.
        """
        if key_layout != layout:
            v = layout.join(
                [
                    F.interpolate(values.transpose(1, 2), h * w, mode='linear').transpose(1, 2)
                    for values, (_, h, w) in zip(key_layout.split(v), layout.groups, strict=True)
                ]
            )
        channels = v.shape[-1]
        repeats = channels // self.in_channels
        assert self.bias is not None
        weight, bias = self.weight.repeat(repeats, 1, 1, 1), self.bias.repeat(repeats)
        return layout.over_maps(
            lambda maps: F.conv2d(maps, weight, bias, padding=self.padding, groups=channels), v
        )


class FocusedLinearAttention(nn.Module):
    """FLatten's focused linear attention (arXiv 2308.00442)::

        q' = f(q)    k' = f(k + P)      f: l2vit_mm.ops.focused_feature_map
        out_i = q'_i (sum_j k'_j^T v_j / M) / (q'_i . sum_j k'_j / M + 1e-6) + DWConv(v)_i

    P is a learned vector per position of the keys' map. DWConv has the same weights for every head.

    Args:
        channels (int): C.
        num_heads (int): H, a divisor of C.
        key_size (tuple[int, int]): height and width of the keys' map at which P is learned.
        focusing_factor (float): the power in f.
        kernel_size (int): side of the depthwise convolution's kernel, odd.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        key_size: tuple[int, int],
        focusing_factor: float = 3,
        kernel_size: int = 5,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.focusing_factor = focusing_factor
        self.scale = nn.Parameter(torch.zeros(channels))
        self.position = PositionTable(channels, key_size)
        self.dwc = SharedDepthwiseConv(channels // num_heads, kernel_size)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, key_layout: Layout
    ) -> Tensor:
        """Queries (..., C) of ``layout``, keys, values (..., C) of ``key_layout`` to (..., C)."""
        q = focused_feature_map(q, self.scale, self.focusing_factor)
        k = focused_feature_map(k, self.scale, self.focusing_factor, self.position(key_layout))
        out = _linear(
            _heads(q, layout, self.num_heads),
            _heads(k, key_layout, self.num_heads),
            _heads(v, key_layout, self.num_heads),
            layout,
            key_layout,
            'identity',
        )
        return out + self.dwc(v, key_layout, layout)


class SoftmaxAttention(nn.Module):
    """Softmax attention (arXiv 1706.03762)::

        out_i = sum_j softmax_j(q_i . k_j / sqrt(D)) v_j

    Args:
        num_heads (int): H.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, key_layout: Layout
    ) -> Tensor:
        """Queries (..., C) of ``layout``, keys, values (..., C) of ``key_layout`` to (..., C)."""
        outs = []
        for group in _groups(q, k, v, layout, key_layout):
            # Each (B', H, N, D).
            heads = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in group)
            outs.append(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2))
        return layout.join(outs)


class MappedLinearAttention(nn.Module):
    """Linear attention with a fixed feature map and, optionally, a local branch::

        out_i = sum_j (phi(q_i) . phi(k_j)) v_j / (sum_j phi(q_i) . phi(k_j) + 1e-6 M) + DWConv(v)_i

    - 'relu': phi(x) = max(x, 0).
    - 'elu': phi(x) = elu(x) + 1 (arXiv 2006.16236).
    - 'angular': phi(x) = (x / |x| / sqrt(pi), 1 / sqrt(2)), so that phi(q) . phi(k) is
      1/2 + q.k / pi of normalized q and k: the linear part of Castling-ViT's angular kernel
      (arXiv 2211.10526).

    With a depthwise convolution over the map of values, 'relu' is EfficientViT's enhanced linear
    attention (arXiv 2205.14756), 'angular' Castling-ViT's without its training-only branch.

    Args:
        channels (int): C.
        num_heads (int): H, a divisor of C.
        feature_map (str): 'relu', 'elu' or 'angular'.
        kernel_size (int, optional): side of the depthwise convolution's kernel, odd. None: there
            is no convolution.
    """

    def __init__(
        self, channels: int, num_heads: int, feature_map: str, kernel_size: int | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.feature_map = feature_map
        self.dwc = (
            None if kernel_size is None else SharedDepthwiseConv(channels // num_heads, kernel_size)
        )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, key_layout: Layout
    ) -> Tensor:
        """Queries (..., C) of ``layout``, keys, values (..., C) of ``key_layout`` to (..., C)."""
        out = _linear(
            self._map(_heads(q, layout, self.num_heads)),
            self._map(_heads(k, key_layout, self.num_heads)),
            _heads(v, key_layout, self.num_heads),
            layout,
            key_layout,
            'relu' if self.feature_map == 'relu' else 'identity',
        )
        return out if self.dwc is None else out + self.dwc(v, key_layout, layout)

    def _map(self, x: Tensor) -> Tensor:
        if self.feature_map == 'elu':
            return F.elu(x) + 1
        if self.feature_map == 'angular':
            return F.pad(F.normalize(x, dim=-1) / math.sqrt(math.pi), (0, 1), value=0.5**0.5)
        return x  # the operator applies ReLU


class HydraAttention(nn.Module):
    """Hydra attention (arXiv 2209.07484), with as many heads as channels::

    out_i = q_i / |q_i| * sum_j k_j / |k_j| * v_j       elementwise products
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, key_layout: Layout
    ) -> Tensor:
        """Queries (..., C) of ``layout``, keys, values (..., C) of ``key_layout`` to (..., C)."""
        dtype = torch.promote_types(v.dtype, torch.float32)
        outs = []
        for q_, k_, v_ in _groups(
            F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, layout, key_layout
        ):
            outs.append((q_ * (k_ * v_).sum(1, keepdim=True, dtype=dtype)).to(v.dtype))
        return layout.join(outs)


class EfficientAttention(nn.Module):
    """Efficient attention (arXiv 1812.01243): softmax of queries over the channels of a head, and
    of keys over positions::

        out_i = softmax_d(q_i) (sum_j softmax_j(k)_j^T v_j)

    Args:
        num_heads (int): H.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, key_layout: Layout
    ) -> Tensor:
        """Queries (..., C) of ``layout``, keys, values (..., C) of ``key_layout`` to (..., C)."""
        # Half precision can't represent weights of 1 / 60,000 well.
        dtype = torch.promote_types(v.dtype, torch.float32)
        outs = []
        for group in _groups(q, k, v, layout, key_layout):
            q_, k_, v_ = (x.unflatten(-1, (self.num_heads, -1)) for x in group)
            # q . sum_j k_j is 1, so that the operator's division changes nothing.
            out = linear_attention(
                q_.softmax(-1, dtype=dtype),
                k_.softmax(1, dtype=dtype),
                v_.to(dtype),
                feature_map='identity',
                denom_min=0.5,
            )
            outs.append(out.flatten(-2).to(v.dtype))
        return layout.join(outs)


ATTENTIONS = ('focused', 'hydra', 'efficient', 'angular', 'enhanced', 'relu', 'elu', 'softmax')


def build_attention(
    attention: str,
    channels: int,
    num_heads: int,
    key_size: tuple[int, int],
    focusing_factor: float = 3,
    kernel_size: int = 5,
) -> nn.Module:
    """Builds the attention core of a linear block.

    Args:
        attention (str): one of ``ATTENTIONS``. 'enhanced' is 'relu' with a depthwise convolution.
        channels (int): C.
        num_heads (int): H, a divisor of C; not used by 'hydra'.
        key_size (tuple[int, int]): as in :class:`FocusedLinearAttention`; used by 'focused' only.
        focusing_factor (float): likewise.
        kernel_size (int): side, odd, of the depthwise convolution's kernel of 'focused', 'angular'
            and 'enhanced'.

    Returns:
        nn.Module: one of the classes of this module.

    Raises:
        ValueError: if an argument is out of range.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f'attention must be one of {", ".join(ATTENTIONS)}, got {attention!r}')
    if not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f'kernel_size must be a positive odd integer, got {kernel_size!r}')
    if not focusing_factor > 0:
        raise ValueError(f'focusing_factor must be a positive number, got {focusing_factor!r}')
    if attention == 'focused':
        return FocusedLinearAttention(channels, num_heads, key_size, focusing_factor, kernel_size)
    if attention == 'softmax':
        return SoftmaxAttention(num_heads)
    if attention == 'hydra':
        return HydraAttention()
    if attention == 'efficient':
        return EfficientAttention(num_heads)
    if attention == 'enhanced':
        return MappedLinearAttention(channels, num_heads, 'relu', kernel_size)
    return MappedLinearAttention(
        channels, num_heads, attention, kernel_size if attention == 'angular' else None
    )
