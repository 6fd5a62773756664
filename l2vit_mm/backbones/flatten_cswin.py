"""FLatten-CSwin (arXiv 2308.00442)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from l2vit_mm.backbones.flatten import FLattenBackbone, check_per_stage
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.layers import Layout, PatchEmbedding, SoftmaxAttention, Window, depthwise_conv
from l2vit_mm.registry import register_backbone

_BRANCH = 'stages.#.#.attn.branches.#.'


class StripeAttention(nn.Module):
    """An attention in stripes (or whole maps), and the locally enhanced positional encoding: a
    depthwise convolution of the values inside each stripe (LePE, arXiv 2107.00652).

    Maps are zero-padded right and bottom to whole stripes; the padding takes part.

    Args:
        channels (int): C of this branch.
        core (nn.Module): the attention proper, one of :mod:`l2vit_mm.layers.cores`.
        window (Window, optional): None: whole maps.
    """

    def __init__(self, channels: int, core: nn.Module, window: Window | None) -> None:
        super().__init__()
        self.window = window
        self.core = core
        self.lepe = depthwise_conv(channels, 3)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Queries, keys and values (..., C) to tokens (..., C)."""
        # The published code, too, pads what the Linear has made, with zeros.
        (q, _), (k, _), (v, inner) = (layout.to_windows(x, self.window) for x in (q, k, v))
        out = self.core(q, k, v, inner, inner) + inner.over_maps(self.lepe, v)
        return layout.from_windows(out, self.window)


class CrossShapedAttention(nn.Module):
    """CSWin's attention (arXiv 2107.00652): branches with a share of the channels each.

    Args:
        channels (int): C.
        branches (Sequence[StripeAttention]): one with all channels, or several with as many each.
    """

    def __init__(self, channels: int, branches: Sequence[StripeAttention]) -> None:
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels)
        self.branches = nn.ModuleList(branches)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        shares = (part.chunk(len(self.branches), -1) for part in self.qkv(x).chunk(3, -1))
        outs = [
            branch(q, k, v, layout) for branch, q, k, v in zip(self.branches, *shares, strict=True)
        ]
        return self.proj(outs[0] if len(outs) == 1 else torch.cat(outs, -1))


