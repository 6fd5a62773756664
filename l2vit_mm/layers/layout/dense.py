"""Images of one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from l2vit_mm.layers.layout.base import Layout
from l2vit_mm.layers.layout.window import Window


@dataclass(frozen=True)
class DenseLayout(Layout):
    """Tokens (B, H, W, C) of images of one size; a map is a view of them.

    Args:
        batch (int): number of images, B.
        height (int): height of the maps in tokens, H.
        width (int): width of the maps in tokens, W.
    """

    batch: int
    height: int
    width: int

    @property
    def groups(self) -> tuple[tuple[int, int, int], ...]:  # type: ignore[override]
        return ((self.batch, self.height, self.width),)

    def reduced(self, stride: int) -> DenseLayout:
        return DenseLayout(self.batch, -(-self.height // stride), -(-self.width // stride))

    def enlarged(self, factor: int) -> DenseLayout:
        return DenseLayout(self.batch, factor * self.height, factor * self.width)

    # Maps

    def from_map(self, feature_map: Tensor) -> Tensor:
        return feature_map.permute(0, 2, 3, 1).contiguous()

    def to_map(self, tokens: Tensor, height: int, width: int) -> Tensor:
        return tokens.permute(0, 3, 1, 2)

    def over_maps(
        self, function: Callable[[Tensor], Tensor], tokens: Tensor, out_layout: Layout | None = None
    ) -> Tensor:
        return function(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def channels_first(self, tokens: Tensor) -> Tensor:
        return tokens.permute(0, 3, 1, 2)

    def channels_last(self, values: Tensor) -> Tensor:
        return values.permute(0, 2, 3, 1)

    # Sequences

    def to_sequences(self, tokens: Tensor) -> Tensor:
        return tokens.flatten(1, 2)

    def from_sequences(self, sequences: Tensor) -> Tensor:
        return sequences.unflatten(1, (self.height, self.width))

    def cu_seqlens(self, device: torch.device) -> Tensor | None:
        return None

    def split(self, tokens: Tensor) -> list[Tensor]:
        return [self.to_sequences(tokens)]

    def join(self, sequences: list[Tensor]) -> Tensor:
        return self.from_sequences(sequences[0])

    # Windows

    def to_windows(self, tokens: Tensor, window: Window | None) -> tuple[Tensor, Layout]:
        if window is None:
            return tokens, self
        h, w, *shift = window.cut(self.height, self.width)
        pad_h, pad_w = -self.height % h, -self.width % w
        if pad_h or pad_w:
            tokens = F.pad(tokens, (0, 0, 0, pad_w, 0, pad_h))
        if any(shift):
            tokens = tokens.roll((-shift[0], -shift[1]), (1, 2))
        windows = rearrange(tokens, 'b (y h) (x w) c -> (b y x) h w c', h=h, w=w)
        return windows, DenseLayout(windows.shape[0], h, w)

    def from_windows(self, windows: Tensor, window: Window | None) -> Tensor:
        if window is None:
            return windows
        h, w, *shift = window.cut(self.height, self.width)
        rows, columns = -(-self.height // h), -(-self.width // w)
        tokens = rearrange(windows, '(b y x) h w c -> b (y h) (x w) c', y=rows, x=columns)
        if any(shift):
            tokens = tokens.roll(tuple(shift), (1, 2))
        return tokens[:, : self.height, : self.width]

    def window_parts(self, window: Window, device: torch.device) -> Tensor | None:
        h, w, *shift = window.cut(self.height, self.width)
        if not any(shift):
            return None
        rows, columns = -(-self.height // h), -(-self.width // w)
        # The last rows and columns hold what was rolled over the edge.
        y = torch.arange(rows * h, device=device) >= rows * h - shift[0]
        x = torch.arange(columns * w, device=device) >= columns * w - shift[1]
        parts = rearrange(2 * y[:, None] + x, '(y h) (x w) -> (y x) (h w)', h=h, w=w)
        return parts.repeat(self.batch, 1)

    # Values per image or per position

    def per_image(self, values: Tensor) -> Tensor:
        return values.view(-1, 1, 1, 1)

    def per_position(self, table: Callable[[int, int], Tensor]) -> Tensor:
        return table(self.height, self.width)
