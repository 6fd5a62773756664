"""How the tokens of a batch of images lie in memory: known to this class alone."""
from dataclasses import dataclass

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor


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

    def to_windows(self, tokens: Tensor, window: tuple[int, int]) -> Tensor:
        """Cuts maps, zero-padded right and bottom, into windows.

        Args:
            tokens (Tensor): (..., C).
            window (tuple[int, int]): height h and width w of a window in tokens.

        Returns:
            Tensor: (windows of all images, h * w, C).
        """
        h, w = window
        pad_h, pad_w = -self.height % h, -self.width % w
        if pad_h or pad_w:
            tokens = F.pad(tokens, (0, 0, 0, pad_w, 0, pad_h))
        return rearrange(tokens, 'b (y h) (x w) c -> (b y x) (h w) c', h=h, w=w)

    def from_windows(self, windows: Tensor, window: tuple[int, int]) -> Tensor:
        """Puts windows (as :meth:`to_windows` gives them) together and crops the padding."""
        h, w = window
        rows, columns = -(-self.height // h), -(-self.width // w)
        tokens = rearrange(windows, '(b y x) (h w) c -> b (y h) (x w) c', y=rows, x=columns, h=h)
        return tokens[:, :self.height, :self.width]

    def per_image(self, values: Tensor) -> Tensor:
        """One value an image, (B,), in a shape that broadcasts over the tokens."""
        return values.view(-1, 1, 1, 1)