@register_backbone(
    'flatten-cswin',
    test_arch=dict(
        channels=(8, 16, 32),
        depths=(1, 2, 1),
        num_heads=(1, 2, 4),
        attn_types='LSS',
        split_sizes=(1, 2, 3),
        pretrain_size=32,
    ),
)
class FLattenCSWin(FLattenBackbone):
    """FLatten-CSwin (arXiv 2308.00442): a CSWin (arXiv 2107.00652) with linear attention.

    Softmax blocks attend in vertical stripes with one half of their channels and in horizontal
    ones with the other; those of the last stage, and linear blocks, in one branch over the whole
    map. Published files load under their own names: a classifier's ``norm`` becomes the last
    output norm, ``head`` is dropped. Other arguments, errors: see
    :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Args:
        arch (str | dict): 'tiny', 'small', 'base', 'base-384', or a dict with ``channels``,
            ``depths``, ``num_heads``, ``split_sizes`` (one entry per stage) and optionally
            ``mlp_ratio`` (4), ``attn_types`` ('LLSS') and ``pretrain_size`` (224).
        split_sizes (Sequence[int], optional): width of the softmax blocks' stripes in tokens, one
            per stage; that of the last stage is not used. None: the architecture's.
        linear_window_size (Sequence[int | None], optional): side of the linear blocks' windows in
            tokens, one per stage, or None for the whole map; no larger than the map, and not
            shifted. None: whole maps.
        kwargs: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Raises:
        TypeError, ValueError: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import FLattenCSWin
        >>> [tuple(y.shape) for y in FLattenCSWin('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 64, 25, 33), (1, 128, 13, 17), (1, 256, 7, 9), (1, 512, 4, 5)]
    """

    arch_zoo = {
        'tiny': dict(
            channels=(64, 128, 256, 512),
            depths=(2, 4, 18, 1),
            num_heads=(2, 4, 8, 16),
            split_sizes=(1, 2, 7, 7),
        ),
        'small': dict(
            channels=(64, 128, 256, 512),
            depths=(2, 4, 32, 2),
            num_heads=(2, 4, 8, 16),
            split_sizes=(1, 2, 7, 7),
        ),
        'base': dict(
            channels=(96, 192, 384, 768),
            depths=(3, 6, 29, 2),
            num_heads=(4, 8, 16, 32),
            split_sizes=(1, 2, 7, 7),
        ),
        'base-384': dict(
            channels=(96, 192, 384, 768),
            depths=(3, 6, 29, 2),
            num_heads=(4, 8, 16, 32),
            split_sizes=(1, 2, 12, 12),
            pretrain_size=384,
        ),
    }
    published_names = NameTable(
        ('stage1_conv_embed.0.', 'stem.proj.'),
        ('stage1_conv_embed.2.', 'stem.norm.'),
        *((f'stage{i + 1}.', f'stages.{i}.') for i in range(4)),
        *((f'merge{i + 1}.conv.', f'downsamples.{i}.proj.') for i in range(3)),
        *((f'merge{i + 1}.norm.', f'downsamples.{i}.norm.') for i in range(3)),
        ('stages.#.#.qkv.', 'stages.#.#.attn.qkv.'),
        ('stages.#.#.proj.', 'stages.#.#.attn.proj.'),
        ('stages.#.#.attns.#.', 'stages.#.#.attn.branches.#.'),
        (f'{_BRANCH}get_v.', f'{_BRANCH}lepe.'),
        (f'{_BRANCH}scale$', f'{_BRANCH}core.scale$', 'c -> 1 1 c'),
        (f'{_BRANCH}dwc.', f'{_BRANCH}core.dwc.'),
        (f'{_BRANCH}positional_encoding$', f'{_BRANCH}core.position.table$', 'h w c -> 1 (h w) c'),
        ('norm.', 'norm3.'),
        *FLattenBackbone.published_names.rows,
    )

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        split_sizes: Sequence[int] | None = None,
        linear_window_size: Sequence[int | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            arch,
            options=dict(split_sizes=split_sizes, linear_window_size=linear_window_size),
            **kwargs,
        )

    def check_options(self) -> None:
        self.split_sizes = self.settings['split_sizes']
        check_per_stage('split_sizes', self.split_sizes, self.depths, optional=False)
        self.linear_window_size = self.settings.get(
            'linear_window_size', (None,) * len(self.depths)
        )
        check_per_stage('linear_window_size', self.linear_window_size, self.depths, optional=True)

    def make_stem(self, in_channels: int) -> nn.Module:
        return PatchEmbedding(in_channels, self.channels[0], 7, 4, padding=2)

    def make_downsamples(self) -> Iterator[nn.Module]:
        return (
            PatchEmbedding(self.channels[stage - 1], self.channels[stage], 3, 2, padding=1)
            for stage in range(1, len(self.depths))
        )

    def make_attention(self, stage: int, block: int) -> nn.Module:
        channels, heads = self.channels[stage], self.num_heads[stage]
        if self.attn_types[stage][block] == 'L':
            side = self.linear_window_size[stage]
            map_size = self.map_size(stage)
            core = self.linear_core(stage, map_size if side is None else min(side, map_size))
            window = None if side is None else Window(side, side, clip=True)
            branches = [StripeAttention(channels, core, window)]
        elif stage == len(self.depths) - 1:
            branches = [StripeAttention(channels, SoftmaxAttention(heads), None)]
        else:
            if heads % 2:
                raise ValueError(
                    'arch must have even num_heads where softmax blocks attend in two '
                    f'directions, got {self.num_heads}'
                )
            split = self.split_sizes[stage]
            branches = [
                StripeAttention(channels // 2, SoftmaxAttention(heads // 2), window)
                for window in (Window(None, split), Window(split, None))
            ]
        return CrossShapedAttention(channels, branches)
