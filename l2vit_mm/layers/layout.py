"""How the tokens of a batch of images lie in memory: known to this class alone."""
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """How maps are cut into windows for local attention; sizes in tokens.

    Args:
        height (int, optional): None: that of the map, which makes vertical stripes.
        width (int, optional): None: that of the map, which makes horizontal stripes.
        shift (bool): move the windows by half of their size (rounded down), along each axis where
            the map is larger than a window.
        clip (bool): make a window no larger than the map, instead of padding the map.
    """
    height: int | None
    width: int | None
    shift: bool = False
    clip: bool = False


@dataclass(frozen=True)
class TokenLayout:
    """Tokens of a batch of equally large feature maps, channels last.

    Blocks hold tokens (..., C) and ask the layout for every other form, so that they are written
    once for all layouts. Here the tokens are (B, H, W, C) and a map is a view of them.

    Args:
        batch (int): number of images, B.
        height (int): height of the maps in tokens, H.
        width (int): width of the maps in tokens, W.
    """
    batch: int
    height: int
    width: int

    @classmethod
    def of_map(cls, feature_map: Tensor) -> 'TokenLayout':
        """The layout of the tokens of a (B, C, H, W) map."""
        batch, _, height, width = feature_map.shape
        return cls(batch, height, width)

    def to_map(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as a (B, C, H, W) map in channels-last memory."""
        return tokens.permute(0, 3, 1, 2)

    def from_map(self, feature_map: Tensor) -> Tensor:
        """A (B, C, H, W) map of this layout as tokens (..., C)."""
        return feature_map.permute(0, 2, 3, 1)

    def to_sequences(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as one sequence an image, (B, H * W, C)."""
        return tokens.flatten(1, 2)

    def from_sequences(self, sequences: Tensor) -> Tensor:
        """Sequences (B, H * W, C) as tokens (..., C)."""
        return sequences.unflatten(1, (self.height, self.width))

    def to_windows(self, tokens: Tensor, window: Window) -> tuple[Tensor, 'TokenLayout']:
        """Cuts maps, zero-padded right and bottom, into windows, which are small maps.

        With a shift the padded map is rolled up and to the left before it is cut.

        Args:
            tokens (Tensor): (..., C).
            window (Window): the windows' size and shift.

        Returns:
            tuple[Tensor, TokenLayout]: tokens of all windows, image by image, row by row, and
            their layout.
        """
        h, w, shift = self._cut(window)
        pad_h, pad_w = -self.height % h, -self.width % w
        if pad_h or pad_w:
            tokens = F.pad(tokens, (0, 0, 0, pad_w, 0, pad_h))
        if any(shift):
            tokens = tokens.roll((-shift[0], -shift[1]), (1, 2))
        windows = rearrange(tokens, 'b (y h) (x w) c -> (b y x) h w c', h=h, w=w)
        return windows, TokenLayout(windows.shape[0], h, w)

    def from_windows(self, windows: Tensor, window: Window) -> Tensor:
        """Puts windows (as :meth:`to_windows` gives them) together and crops the padding."""
        h, w, shift = self._cut(window)
        rows, columns = -(-self.height // h), -(-self.width // w)
        tokens = rearrange(windows, '(b y x) h w c -> b (y h) (x w) c', y=rows, x=columns)
        if any(shift):
            tokens = tokens.roll(shift, (1, 2))
        return tokens[:, :self.height, :self.width]

    def window_parts(self, window: Window, device: torch.device) -> Tensor | None:
        """Which tokens of a shifted window were neighbours before the map was rolled.

        Returns:
            Tensor, optional: (windows of all images, h * w): numbers of the parts that each window
            consists of; None where nothing is shifted.
        """
        h, w, shift = self._cut(window)
        if not any(shift):
            return None
        rows, columns = -(-self.height // h), -(-self.width // w)
        # What was rolled over the edge is in the last rows and columns.
        y = torch.arange(rows * h, device=device) >= rows * h - shift[0]
        x = torch.arange(columns * w, device=device) >= columns * w - shift[1]
        parts = rearrange(2 * y[:, None] + x, '(y h) (x w) -> (y x) (h w)', h=h, w=w)
        return parts.repeat(self.batch, 1)

    def _cut(self, window: Window) -> tuple[int, int, tuple[int, int]]:
        """Height, width and shift of the windows on maps of this size."""
        h, w = window.height or self.height, window.width or self.width
        if window.clip:
            h, w = min(h, self.height), min(w, self.width)
        if not window.shift:
            return h, w, (0, 0)
        return h, w, (h // 2 if self.height > h else 0, w // 2 if self.width > w else 0)

    def per_image(self, values: Tensor) -> Tensor:
        """One value an image, (B,), in a shape that broadcasts over the tokens."""
        return values.view(-1, 1, 1, 1)

    def per_position(self, table: Callable[[int, int], Tensor]) -> Tensor:
        """What depends on a token's place alone, in a shape that broadcasts over the tokens.

        Args:
            table (Callable): height and width of a map to an (H, W, C) tensor.
        """
        return table(self.height, self.width)
