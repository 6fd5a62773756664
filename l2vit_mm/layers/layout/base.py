"""How the tokens of a batch of images lie in memory: what blocks may ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from l2vit_mm.layers.layout.window import Window


class Layout(ABC):
    """How the tokens of a batch of images lie in memory, channels last.

    Blocks hold tokens (..., C) and ask the layout for every other form, so that they are written
    once: for :class:`DenseLayout`, images of one size, and :class:`PackedLayout`, images of
    different sizes without padding.

    Attributes:
        batch (int): number of images, B.
        height (int): height of the highest map in tokens, H.
        width (int): width of the widest map in tokens, W.
        groups (tuple[tuple[int, int, int], ...]): number, height and width of neighboring images of
            one size.
    """

    batch: int
    height: int
    width: int
    groups: tuple[tuple[int, int, int], ...]

    @abstractmethod
    def reduced(self, stride: int) -> Layout:
        """The layout after a convolution with a stride: sizes rounded up."""

    @abstractmethod
    def enlarged(self, factor: int) -> Layout:
        """The layout of maps that are some times as high and wide."""

    # Maps

    @abstractmethod
    def from_map(self, feature_map: Tensor) -> Tensor:
        """A batch of maps as tokens.

        Args:
            feature_map (Tensor): (B, C, Y, X), of at least the maps' sizes; what is outside of an
                image is not read.

        Returns:
            Tensor: (..., C).
        """

    @abstractmethod
    def to_map(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Tokens as a batch of maps.

        Args:
            tokens (Tensor): (..., C).
            height (int): of the batch, in tokens, at least H.
            width (int): of the batch, in tokens, at least W.

        Returns:
            Tensor: (B, C, height, width) in channels-last memory, zero outside of an image.
        """

    @abstractmethod
    def over_maps(self, function: Callable[[Tensor], Tensor], tokens: Tensor,
                  out_layout: Layout | None = None) -> Tensor:
        """Applies a function to the maps, as a convolution that sees zeros beyond an image.

        Args:
            function (Callable): (B', C, H', W') maps in channels-last memory to others, in which a
                position depends on positions nearby alone. It gets all maps at once, padded with
                zeros right and bottom, or those of one size at a time.
            tokens (Tensor): (..., C).
            out_layout (Layout, optional): the layout of the result. None: this one.

        Returns:
            Tensor: tokens (..., C') of the maps that the function gave.
        """

    @abstractmethod
    def channels_first(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as a view (X, C, Y, Z) of no tokens but theirs, for BatchNorm."""

    @abstractmethod
    def channels_last(self, values: Tensor) -> Tensor:
        """What :meth:`channels_first` gave, as tokens (..., C)."""

    # Sequences

    @abstractmethod
    def to_sequences(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as the operators take them: (B, H * W, C), or packed (T, C)."""

    @abstractmethod
    def from_sequences(self, sequences: Tensor) -> Tensor:
        """What :meth:`to_sequences` gave, as tokens (..., C)."""

    @abstractmethod
    def cu_seqlens(self, device: torch.device) -> Tensor | None:
        """Where each image begins, and the last one ends, in packed tokens: (B + 1,), int32. None
        where the sequences are not packed."""

    @abstractmethod
    def split(self, tokens: Tensor) -> list[Tensor]:
        """Tokens (..., C), group by group: (B', H' * W', C) each."""

    @abstractmethod
    def join(self, sequences: list[Tensor]) -> Tensor:
        """What :meth:`split` gave, as tokens (..., C)."""

    # Windows

    @abstractmethod
    def to_windows(self, tokens: Tensor, window: Window | None) -> tuple[Tensor, Layout]:
        """Cuts maps, zero-padded right and bottom, into windows, which are small maps.

        With a shift the padded map is rolled up and to the left before it is cut.

        Args:
            tokens (Tensor): (..., C).
            window (Window, optional): the windows' size and shift. None: whole maps, as they are.

        Returns:
            tuple[Tensor, Layout]: tokens (..., C) of all windows, image by image, row by row, and
            their layout.
        """

    @abstractmethod
    def from_windows(self, windows: Tensor, window: Window | None) -> Tensor:
        """What :meth:`to_windows` gave, put together and without the padding: (..., C)."""

    @abstractmethod
    def window_parts(self, window: Window, device: torch.device) -> Tensor | None:
        """Which tokens of a shifted window were neighbors before the map was rolled.

        Returns:
            Tensor, optional: (windows of all images, h * w): numbers of the parts that each window
            consists of. None where nothing is shifted.
        """

    # Values per image or per position

    @abstractmethod
    def per_image(self, values: Tensor) -> Tensor:
        """One value per image, (B,), in a shape that broadcasts over the tokens."""

    @abstractmethod
    def per_position(self, table: Callable[[int, int], Tensor]) -> Tensor:
        """What depends on a token's position alone, in a shape that broadcasts over the tokens.

        Args:
            table (Callable): height and width of a map to an (H, W, C) tensor.
        """
