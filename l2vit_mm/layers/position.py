"""Tables that are learned per position at one map size, for maps of any size."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2vit_mm.layers.layout import Layout

# Number of resized tables that are cached. A test set has two common sizes, landscape and portrait;
# a table at 800 x 1333 pixels and stride 4 takes 25 MB at 96 channels.
_KEPT_SIZES = 4


def resize_table(table: Tensor, height: int, width: int, mode: str) -> Tensor:
    """Resizes an (h, w, C) table to (height, width, C): half-pixel centers, no antialiasing."""
    if table.shape[:2] == (height, width):
        return table
    table = table.permute(2, 0, 1)[None]
    table = F.interpolate(table, (height, width), mode=mode, align_corners=False)
    return table[0].permute(1, 2, 0).contiguous()


class ResizedTable(nn.Module):
    """A learned table that can be loaded from a table of another size.

    Attributes:
        table (nn.Parameter): the table; subclasses say its shape.
    """

    table: nn.Parameter

    def fit(self, loaded: Tensor) -> Tensor:
        """Resizes and reshapes a loaded table to the shape of this one.

        Args:
            loaded (Tensor): a table of another size, perhaps with leading axes of length 1.

        Returns:
            Tensor: of the shape of ``table``, or ``loaded`` itself if the two do not match.
        """
        raise NotImplementedError


class PositionTable(ResizedTable):
    """A learned vector per position of a map, resized where the map has another size.

    Resized tables are cached for the last few sizes while nothing is learned: in eval mode and
    without gradients. The cache is emptied when the mode changes (mmengine's EMA swaps weights
    then), when weights are loaded and when the module is moved.

    Args:
        channels (int): C.
        size (tuple[int, int]): height h and width w of the map at which the table (h, w, C) is
            learned.
        mode (str): 'bicubic' (the default) or 'bilinear'.
    """

    def __init__(self, channels: int, size: tuple[int, int], mode: str = 'bicubic') -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(*size, channels))
        self.mode = mode
        self._cache: dict[tuple[int, int, int, bool], Tensor] = {}

    def forward(self, layout: Layout) -> Tensor:
        """The table at the layout's sizes, in a shape that broadcasts over its tokens (..., C)."""
        return layout.per_position(self._at)

    def _at(self, height: int, width: int) -> Tensor:
        if self.table.shape[:2] == (height, width):
            return self.table
        learning = self.training or (torch.is_grad_enabled() and self.table.requires_grad)
        # Inference tensors have no version counter to compare.
        if learning or torch.compiler.is_compiling() or self.table.is_inference():
            return resize_table(self.table, height, width, self.mode)
        # Tensors made in inference mode can't be used outside of it: cached separately.
        key = height, width, self.table._version, torch.is_inference_mode_enabled()
        if key not in self._cache:
            while len(self._cache) >= _KEPT_SIZES:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = resize_table(self.table.detach(), height, width, self.mode)
        return self._cache[key]

    def train(self, mode: bool = True) -> PositionTable:
        """As torch's; empties the cache."""
        self._cache.clear()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> PositionTable:
        self._cache.clear()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def fit(self, loaded: Tensor) -> Tensor:
        """Fits a published table (1, h * w, C) or one of ours (h, w, C).

        A published table with another number of positions is taken to be of a square map.
        """
        height, width, channels = self.table.shape
        if loaded.numel() == self.table.numel() and loaded.shape[-1] == channels:
            return loaded.reshape(self.table.shape)
        if loaded.ndim != 3 or loaded.shape[-1] != channels:
            return loaded
        if loaded.shape[0] == 1:
            side = math.isqrt(loaded.shape[1])
            if side * side != loaded.shape[1]:
                return loaded
            loaded = loaded.reshape(side, side, channels)
        # Half precision has no bicubic kernel on every device.
        return resize_table(loaded.float(), height, width, self.mode).to(loaded.dtype)

    def extra_repr(self) -> str:
        return f'{tuple(self.table.shape)}, mode={self.mode!r}'


class RelativePositionBias(ResizedTable):
    """Swin's relative position bias of window attention (arXiv 2103.14030): one number per head
    and offset between a query and a key. The table is ((2w - 1)^2, H).

    Args:
        num_heads (int): H.
        window_size (int): side w of the square windows in tokens.
    """

    def __init__(self, num_heads: int, window_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty((2 * window_size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        self.window_size = window_size

    def forward(self) -> Tensor:
        """The bias of each query and key of a window, (H, w * w, w * w)."""
        return self.table[self.index()].permute(2, 0, 1)

    def index(self) -> Tensor:
        """The row of the table for each query and key of a window, (w * w, w * w)."""
        w = self.window_size
        positions = torch.arange(w, device=self.table.device)
        offset = positions[:, None] - positions + w - 1  # (w, w): query minus key, along one axis
        index = offset[:, None, :, None] * (2 * w - 1) + offset[None, :, None, :]
        return index.reshape(w * w, w * w)

    def fit(self, loaded: Tensor) -> Tensor:
        """Fits a table ((2w - 1)^2, H), that of another window size bicubically, as Swin does."""
        side, num_heads = 2 * self.window_size - 1, self.table.shape[1]
        if loaded.shape == self.table.shape or loaded.ndim != 2 or loaded.shape[1] != num_heads:
            return loaded
        loaded_side = math.isqrt(loaded.shape[0])
        if loaded_side * loaded_side != loaded.shape[0]:
            return loaded
        grid = loaded.float().reshape(loaded_side, loaded_side, num_heads)
        return resize_table(grid, side, side, 'bicubic').reshape(-1, num_heads).to(loaded.dtype)
