"""Images of different sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from l2vit_mm.layers.layout.base import Layout
from l2vit_mm.layers.layout.dense import DenseLayout
from l2vit_mm.layers.layout.window import Window

# From this many numbers per image size, one call for each size is faster than copies to a padded
# batch and back: on a CPU a convolution, forward and backward, takes half a millisecond even on the
# smallest map.
_LARGE = 2**17


@dataclass(frozen=True)
class PackedLayout(Layout):
    """Tokens (T, C) of images of different sizes, one after the other, without padding.

    Args:
        groups (tuple[tuple[int, int, int], ...]): number, height and width in tokens of each run of
            consecutive images of one size.
    """

    groups: tuple[tuple[int, int, int], ...]
    # Index tensors, which every block of a stage needs.
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of_sizes(cls, sizes: Sequence[tuple[int, int]]) -> PackedLayout:
        """The layout of images with the given heights and widths in tokens."""
        return cls(tuple((len(list(same)), h, w) for (h, w), same in itertools.groupby(sizes)))

    @cached_property
    def batch(self) -> int:  # type: ignore[override]
        return sum(n for n, _, _ in self.groups)

    @cached_property
    def height(self) -> int:  # type: ignore[override]
        return max(h for _, h, _ in self.groups)

    @cached_property
    def width(self) -> int:  # type: ignore[override]
        return max(w for _, _, w in self.groups)

    @cached_property
    def num_tokens(self) -> int:
        """T."""
        return sum(n * h * w for n, h, w in self.groups)

    def reduced(self, stride: int) -> PackedLayout:
        # Groups of equal size are not merged: the groups of two layouts of the same images match.
        return PackedLayout(tuple((n, -(-h // stride), -(-w // stride)) for n, h, w in self.groups))

    def enlarged(self, factor: int) -> PackedLayout:
        return PackedLayout(tuple((n, factor * h, factor * w) for n, h, w in self.groups))

    # Index tensors

    def _sizes(self, device: torch.device) -> Tensor:
        """Height and width of each image, (B, 2)."""
        return torch.tensor([size for n, *size in self.groups for _ in range(n)], device=device)

    def _positions(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Image, row and column of each token, (T,) each."""
        if device not in self._cache:
            sizes = self._sizes(device)
            lengths = sizes[:, 0] * sizes[:, 1]
            image = torch.arange(self.batch, device=device).repeat_interleave(
                lengths, output_size=self.num_tokens
            )
            inside = torch.arange(self.num_tokens, device=device)
            inside = inside - (lengths.cumsum(0) - lengths)[image]
            width = sizes[:, 1][image]
            self._cache[device] = image, inside // width, inside % width
        return self._cache[device]

    def _map_indices(self, height: int, width: int, device: torch.device) -> Tensor:
        """Index of each token in a flattened (B, height, width) map, (T,)."""
        key = 'map', height, width, device
        if key not in self._cache:
            image, y, x = self._positions(device)
            self._cache[key] = (image * height + y) * width + x
        return self._cache[key]

    def _window_indices(self, window: Window, device: torch.device) -> tuple[Tensor, Layout]:
        """Index of each token among those of the windows, (T,), and the layout of the windows."""
        key = window, device
        if key not in self._cache:
            groups, table, start = [], [], 0
            for n, height, width in self.groups:
                h, w, shift_y, shift_x = window.cut(height, width)
                rows, columns = -(-height // h), -(-width // w)
                groups.append((n * rows * columns, h, w))
                for _ in range(n):
                    table.append((start, h, w, rows, columns, shift_y, shift_x))
                    start += rows * columns * h * w
            image, y, x = self._positions(device)
            indices = _index_in_windows(y, x, torch.tensor(table, device=device)[image])
            layout: Layout = PackedLayout(tuple(groups))
            if len({(h, w) for _, h, w in groups}) == 1:
                layout = DenseLayout(layout.batch, layout.height, layout.width)
            self._cache[key] = indices, layout
        return self._cache[key]

    # Maps

    def from_map(self, feature_map: Tensor) -> Tensor:
        batches = feature_map.split([n for n, _, _ in self.groups])
        return torch.cat(
            [
                batch[:, :, :h, :w].permute(0, 2, 3, 1).flatten(0, 2)
                for batch, (_, h, w) in zip(batches, self.groups, strict=True)
            ]
        )

    def to_map(self, tokens: Tensor, height: int, width: int) -> Tensor:
        indices = self._map_indices(height, width, tokens.device)
        rows = _Scatter.apply(tokens, indices, self.batch * height * width)
        return rows.view(self.batch, height, width, -1).permute(0, 3, 1, 2)

    def over_maps(
        self, function: Callable[[Tensor], Tensor], tokens: Tensor, out_layout: Layout | None = None
    ) -> Tensor:
        if tokens.numel() < _LARGE * len(self.groups):
            maps = function(self.to_map(tokens, self.height, self.width))
            layout = self if out_layout is None else out_layout
            assert isinstance(layout, PackedLayout)
            indices = layout._map_indices(maps.shape[2], maps.shape[3], maps.device)
            return _Gather.apply(maps.permute(0, 2, 3, 1).flatten(0, 2), indices)
        groups = (
            function(group.unflatten(1, (h, w)).permute(0, 3, 1, 2))
            for group, (_, h, w) in zip(self.split(tokens), self.groups, strict=True)
        )
        return torch.cat([group.permute(0, 2, 3, 1).flatten(0, 2) for group in groups])

    def channels_first(self, tokens: Tensor) -> Tensor:
        # As one image of height T and width 1. Not by t() and back: between two such views, torch
        # 2.14.1's BatchNorm computes a wrong gradient on the CPU.
        return tokens[None, :, None].permute(0, 3, 1, 2)

    def channels_last(self, values: Tensor) -> Tensor:
        return values.permute(0, 2, 3, 1)[0, :, 0]

    # Sequences

    def to_sequences(self, tokens: Tensor) -> Tensor:
        return tokens

    def from_sequences(self, sequences: Tensor) -> Tensor:
        return sequences

    def cu_seqlens(self, device: torch.device) -> Tensor | None:
        key = 'cu_seqlens', device
        if key not in self._cache:
            lengths = (h * w for n, h, w in self.groups for _ in range(n))
            self._cache[key] = torch.tensor(
                [0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device
            )
        return self._cache[key]

    def split(self, tokens: Tensor) -> list[Tensor]:
        parts = tokens.split([n * h * w for n, h, w in self.groups])
        return [
            part.unflatten(0, (n, h * w))
            for part, (n, h, w) in zip(parts, self.groups, strict=True)
        ]

    def join(self, sequences: list[Tensor]) -> Tensor:
        return torch.cat([group.flatten(0, 1) for group in sequences])

    # Windows

    def to_windows(self, tokens: Tensor, window: Window | None) -> tuple[Tensor, Layout]:
        if window is None:
            return tokens, self
        indices, layout = self._window_indices(window, tokens.device)
        if isinstance(layout, PackedLayout):
            return _Scatter.apply(tokens, indices, layout.num_tokens), layout
        rows = _Scatter.apply(tokens, indices, layout.batch * layout.height * layout.width)
        return rows.view(layout.batch, layout.height, layout.width, -1), layout

    def from_windows(self, windows: Tensor, window: Window | None) -> Tensor:
        if window is None:
            return windows
        indices, layout = self._window_indices(window, windows.device)
        if isinstance(layout, DenseLayout):
            windows = windows.flatten(0, 2)
        return _Gather.apply(windows, indices)

    def window_parts(self, window: Window, device: torch.device) -> Tensor | None:
        parts = [DenseLayout(n, h, w).window_parts(window, device) for n, h, w in self.groups]
        if all(part is None for part in parts):
            return None
        found = []
        for part, (n, height, width) in zip(parts, self.groups, strict=True):
            if part is None:
                h, w, *_ = window.cut(height, width)
                count = n * -(-height // h) * -(-width // w)
                part = torch.zeros(count, h * w, dtype=torch.long, device=device)
            found.append(part)
        return torch.cat(found)

    # Values per image or per position

    def per_image(self, values: Tensor) -> Tensor:
        return values[self._positions(values.device)[0]][:, None]

    def per_position(self, table: Callable[[int, int], Tensor]) -> Tensor:
        values = [table(h, w).flatten(0, 1).repeat(n, 1) for n, h, w in self.groups]
        return torch.cat(values)


def _index_in_windows(y: Tensor, x: Tensor, windows: Tensor) -> Tensor:
    """Indices of tokens among the tokens of all windows.

    Args:
        y (Tensor): row of each token in its image, (T,).
        x (Tensor): column, (T,).
        windows (Tensor): for the image of each token, (T, 7): the index of its first window's first
            token, height and width of a window, rows and columns of windows, vertical and
            horizontal shift.

    Returns:
        Tensor: (T,).
    """
    first, h, w, rows, columns, shift_y, shift_x = windows.unbind(1)
    y, x = (y - shift_y) % (rows * h), (x - shift_x) % (columns * w)
    return first + ((y // h * columns + x // w) * h + y % h) * w + x % w


class _Scatter(torch.autograd.Function):
    """Writes rows (T, C) to the given indices of (count, C), which is zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, indices: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(indices)
        return rows.new_zeros(count, rows.shape[1]).index_copy_(0, indices, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Gather.apply(gradient, *ctx.saved_tensors), None, None


class _Gather(torch.autograd.Function):
    """Rows at the given indices, which are distinct.

    Its backward writes where that of index_select, which can't know this, has to accumulate.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.count = rows.shape[0]
        return rows.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Scatter.apply(gradient, *ctx.saved_tensors, ctx.count), None
