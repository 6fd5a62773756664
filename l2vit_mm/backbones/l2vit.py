"""L2ViT (arXiv 2501.16182): window attention and linear global attention in turn."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from l2vit_mm.backbones.arch import drop_path_rates, resolve_arch
from l2vit_mm.backbones.base import BaseBackbone
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.layers import (
    MLP,
    ConditionalPositionEncoding,
    ConvStem,
    Downsample,
    DropPath,
    Layout,
    LinearGlobalAttention,
    LocalConcentrationModule,
    SelfAttention,
    SoftmaxAttention,
    Window,
)
from l2vit_mm.registry import register_backbone


class WindowBlock(nn.Module):
    """Local half of a pair: CPE, window attention, CPE, MLP.

    Args:
        channels (int): C.
        num_heads (int): heads of the attention.
        mlp_ratio (float): hidden width of the MLP over C.
        drop_path (float): probability of dropping a branch.
        window_size (int): side of the windows in tokens.
    """

    def __init__(
        self, channels: int, num_heads: int, mlp_ratio: float, drop_path: float, window_size: int
    ) -> None:
        super().__init__()
        self.cpe1 = ConditionalPositionEncoding(channels)
        self.attn_norm = nn.LayerNorm(channels)
        self.attn = SelfAttention(
            channels, SoftmaxAttention(num_heads), Window(window_size, window_size)
        )
        self.cpe2 = ConditionalPositionEncoding(channels)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = MLP(channels, mlp_ratio)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        x = self.cpe1(x, layout)
        x = x + self.drop_path(self.attn(self.attn_norm(x), layout), layout)
        x = self.cpe2(x, layout)
        return x + self.drop_path(self.mlp(self.mlp_norm(x), layout), layout)


class LinearBlock(nn.Module):
    """Global half of a pair: CPE, linear attention, local concentration module, MLP.

    Args:
        channels (int): C.
        num_heads (int): heads of the attention.
        mlp_ratio (float): hidden width of the MLP over C.
        drop_path (float): probability of dropping a branch.
        norm_cfg (dict): config of the module's BatchNorm.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        mlp_ratio: float,
        drop_path: float,
        norm_cfg: dict[str, Any],
    ) -> None:
        super().__init__()
        self.cpe1 = ConditionalPositionEncoding(channels)
        self.attn_norm = nn.LayerNorm(channels)
        self.attn = LinearGlobalAttention(channels, num_heads)
        self.lcm_norm = nn.LayerNorm(channels)
        self.lcm = LocalConcentrationModule(channels, norm_cfg)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = MLP(channels, mlp_ratio)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        x = self.cpe1(x, layout)
        x = x + self.drop_path(self.attn(self.attn_norm(x), layout), layout)
        x = x + self.drop_path(self.lcm(self.lcm_norm(x), layout), layout)
        return x + self.drop_path(self.mlp(self.mlp_norm(x), layout), layout)


@register_backbone(
    'l2vit',
    test_arch=dict(channels=(8, 16), depths=(2, 2), num_heads=(1, 2), window_size=3, mlp_ratio=2.0),
)
class L2ViT(BaseBackbone):
    """The backbone of "The Linear Attention Resurrection in Vision Transformer" (L2ViT,
    arXiv 2501.16182).

    Blocks of a stage alternate: softmax attention in windows, then linear attention over the whole
    image. Published state dicts load under their own names: a classifier's ``norm`` becomes the
    last output norm and its ``head`` is skipped.

    Args:
        arch (str | dict): 'tiny', 'small', 'base', 'base-384', or 'pico' (of this project, for
            demos and tests: there are no published weights), or a dict with ``channels``,
            ``depths``, ``num_heads`` (one entry per stage) and optionally ``window_size`` (7) and
            ``mlp_ratio`` (4).
        in_channels (int): channels of the image.
        window_size (int, optional): side of the windows in tokens. None: the architecture's.
        drop_path_rate (float): probability of dropping a branch in the last block; it rises
            linearly from 0 in the first.
        norm_cfg (dict, optional): the BatchNorms of the stem and of every local concentration
            module: ``dict(type='BN')`` (None) or ``dict(type='SyncBN')``.
        kwargs: ``out_indices`` (all stages unless given), ``frozen_stages`` (-1), ``norm_eval``,
            ``with_cp`` (both False), ``output_norm`` (True, as the released detectors have),
            ``pretrained``, ``init_cfg`` (both None): see
            :class:`~l2vit_mm.backbones.base.BaseBackbone`.

    Raises:
        TypeError: for an unknown argument; it names the one that is near.
        ValueError: for a value that is out of range; it names the argument.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import L2ViT
        >>> [tuple(y.shape) for y in L2ViT('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 96, 25, 33), (1, 192, 13, 17), (1, 384, 7, 9), (1, 768, 4, 5)]
    """

    arch_zoo = {
        'pico': dict(channels=(32, 64, 128, 192), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 6)),
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
        ),
    }

    published_names = NameTable(
        ('downsample_layers.0.proj.proj.0.', 'stem.conv1.'),
        ('downsample_layers.0.proj.proj.1.', 'stem.bn1.'),
        ('downsample_layers.0.proj.proj.3.', 'stem.conv2.'),
        ('downsample_layers.0.proj.proj.4.', 'stem.bn2.'),
        ('downsample_layers.0.norm.', 'stem.norm.'),
        ('downsample_layers.1.', 'downsamples.0.'),
        ('downsample_layers.2.', 'downsamples.1.'),
        ('downsample_layers.3.', 'downsamples.2.'),
        ('stages.#.#.cpe.0.proj.', 'stages.#.#.cpe1.conv.'),
        ('stages.#.#.cpe.1.proj.', 'stages.#.#.cpe2.conv.'),
        ('stages.#.#.norm1.', 'stages.#.#.attn_norm.'),
        ('stages.#.#.norm2.', 'stages.#.#.mlp_norm.'),
        ('stages.#.#.norm3.', 'stages.#.#.lcm_norm.'),
        ('stages.#.#.local_mp.', 'stages.#.#.lcm.'),
        ('stages.#.#.attn.temperature$', 'stages.#.#.attn.temperature$', 'h -> h 1 1'),
        ('norm.', 'norm3.'),
        ('head.', None),
    )

    block_types = (WindowBlock, LinearBlock)

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        in_channels: int = 3,
        window_size: int | None = None,
        drop_path_rate: float = 0.0,
        norm_cfg: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        settings = resolve_arch(arch, self.arch_zoo, optional=dict(window_size=7, mlp_ratio=4.0))
        channels, depths, num_heads = (settings[k] for k in ('channels', 'depths', 'num_heads'))
        if window_size is None:
            window_size = settings['window_size']
        if window_size < 1:
            raise ValueError(f'window_size must be 1 token or more, got {window_size}')
        rates = drop_path_rates(drop_path_rate, depths)

        def make_block(stage: int, block: int) -> nn.Module:
            size = (channels[stage], num_heads[stage], settings['mlp_ratio'], next(rates))
            return LinearBlock(*size, norm_cfg) if block % 2 else WindowBlock(*size, window_size)

        super().__init__(
            in_channels=in_channels,
            channels=channels,
            strides=[4 * 2**stage for stage in range(len(depths))],
            stem=ConvStem(in_channels, channels[0], norm_cfg),
            downsamples=(
                Downsample(before, after)
                for before, after in zip(channels, channels[1:], strict=False)
            ),
            stages=(
                [make_block(stage, block) for block in range(depth)]
                for stage, depth in enumerate(depths)
            ),
            **kwargs,
        )
