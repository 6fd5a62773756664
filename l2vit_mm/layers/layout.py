"""How the tokens of a batch of images lie in memory: known to this file alone."""
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

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


    def cut(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Height, width and shifts of the windows on maps of a size."""
        h, w = self.height or height, self.width or width
        if self.clip:
            h, w = min(h, height), min(w, width)
        if not self.shift:
            return h, w, 0, 0
        return h, w, h // 2 if height > h else 0, w // 2 if width > w else 0


@dataclass(frozen=True)
class TokenLayout:
    """Tokens of a batch of equally large feature maps, channels last.

    Blocks hold tokens (..., C) and ask the layout for every other form, so that they are written
    once for all layouts. Here the tokens are (B, H, W, C) and a map is a view of them.
    :class:`PackedLayout` has images of different sizes, without padding.

    Args:
        batch (int): number of images, B.
        height (int): height of the maps in tokens, H.
        width (int): width of the maps in tokens, W.
    """
    batch: int
    height: int
    width: int

    def reduced(self, stride: int) -> 'TokenLayout':
        """The layout after a convolution of a stride: sizes rounded up."""
        return TokenLayout(self.batch, -(-self.height // stride), -(-self.width // stride))

    def enlarged(self, factor: int) -> 'TokenLayout':
        """The layout of maps that are some times as high and wide."""
        return TokenLayout(self.batch, factor * self.height, factor * self.width)

    # Maps

    def from_map(self, feature_map: Tensor) -> Tensor:
        """A batch (B, C, Y, X) of at least the maps' sizes as tokens (..., C); what is outside an
        image is not looked at."""
        return feature_map.permute(0, 2, 3, 1).contiguous()

    def to_map(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Tokens (..., C) as a (B, C, height, width) batch in channels-last memory, zero outside
        an image."""
        return tokens.permute(0, 3, 1, 2)

    def over_maps(self, function: Callable[[Tensor], Tensor], tokens: Tensor,
                  becomes: 'TokenLayout | None' = None) -> Tensor:
        """Applies a function to the maps, as a convolution that sees zeros beyond an image.

        Args:
            function (Callable): (B', C, H', W') maps in channels-last memory to others, in which a
                place depends on places nearby alone. It gets all maps at once, padded with zeros
                right and bottom, or those of one size at a time.
            tokens (Tensor): (..., C).
            becomes (TokenLayout, optional): the layout of the result; None: the same.

        Returns:
            Tensor: tokens of the maps that the function gave.
        """
        return function(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def channels_first(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as a view (X, C, Y, Z) of no tokens but theirs, for BatchNorm."""
        return tokens.permute(0, 3, 1, 2)

    def channels_last(self, values: Tensor) -> Tensor:
        """What :meth:`channels_first` gave, as tokens (..., C)."""
        return values.permute(0, 2, 3, 1)

    # Sequences

    def to_sequences(self, tokens: Tensor) -> Tensor:
        """Tokens (..., C) as the sequences that the operator takes: (B, H * W, C)."""
        return tokens.flatten(1, 2)

    def from_sequences(self, sequences: Tensor) -> Tensor:
        """Such sequences as tokens (..., C)."""
        return sequences.unflatten(1, (self.height, self.width))

    def offsets(self, device: torch.device) -> Tensor | None:
        """``cu_seqlens`` of the operator; None where all sequences are of one length."""
        return None

    @cached_property
    def groups(self) -> list[tuple[int, int, int]]:
        """Number, height and width of neighbouring images of one size."""
        return [(self.batch, self.height, self.width)]

    def split(self, tokens: Tensor) -> list[Tensor]:
        """Tokens (..., C) a group: (B', H * W, C) each."""
        return [self.to_sequences(tokens)]

    def join(self, sequences: list[Tensor]) -> Tensor:
        """Tokens a group, as :meth:`split` gives them, as tokens (..., C)."""
        return self.from_sequences(sequences[0])

    # Windows

    def to_windows(self, tokens: Tensor, window: Window | None) -> tuple[Tensor, 'TokenLayout']:
        """Cuts maps, zero-padded right and bottom, into windows, which are small maps.

        With a shift the padded map is rolled up and to the left before it is cut.

        Args:
            tokens (Tensor): (..., C).
            window (Window, optional): the windows' size and shift. None: whole maps, as they are.

        Returns:
            tuple[Tensor, TokenLayout]: tokens of all windows, image by image, row by row, and
            their layout.
        """
        if window is None:
            return tokens, self
        h, w, *shift = window.cut(self.height, self.width)
        pad_h, pad_w = -self.height % h, -self.width % w
        if pad_h or pad_w:
            tokens = F.pad(tokens, (0, 0, 0, pad_w, 0, pad_h))
        if any(shift):
            tokens = tokens.roll((-shift[0], -shift[1]), (1, 2))
        windows = rearrange(tokens, 'b (y h) (x w) c -> (b y x) h w c', h=h, w=w)
        return windows, TokenLayout(windows.shape[0], h, w)

    def from_windows(self, windows: Tensor, window: Window | None) -> Tensor:
        """Puts windows (as :meth:`to_windows` gives them) together and crops the padding."""
        if window is None:
            return windows
        h, w, *shift = window.cut(self.height, self.width)
        rows, columns = -(-self.height // h), -(-self.width // w)
        tokens = rearrange(windows, '(b y x) h w c -> b (y h) (x w) c', y=rows, x=columns)
        if any(shift):
            tokens = tokens.roll(tuple(shift), (1, 2))
        return tokens[:, :self.height, :self.width]

    def window_parts(self, window: Window, device: torch.device) -> Tensor | None:
        """Which tokens of a shifted window were neighbours before the map was rolled.

        Returns:
            Tensor, optional: (windows of all images, h * w): numbers of the parts that each window
            consists of; None where nothing is shifted.
        """
        h, w, *shift = window.cut(self.height, self.width)
        if not any(shift):
            return None
        rows, columns = -(-self.height // h), -(-self.width // w)
        # What was rolled over the edge is in the last rows and columns.
        y = torch.arange(rows * h, device=device) >= rows * h - shift[0]
        x = torch.arange(columns * w, device=device) >= columns * w - shift[1]
        parts = rearrange(2 * y[:, None] + x, '(y h) (x w) -> (y x) (h w)', h=h, w=w)
        return parts.repeat(self.batch, 1)

    # Values an image or a place

    def per_image(self, values: Tensor) -> Tensor:
        """One value an image, (B,), in a shape that broadcasts over the tokens."""
        return values.view(-1, 1, 1, 1)

    def per_position(self, table: Callable[[int, int], Tensor]) -> Tensor:
        """What depends on a token's place alone, in a shape that broadcasts over the tokens.

        Args:
            table (Callable): height and width of a map to an (H, W, C) tensor.
        """
        return table(self.height, self.width)


# Numbers in the maps of one size from which on one call for each size takes less time than copies
# to a padded batch and back: on a CPU a call of a convolution, forward and backward, takes half a
# millisecond even on the smallest map.
_LARGE = 2**17


class PackedLayout(TokenLayout):
    """Tokens of images of different sizes, one behind the other: (T, C), and no padding.

    Args:
        groups (Sequence[tuple[int, int, int]]): number, height and width in tokens of neighbouring
            images of one size.
    """

    def __init__(self, groups: Sequence[tuple[int, int, int]]) -> None:
        # The dataclass is frozen. Height and width are those of the smallest map that holds all.
        vars(self).update(
            groups=groups, batch=sum(n for n, _, _ in groups),
            height=max(h for _, h, _ in groups), width=max(w for _, _, w in groups),
            num_tokens=sum(n * h * w for n, h, w in groups), _kept={})

    @classmethod
    def of_sizes(cls, sizes: Sequence[tuple[int, int]]) -> 'PackedLayout':
        """The layout of images of some heights and widths."""
        return cls([(len(list(same)), *size) for size, same in itertools.groupby(sizes)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedLayout) and self.groups == other.groups

    def reduced(self, stride: int) -> 'PackedLayout':
        # Groups that become equal stay apart: those of two layouts of the same images correspond.
        return PackedLayout([(n, -(-h // stride), -(-w // stride)) for n, h, w in self.groups])

    def enlarged(self, factor: int) -> 'PackedLayout':
        return PackedLayout([(n, factor * h, factor * w) for n, h, w in self.groups])

    def _sizes(self, device: torch.device) -> Tensor:
        """Height and width of each image, (B, 2)."""
        return torch.tensor([size for n, *size in self.groups for _ in range(n)], device=device)

    def _places(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Image, row and column of each token."""
        if device not in self._kept:
            sizes = self._sizes(device)
            lengths = sizes[:, 0] * sizes[:, 1]
            image = torch.arange(self.batch, device=device).repeat_interleave(
                lengths, output_size=self.num_tokens)
            inside = torch.arange(self.num_tokens, device=device)
            inside = inside - (lengths.cumsum(0) - lengths)[image]
            width = sizes[:, 1][image]
            self._kept[device] = image, inside // width, inside % width
        return self._kept[device]

    def _map_places(self, height: int, width: int, device: torch.device) -> Tensor:
        """Where each token is in a flattened (B, height, width) map."""
        key = 'map', height, width, device
        if key not in self._kept:
            image, y, x = self._places(device)
            self._kept[key] = (image * height + y) * width + x
        return self._kept[key]

    def from_map(self, feature_map: Tensor) -> Tensor:
        batches = feature_map.split([n for n, _, _ in self.groups])
        return torch.cat([
            batch[:, :, :h, :w].permute(0, 2, 3, 1).flatten(0, 2)
            for batch, (_, h, w) in zip(batches, self.groups)])

    def to_map(self, tokens: Tensor, height: int, width: int) -> Tensor:
        places = self._map_places(height, width, tokens.device)
        rows = _Spread.apply(tokens, places, self.batch * height * width)
        return rows.view(self.batch, height, width, -1).permute(0, 3, 1, 2)

    def over_maps(self, function: Callable[[Tensor], Tensor], tokens: Tensor,
                  becomes: TokenLayout | None = None) -> Tensor:
        if tokens.numel() < _LARGE * len(self.groups):
            maps = function(self.to_map(tokens, self.height, self.width))
            places = (becomes or self)._map_places(*maps.shape[2:], maps.device)
            return _Collect.apply(maps.permute(0, 2, 3, 1).flatten(0, 2), places)
        maps = (function(group.unflatten(1, (h, w)).permute(0, 3, 1, 2))
                for group, (_, h, w) in zip(self.split(tokens), self.groups))
        return torch.cat([group.permute(0, 2, 3, 1).flatten(0, 2) for group in maps])

    def channels_first(self, tokens: Tensor) -> Tensor:
        # As one image T high and 1 wide. Not by t(), there and back: between two such views torch
        # 2.14.1's BatchNorm has a wrong gradient on the CPU.
        return tokens[None, :, None].permute(0, 3, 1, 2)

    def channels_last(self, values: Tensor) -> Tensor:
        return values.permute(0, 2, 3, 1)[0, :, 0]

    def to_sequences(self, tokens: Tensor) -> Tensor:
        return tokens

    def from_sequences(self, sequences: Tensor) -> Tensor:
        return sequences

    def offsets(self, device: torch.device) -> Tensor:
        key = 'offsets', device
        if key not in self._kept:
            lengths = (h * w for n, h, w in self.groups for _ in range(n))
            self._kept[key] = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32,
                                           device=device)
        return self._kept[key]

    def split(self, tokens: Tensor) -> list[Tensor]:
        parts = tokens.split([n * h * w for n, h, w in self.groups])
        return [part.unflatten(0, (n, h * w)) for part, (n, h, w) in zip(parts, self.groups)]

    def join(self, sequences: list[Tensor]) -> Tensor:
        return torch.cat([group.flatten(0, 1) for group in sequences])

    def to_windows(self, tokens: Tensor, window: Window | None) -> tuple[Tensor, TokenLayout]:
        if window is None:
            return tokens, self
        places, layout = self._window_places(window, tokens.device)
        if isinstance(layout, PackedLayout):
            return _Spread.apply(tokens, places, layout.num_tokens), layout
        rows = _Spread.apply(tokens, places, layout.batch * layout.height * layout.width)
        return rows.view(layout.batch, layout.height, layout.width, -1), layout

    def from_windows(self, windows: Tensor, window: Window | None) -> Tensor:
        if window is None:
            return windows
        places, layout = self._window_places(window, windows.device)
        if not isinstance(layout, PackedLayout):
            windows = windows.flatten(0, 2)
        return _Collect.apply(windows, places)

    def _window_places(self, window: Window, device: torch.device) -> tuple[Tensor, TokenLayout]:
        """Where each token is among the windows' tokens, and the windows' layout."""
        key = window, device
        if key not in self._kept:
            groups, table, start = [], [], 0
            for n, height, width in self.groups:
                h, w, shift_y, shift_x = window.cut(height, width)
                rows, columns = -(-height // h), -(-width // w)
                groups.append((n * rows * columns, h, w))
                for _ in range(n):
                    table.append((start, h, w, rows, columns, shift_y, shift_x))
                    start += rows * columns * h * w
            image, y, x = self._places(device)
            start, h, w, rows, columns, shift_y, shift_x = (
                torch.tensor(table, device=device)[image].unbind(1))
            y, x = (y - shift_y) % (rows * h), (x - shift_x) % (columns * w)
            places = start + ((y // h * columns + x // w) * h + y % h) * w + x % w
            layout = PackedLayout(groups)
            if len({(h, w) for _, h, w in groups}) == 1:
                layout = TokenLayout(layout.batch, layout.height, layout.width)
            self._kept[key] = places, layout
        return self._kept[key]

    def window_parts(self, window: Window, device: torch.device) -> Tensor | None:
        parts = [TokenLayout(n, h, w).window_parts(window, device) for n, h, w in self.groups]
        if all(part is None for part in parts):
            return None
        for index, (n, height, width) in enumerate(self.groups):
            if parts[index] is None:
                h, w, *_ = window.cut(height, width)
                count = n * -(-height // h) * -(-width // w)
                parts[index] = torch.zeros(count, h * w, dtype=torch.long, device=device)
        return torch.cat(parts)

    def per_image(self, values: Tensor) -> Tensor:
        return values[self._places(values.device)[0]][:, None]

    def per_position(self, table: Callable[[int, int], Tensor]) -> Tensor:
        values = [table(h, w).flatten(0, 1).repeat(n, 1) for n, h, w in self.groups]
        return torch.cat(values)


class _Spread(torch.autograd.Function):
    """Rows (T, C) to their places among others, which are zero."""

    @staticmethod
    def forward(ctx, rows: Tensor, places: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(places)
        return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple:
        return _Collect.apply(gradient, *ctx.saved_tensors), None, None


class _Collect(torch.autograd.Function):
    """Rows at some places, each named once. (Of index_select autograd doesn't know that, and
    adds.)"""

    @staticmethod
    def forward(ctx, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = rows.shape[0]
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple:
        return _Spread.apply(gradient, *ctx.saved_tensors, ctx.count), None
