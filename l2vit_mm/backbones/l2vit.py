"""L2ViT (arXiv 2501.16182): window attention and linear global attention in turn."""
from collections.abc import Sequence

from torch import Tensor, nn

from l2vit_mm.backbones.base import HierarchicalBackbone, check_heads, drop_path_rates, resolve_arch
from l2vit_mm.backbones.loading import NameTable
from l2vit_mm.layers import (MLP, ConditionalPositionEncoding, ConvStem, Downsample, DropPath,
                             EnhancedLinearAttention, LocalConcentrationModule, SelfAttention,
                             SoftmaxAttention, TokenLayout, Window)


class WindowBlock(nn.Module):
    """Local half of a pair: CPE, window attention, CPE, MLP.

    Args:
        channels (int): C.
        num_heads (int): heads of the attention.
        window_size (int): side of the windows in tokens.
        mlp_ratio (float): hidden width of the MLP over C.
        drop_path (float): probability of dropping a branch.
    """

    def __init__(self, channels: int, num_heads: int, window_size: int, mlp_ratio: float,
                 drop_path: float) -> None:
        super().__init__()
        self.cpe1 = ConditionalPositionEncoding(channels)
        self.attn_norm = nn.LayerNorm(channels)
        self.attn = SelfAttention(channels, SoftmaxAttention(num_heads),
                                  Window(window_size, window_size))
        self.cpe2 = ConditionalPositionEncoding(channels)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = MLP(channels, mlp_ratio)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
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

    def __init__(self, channels: int, num_heads: int, mlp_ratio: float, drop_path: float,
                 norm_cfg: dict) -> None:
        super().__init__()
        self.cpe1 = ConditionalPositionEncoding(channels)
        self.attn_norm = nn.LayerNorm(channels)
        self.attn = EnhancedLinearAttention(channels, num_heads)
        self.lcm_norm = nn.LayerNorm(channels)
        self.lcm = LocalConcentrationModule(channels, norm_cfg)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = MLP(channels, mlp_ratio)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, layout: TokenLayout) -> Tensor:
        """Tokens (..., C) to tokens (..., C)."""
        x = self.cpe1(x, layout)
        x = x + self.drop_path(self.attn(self.attn_norm(x), layout), layout)
        x = x + self.drop_path(self.lcm(self.lcm_norm(x), layout), layout)
        return x + self.drop_path(self.mlp(self.mlp_norm(x), layout), layout)


class L2ViT(HierarchicalBackbone):
    """The backbone of "The Linear Attention Resurrection in Vision Transformer" (L2ViT,
    arXiv 2501.16182).

    Blocks of a stage alternate: softmax attention in windows, then linear attention over the whole
    image. Published state dicts load under their own names: a classifier's ``norm`` becomes the
    last output norm and its ``head`` is dropped.

    Args:
        arch (str or dict): ``'tiny'``, ``'small'``, ``'base'``, ``'base-384'``, or ``'pico'`` (of
            this project, for demos and tests: there are no published weights), or a dict with
            ``channels``, ``depths``, ``num_heads`` (one entry a stage) and, as one wishes,
            ``window_size`` (7) and ``mlp_ratio`` (4).
        in_channels (int): channels of the image.
        window_size (int, optional): side of the windows in tokens; None: the architecture's.
        drop_path_rate (float): probability of dropping a branch in the last block; it rises
            linearly from 0 in the first.
        out_indices (Sequence[int]): stages whose maps are returned.
        frozen_stages (int): -1: nothing is frozen; 0: the stem; k: the stem, the first k stages
            and the downsampling before them. Output norms are never frozen.
        norm_eval (bool): keep BatchNorms (in the stem and in every local concentration module) in
            eval mode while training.
        norm_cfg (dict): the BatchNorms: ``dict(type='BN')`` or ``dict(type='SyncBN')``.
        with_cp (bool): recompute blocks in backward instead of keeping their activations.
        output_norm (bool): LayerNorm on each returned map, as the released detectors have.
        pretrained (str, optional): deprecated; use ``init_cfg``.
        init_cfg (dict, optional): as in MM.

    Raises:
        TypeError: for an unknown argument; it names those there are.
        ValueError: for a value that is not accepted; it names the argument.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import L2ViT
        >>> [tuple(y.shape) for y in L2ViT('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 96, 25, 33), (1, 192, 13, 17), (1, 384, 7, 9), (1, 768, 4, 5)]
    """

    arch_zoo = {
        'pico': dict(channels=(32, 64, 128, 192), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 6)),
        'tiny': dict(channels=(96, 192, 384, 768), depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        'small': dict(channels=(96, 192, 384, 768), depths=(2, 2, 18, 2),
                      num_heads=(3, 6, 12, 24)),
        'base': dict(channels=(128, 256, 512, 1024), depths=(2, 2, 18, 2),
                     num_heads=(4, 8, 16, 32)),
        'base-384': dict(channels=(128, 256, 512, 1024), depths=(2, 2, 18, 2),
                         num_heads=(4, 8, 16, 32), window_size=12),
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

    def __init__(self, arch: str | dict = 'tiny', in_channels: int = 3,
                 window_size: int | None = None, drop_path_rate: float = 0.,
                 out_indices: Sequence[int] = (0, 1, 2, 3), frozen_stages: int = -1,
                 norm_eval: bool = False, norm_cfg: dict = dict(type='BN'), with_cp: bool = False,
                 output_norm: bool = True, pretrained: str | None = None,
                 init_cfg: dict | list | None = None, **unknown) -> None:
        super().__init__(in_channels=in_channels, out_indices=out_indices,
                         frozen_stages=frozen_stages, norm_eval=norm_eval, with_cp=with_cp,
                         output_norm=output_norm, pretrained=pretrained, init_cfg=init_cfg,
                         unknown=unknown)
        settings = resolve_arch(arch, self.arch_zoo, optional=dict(window_size=7, mlp_ratio=4.))
        channels, depths, num_heads = (settings[k] for k in ('channels', 'depths', 'num_heads'))
        check_heads(channels, num_heads)
        if window_size is None:
            window_size = settings['window_size']
        if window_size < 1:
            raise ValueError(f'window_size is {window_size}; accepted is 1 or more tokens')

        self.stem = ConvStem(in_channels, channels[0], norm_cfg)
        self.downsamples = nn.ModuleList(
            Downsample(before, after) for before, after in zip(channels, channels[1:]))
        rates = drop_path_rates(drop_path_rate, depths)
        self.stages = nn.ModuleList()
        for stage_channels, depth, heads in zip(channels, depths, num_heads):
            blocks = []
            for block in range(depth):
                args = (stage_channels, heads)
                common = dict(mlp_ratio=settings['mlp_ratio'], drop_path=next(rates))
                blocks.append(
                    LinearBlock(*args, **common, norm_cfg=norm_cfg) if block % 2 else
                    WindowBlock(*args, **common, window_size=window_size))
            self.stages.append(nn.ModuleList(blocks))
        self.finish(channels)
