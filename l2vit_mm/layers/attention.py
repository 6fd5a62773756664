"""Attentions over the tokens of a :class:`TokenLayout`."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2vit_mm.layers.layout import TokenLayout
from l2vit_mm.ops import linear_attention_qkv


class WindowAttention(nn.Module):
    """Softmax attention inside windows, with no position bias and no shift (L2ViT's local half).

    Maps are zero-padded right and bottom to whole windows; the padding takes part, as published.

    Args:
        channels (int): C.
        num_heads (int): H, a divisor of C.
        window_size (int): side of the square windows in tokens.
    """

    def __init__(self, channels: int, num_heads: int, window_size: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.window = (window_size, window_size)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        windows = layout.to_windows(x, self.window)
        qkv = self.qkv(windows).unflatten(-1, (3, self.num_heads, -1))  # (windows, n, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (windows, H, n, D)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        # The output Linear works a token at a time: after the crop it has less to do.
        return self.proj(layout.from_windows(out, self.window))


class EnhancedLinearAttention(nn.Module):
    """L2ViT's linear global attention (arXiv 2501.16182): ReLU features, a learnt temperature a
    head, a normaliser of at least 100.

    Args:
        channels (int): C.
        num_heads (int): H, a divisor of C.
    """

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.temperature = nn.Parameter(torch.full((num_heads,), (channels // num_heads)**-0.5))
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        qkv = layout.to_sequences(self.qkv(x)).unflatten(-1, (3, self.num_heads, -1))
        out = linear_attention_qkv(qkv, scale=self.temperature, denom_min=100.).flatten(-2)
        return self.proj(layout.from_sequences(out))
