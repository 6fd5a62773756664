"""FLatten-Swin (arXiv 2308.00442)."""
from collections.abc import Sequence

from einops import rearrange
from torch import Tensor, nn

from l2vit_mm.backbones.flatten import FLattenBackbone, check_per_stage
from l2vit_mm.layers import (PatchEmbedding, SelfAttention, ShiftedWindowAttention, TokenLayout,
                             Window, pad_to_multiple)


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

    def forward(self, x: Tensor, layout: TokenLayout) -> tuple[Tensor, TokenLayout]:
        """Tokens of H x W maps to tokens of ceil(H / 2) x ceil(W / 2) maps."""
        def side_by_side(maps: Tensor) -> Tensor:
            # Row by row in each column: the published order.
            return rearrange(pad_to_multiple(maps, 2), 'b c (h y) (w x) -> b (x y c) h w', y=2, x=2)

        reduced = layout.reduced(2)
        return self.reduction(self.norm(layout.over_maps(side_by_side, x, reduced))), reduced


class FLattenSwin(FLattenBackbone):
    """FLatten-Swin (arXiv 2308.00442): a Swin (arXiv 2103.14030) with linear attention.

    Published files load under their own names: a classifier's ``norm`` becomes the last output
    norm, ``head`` and what is derived (``relative_position_index``, ``attn_mask``) are dropped.
    Other arguments, errors: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Args:
        arch (str or dict): 'tiny', 'small', 'base', 'base-384', or a dict with ``channels``,
            ``depths``, ``num_heads`` (one entry a stage) and, as one wishes, ``mlp_ratio`` (4),
            ``attn_types`` ('LLSS'), ``window_size`` (7) and ``pretrain_size`` (224).
        window_size (int, optional): side of the softmax blocks' windows in tokens. None: the
            architecture's. A loaded bias table of another window is resized.
        linear_window_size (Sequence[int or None], optional): side of the linear blocks' windows in
            tokens, one a stage, or None for the whole map; no larger than the map, and not
            shifted. None: whole maps.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import FLattenSwin
        >>> [tuple(y.shape) for y in FLattenSwin('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 96, 25, 33), (1, 192, 13, 17), (1, 384, 7, 9), (1, 768, 4, 5)]
    """

    arch_zoo = {
        'tiny': dict(channels=(96, 192, 384, 768), depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        'small': dict(channels=(96, 192, 384, 768), depths=(2, 2, 18, 2),
                      num_heads=(3, 6, 12, 24)),
        'base': dict(channels=(128, 256, 512, 1024), depths=(2, 2, 18, 2),
                     num_heads=(4, 8, 16, 32)),
        'base-384': dict(channels=(128, 256, 512, 1024), depths=(2, 2, 18, 2),
                         num_heads=(4, 8, 16, 32), window_size=12, pretrain_size=384),
    }
    arch_defaults = dict(FLattenBackbone.arch_defaults, window_size=7)
    published_names = (
        (r'patch_embed\.', 'stem.'),
        (r'layers\.(\d+)\.blocks\.', r'stages.\1.'),
        (r'layers\.(\d+)\.downsample\.', r'downsamples.\1.'),
        (r'(stages\.\d+\.\d+\.attn)\.relative_position_bias_table$', r'\1.bias.table'),
        (r'stages\.\d+\.\d+\.attn\.relative_position_index$', None),
        (r'stages\.\d+\.\d+\.attn_mask$', None),
        (r'norm\.', 'norm3.'),
        *FLattenBackbone.published_names,
    )

    def __init__(self, arch: str | dict = 'tiny', *, window_size: int | None = None,
                 linear_window_size: Sequence[int | None] | None = None, **common) -> None:
        super().__init__(arch, **common)
        self.window_size = self.settings['window_size'] if window_size is None else window_size
        if not isinstance(self.window_size, int) or self.window_size < 1:
            raise ValueError(f'window_size is {self.window_size!r}; accepted is 1 or more tokens')
        if linear_window_size is None:
            linear_window_size = (None,) * len(self.depths)
        check_per_stage('linear_window_size', linear_window_size, self.depths, optional=True)
        self.linear_window_size = linear_window_size
        self.build()

    def make_stem(self) -> nn.Module:
        return PatchEmbedding(self.in_channels, self.channels[0], 4, 4)

    def make_downsample(self, stage: int) -> nn.Module:
        return PatchMerging(*self.channels[stage - 1:stage + 1])

    def make_attention(self, stage: int, block: int) -> nn.Module:
        channels = self.channels[stage]
        if self.attn_types[stage][block] == 'S':
            return ShiftedWindowAttention(channels, self.num_heads[stage], self.window_size,
                                          shift=block % 2 == 1)
        side = self.linear_window_size[stage]
        if side is None:
            return SelfAttention(channels, self.linear_core(stage, self.map_size(stage)))
        return SelfAttention(channels, self.linear_core(stage, min(side, self.map_size(stage))),
                             Window(side, side, clip=True))
