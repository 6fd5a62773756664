"""The interface through which blocks access the tokens of a batch of images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from l2vit_mm.layers.layout.window import Window


class Layout(ABC):
    """Memory layout of the tokens of a batch of images, channels last.

    Blocks hold tokens (..., C) and ask the layout for every other form (maps, sequences, windows).
    So they are written once for :class:`DenseLayout`, images of one size, and
    :class:`PackedLayout`, images of different sizes without padding.

    Attributes:
        batch (int): number of images, B.
        height (int): height of the tallest map in tokens, H.
        width (int): width of the widest map in tokens, W.
        groups (tuple[tuple[int, int, int], ...]): number, height and width of each run of
            consecutive images of one size.
    """

    batch: int
    height: int
    width: int
    groups: tuple[tuple[int, int, int], ...]

    @abstractmethod
    def reduced(self, stride: int) -> Layout:
        """The layout after a strided convolution: sizes divided by ``stride`` and rounded up."""

    @abstractmethod
    def enlarged(self, factor: int) -> Layout:
        """The layout of maps that are ``factor`` times as high and as wide."""

    # Maps

    @abstractmethod
    def from_map(self, feature_map: Tensor) -> Tensor:
        """A batch of maps as tokens.

        Args:
            feature_map (Tensor): (B, C, Y, X), with Y >= H and X >= W; what lies outside an image
                is not read.

        Returns:
            Tensor: (..., C).
        """

    @abstractmethod
    def to_map(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Tokens as a batch of maps.

        Args:
            tokens (Tensor): (..., C).
            height (int): height of the result in tokens, at least H.
            width (int): width of the result in tokens, at least W.

        Returns:
            Tensor: (B, C, height, width) in channels-last memory, zero outside each image.
        """

    @abstractmethod
    def over_maps(
        self, function: Callable[[Tensor], Tensor], tokens: Tensor, out_layout: Layout | None = None
    ) -> Tensor:
        """Applies a function to the maps, for example a convolution, which sees zeros around them.

        Args:
            function (Callable): takes maps (B', C, H', W') in channels-last memory and returns maps
                in which a position depends on nearby positions only. It is called once with all
                maps, zero-padded right and bottom, or once for each size.
            tokens (Tensor): (..., C).
            out_layout (Layout, optional): the layout of the result. None: this layout.

        Returns:
            Tensor: tokens (..., C') of the maps that the function returned.
        """

    @abstractmethod
    def channels_first(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as a view (X, C, Y, Z) without padding, for BatchNorm."""

    @abstractmethod
    def channels_last(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`channels_first`: (X, C, Y, Z) to tokens (..., C)."""

    # Sequences

    @abstractmethod
    def to_sequences(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as the operators take them: (B, H * W, C), or packed (T, C)."""

    @abstractmethod
    def from_sequences(self, sequences: Tensor) -> Tensor:
        """The inverse of :meth:`to_sequences`, to tokens (..., C)."""

    @abstractmethod
    def cu_seqlens(self, device: torch.device) -> Tensor | None:
        """Cumulative numbers of tokens of the packed images, (B + 1,) int32, beginning with 0.

        None if the sequences are not packed.
        """

    @abstractmethod
    def split(self, tokens: Tensor) -> list[Tensor]:
        """Tokens (..., C) split into the ``groups``, each (B', H' * W', C)."""

    @abstractmethod
    def join(self, sequences: list[Tensor]) -> Tensor:
        """The inverse of :meth:`split`, to tokens (..., C)."""

    # Windows

    @abstractmethod
    def to_windows(self, tokens: Tensor, window: Window | None) -> tuple[Tensor, Layout]:
        """Cuts maps, zero-padded right and bottom, into windows, which are maps themselves.

        With a shift, the padded map is rolled up and to the left before it is cut.

        Args:
            tokens (Tensor): (..., C).
            window (Window, optional): size and shift of the windows. None: whole maps.

        Returns:
            tuple[Tensor, Layout]: tokens (..., C) of all windows, image by image and row by row,
            and their layout.
        """

    @abstractmethod
    def from_windows(self, windows: Tensor, window: Window | None) -> Tensor:
        """The inverse of :meth:`to_windows`, to tokens (..., C) without the padding."""

    @abstractmethod
    def window_parts(self, window: Window, device: torch.device) -> Tensor | None:
        """The part of the map that each token of a shifted window comes from.

        Rolling the map puts tokens from opposite edges into one window; attention between them is
        masked.

        Returns:
            Tensor, optional: (windows of all images, h * w), integers; tokens of a window come from
            the same part if these are equal. None if nothing is shifted.
        """

    # Values per image or per position

    @abstractmethod
    def per_image(self, values: Tensor) -> Tensor:
        """One value per image, (B,), in a shape that broadcasts over the tokens (..., C)."""

    @abstractmethod
    def per_position(self, table: Callable[[int, int], Tensor]) -> Tensor:
        """Values that depend on the position in the map only.

        Args:
            table (Callable): takes height and width of a map, returns a tensor (height, width, C).

        Returns:
            Tensor: in a shape that broadcasts over the tokens (..., C).
        """
