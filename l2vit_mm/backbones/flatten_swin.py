"""FLatten-Swin (arXiv 2308.00442)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from l2vit_mm.backbones.flatten import FLattenBackbone, check_per_stage
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.layers import (
    Layout,
    PatchEmbedding,
    SelfAttention,
    ShiftedWindowAttention,
    Window,
    pad_to_multiple,
)
from l2vit_mm.registry import register_backbone


class PatchMerging(nn.Module):
    """Swin's downsampling (arXiv 2103.14030): 2 x 2 tokens side by side, LayerNorm, Linear. Sizes
    are rounded up.

    Args:
        in_channels (int): channels before.
        channels (int): channels after.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_channels)
        self.reduction = nn.Linear(4 * in_channels, channels, bias=False)

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Tokens (..., C) of H x W maps to tokens (..., C') of ceil(H / 2) x ceil(W / 2) maps."""

        def side_by_side(maps: Tensor) -> Tensor:
            # Row by row in each column: the published order.
            return rearrange(pad_to_multiple(maps, 2), 'b c (h y) (w x) -> b (x y c) h w', y=2, x=2)

        reduced = layout.reduced(2)
        return self.reduction(self.norm(layout.over_maps(side_by_side, x, reduced))), reduced


@register_backbone(
    'flatten-swin',
    test_arch=dict(
        channels=(8, 16),
        depths=(1, 2),
        num_heads=(1, 2),
        attn_types='LS',
        pretrain_size=32,
        window_size=3,
    ),
)
class FLattenSwin(FLattenBackbone):
    """FLatten-Swin (arXiv 2308.00442): a Swin (arXiv 2103.14030) with linear attention.

    Published files load under their own names: a classifier's ``norm`` becomes the last output
    norm, ``head`` and what is derived (``relative_position_index``, ``attn_mask``) are skipped.

    Args:
        arch (str | dict): 'tiny', 'small', 'base', 'base-384', or a dict with ``channels``,
            ``depths``, ``num_heads`` (one entry per stage) and optionally ``mlp_ratio`` (4),
            ``attn_types`` ('LLSS'), ``window_size`` (7) and ``pretrain_size`` (224).
        window_size (int, optional): side of the softmax blocks' windows in tokens. None: the
            architecture's. A loaded bias table of another window is resized.
        linear_window_size (Sequence[int | None], optional): side of the linear blocks' windows in
            tokens, one per stage, or None for the whole map; no larger than the map, and not
            shifted. None: whole maps.
        kwargs: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Raises:
        TypeError, ValueError: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import FLattenSwin
        >>> [tuple(y.shape) for y in FLattenSwin('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 96, 25, 33), (1, 192, 13, 17), (1, 384, 7, 9), (1, 768, 4, 5)]
    """

    arch_zoo = {
        'tiny': dict(channels=(96, 192, 384, 768), depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        'small': dict(channels=(96, 192, 384, 768), depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24)),
        'base': dict(
            channels=(128, 256, 512, 1024), depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)
        ),
        'base-384': dict(
            channels=(128, 256, 512, 1024),
            depths=(2, 2, 18, 2),
            num_heads=(4, 8, 16, 32),
            window_size=12,
            pretrain_size=384,
        ),
    }
    arch_defaults = dict(FLattenBackbone.arch_defaults, window_size=7)
    published_names = NameTable(
        ('patch_embed.', 'stem.'),
        ('layers.#.blocks.', 'stages.#.'),
        ('layers.#.downsample.', 'downsamples.#.'),
        ('stages.#.#.attn.relative_position_bias_table$', 'stages.#.#.attn.bias.table$'),
        ('stages.#.#.attn.relative_position_index$', None),
        ('stages.#.#.attn_mask$', None),
        ('norm.', 'norm3.'),
        *FLattenBackbone.published_names.rows,
    )

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        window_size: int | None = None,
        linear_window_size: Sequence[int | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            arch,
            options=dict(window_size=window_size, linear_window_size=linear_window_size),
            **kwargs,
        )

    def check_options(self) -> None:
        self.window_size = self.settings['window_size']
        if not isinstance(self.window_size, int) or self.window_size < 1:
            raise ValueError(f'window_size must be 1 token or more, got {self.window_size!r}')
        self.linear_window_size = self.settings.get(
            'linear_window_size', (None,) * len(self.depths)
        )
        check_per_stage('linear_window_size', self.linear_window_size, self.depths, optional=True)

    def make_stem(self, in_channels: int) -> nn.Module:
        return PatchEmbedding(in_channels, self.channels[0], 4, 4)

    def make_downsamples(self) -> Iterator[nn.Module]:
        return (
            PatchMerging(*self.channels[stage - 1 : stage + 1])
            for stage in range(1, len(self.depths))
        )

    def make_attention(self, stage: int, block: int) -> nn.Module:
        channels = self.channels[stage]
        if self.attn_types[stage][block] == 'S':
            return ShiftedWindowAttention(
                channels, self.num_heads[stage], self.window_size, shift=block % 2 == 1
            )
        side = self.linear_window_size[stage]
        if side is None:
            return SelfAttention(channels, self.linear_core(stage, self.map_size(stage)))
        return SelfAttention(
            channels,
            self.linear_core(stage, min(side, self.map_size(stage))),
            Window(side, side, clip=True),
        )

    def published_only(self) -> dict[str, Tensor]:
        """The index into the bias tables, and the mask of shifted windows, at ``pretrain_size``."""
        found: dict[str, Tensor] = {}
        w = self.window_size
        for stage, types in enumerate(self.attn_types[: len(self.stages)]):
            for block, letter in enumerate(types):
                if letter != 'S':
                    continue
                name = f'layers.{stage}.blocks.{block}'
                attn: Any = self._blocks()[stage][block].attn
                found[f'{name}.attn.relative_position_index'] = attn.bias.index()
                # The published code has no windows that don't divide the map.
                if block % 2 and self.map_size(stage) > w and self.map_size(stage) % w == 0:
                    found[f'{name}.attn_mask'] = shift_mask(self.map_size(stage), w)
        return found


def shift_mask(side: int, window_size: int) -> Tensor:
    """Swin's mask of windows that are shifted by half of their side.

    Args:
        side (int): of the map in tokens, a multiple of ``window_size``.
        window_size (int): side w of a window.

    Returns:
        Tensor: (windows, w * w, w * w), -100 between tokens that lie apart in the map, else 0.
    """
    part = torch.zeros(side)
    part[side - window_size :] = 1
    part[side - window_size // 2 :] = 2
    parts = rearrange(
        3 * part[:, None] + part, '(h y) (w x) -> (h w) (y x)', y=window_size, x=window_size
    )
    return -100.0 * (parts[:, :, None] != parts[:, None, :])
