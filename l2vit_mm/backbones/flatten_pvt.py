"""FLatten-PVT and FLatten-PVTv2 (arXiv 2308.00442)."""
from collections.abc import Sequence

import torch
from torch import nn

from l2vit_mm.backbones.flatten import FLattenBackbone, check_per_stage
from l2vit_mm.backbones.loading import NameTable
from l2vit_mm.layers import (PatchEmbedding, PositionTable, SoftmaxAttention,
                             SpatialReductionAttention)

_CHANNELS, _HEADS, _MLP_RATIOS = (64, 128, 320, 512), (1, 2, 5, 8), (8, 8, 4, 4)
_SOFTMAX_SR_RATIOS = (8, 4, 2, 1)


class _PyramidBackbone(FLattenBackbone):
    """What the two versions have in common."""

    arch_defaults = dict(attn_types='LLLL', pretrain_size=224)
    norm_eps = 1e-6  # of the blocks; the other norms have 1e-5

    published_names = NameTable(
        ('patch_embed1.', 'stem.'),
        *((f'patch_embed{i + 2}.', f'downsamples.{i}.') for i in range(3)),
        *((f'block{i + 1}.', f'stages.{i}.') for i in range(4)),
        ('stages.#.#.attn.sr.', 'stages.#.#.attn.reduction.'),
        ('stages.#.#.attn.norm.', 'stages.#.#.attn.reduction_norm.'),
        *FLattenBackbone.published_names.rows,
    )

    def __init__(self, arch: str | dict, *, sr_ratios: Sequence[int] | None = None,
                 output_norm: bool = False, **common) -> None:
        super().__init__(arch, output_norm=output_norm, **common)
        if sr_ratios is not None:
            check_per_stage('sr_ratios', sr_ratios, self.depths, optional=False)
        elif any('S' in types for types in self.attn_types):
            check_per_stage('sr_ratios', _SOFTMAX_SR_RATIOS, self.depths, optional=False)
        self.sr_ratios = sr_ratios

    def make_attention(self, stage: int, block: int) -> nn.Module:
        linear = self.attn_types[stage][block] == 'L'
        if self.sr_ratios is not None:
            reduction = self.sr_ratios[stage]
        else:
            reduction = 1 if linear else _SOFTMAX_SR_RATIOS[stage]
        core = (self.linear_core(stage, -(-self.map_size(stage) // reduction)) if linear else
                SoftmaxAttention(self.num_heads[stage]))
        return SpatialReductionAttention(self.channels[stage], core, reduction)


class FLattenPVT(_PyramidBackbone):
    """FLatten-PVT (arXiv 2308.00442): a PVT (arXiv 2102.12122) with linear attention.

    Published files load under their own names; ``norm``, which the published code doesn't use, and
    ``head`` are dropped. The stages end in no norm, and released detectors on PVT add none, so
    ``output_norm`` is False unless it is asked for. Other arguments, errors: see
    :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Args:
        arch (str or dict): 'tiny', 'small', 'medium', 'large', or a dict with ``channels``,
            ``depths``, ``num_heads``, ``mlp_ratios`` (one entry a stage) and, as one wishes,
            ``attn_types`` ('LLLL') and ``pretrain_size`` (224).
        sr_ratios (Sequence[int], optional): how many times smaller than the map the keys' and
            values' map is, one a stage. None: 1 in linear blocks; 8, 4, 2, 1 in softmax blocks.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import FLattenPVT
        >>> [tuple(y.shape) for y in FLattenPVT('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 64, 25, 33), (1, 128, 13, 17), (1, 320, 7, 9), (1, 512, 4, 5)]
    """

    arch_zoo = {
        name: dict(channels=_CHANNELS, depths=depths, num_heads=_HEADS, mlp_ratios=_MLP_RATIOS)
        for name, depths in dict(tiny=(2, 2, 2, 2), small=(3, 4, 6, 3), medium=(3, 4, 18, 3),
                                 large=(3, 8, 27, 3)).items()
    }
    published_names = NameTable(
        ('norm.', None),
        *_PyramidBackbone.published_names.rows,
        ('pos_embed1$', 'stem.position.table$', 'h w c -> 1 (h w) c'),
        *((f'pos_embed{i + 2}$', f'downsamples.{i}.position.table$', 'h w c -> 1 (h w) c')
          for i in range(3)),
    )

    def __init__(self, arch: str | dict = 'tiny', **common) -> None:
        super().__init__(arch, **common)
        self.build()

    def make_stem(self) -> nn.Module:
        return self._embedding(self.in_channels, 0, 4)

    def make_downsample(self, stage: int) -> nn.Module:
        return self._embedding(self.channels[stage - 1], stage, 2)

    def _embedding(self, in_channels: int, stage: int, stride: int) -> nn.Module:
        size = self.map_size(stage)
        position = PositionTable(self.channels[stage], (size, size), mode='bilinear')
        nn.init.trunc_normal_(position.table, std=0.02)
        return PatchEmbedding(in_channels, self.channels[stage], stride, stride, position=position)

    def published_only(self) -> dict:
        """A norm that the published code makes and doesn't use."""
        channels = self.channels[-1]
        return {'norm.weight': torch.ones(channels), 'norm.bias': torch.zeros(channels)}


class FLattenPVTv2(_PyramidBackbone):
    """FLatten-PVTv2 (arXiv 2308.00442): a PVTv2 (arXiv 2106.13797) with linear attention.

    Published files load under their own names; ``head`` is dropped. Each stage ends in a norm that
    is part of the model, so ``output_norm`` can't be asked for. Other arguments, errors: see
    :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Args:
        arch (str or dict): 'b0' to 'b5', or a dict as for :class:`FLattenPVT`.
        sr_ratios (Sequence[int], optional): as for :class:`FLattenPVT`.
    """

    arch_zoo = {
        'b0': dict(channels=(32, 64, 160, 256), depths=(2, 2, 2, 2), num_heads=_HEADS,
                   mlp_ratios=_MLP_RATIOS),
        **{
            name: dict(channels=_CHANNELS, depths=depths, num_heads=_HEADS, mlp_ratios=ratios)
            for name, depths, ratios in (
                ('b1', (2, 2, 2, 2), _MLP_RATIOS), ('b2', (3, 4, 6, 3), _MLP_RATIOS),
                ('b3', (3, 4, 18, 3), _MLP_RATIOS), ('b4', (3, 8, 27, 3), _MLP_RATIOS),
                ('b5', (3, 6, 40, 3), (4, 4, 4, 4)))
        },
    }
    depthwise_mlp = True
    published_names = NameTable(
        *((f'norm{i + 1}.', f'stage_norms.{i}.') for i in range(4)),
        *_PyramidBackbone.published_names.rows,
        ('stages.#.#.mlp.dwconv.dwconv.', 'stages.#.#.mlp.dwconv.'),
    )

    def __init__(self, arch: str | dict = 'b0', *, output_norm: bool = False,
                 **common) -> None:
        if output_norm:
            raise ValueError('output_norm is True; accepted is False: the stages of FLattenPVTv2 '
                             'end in norms of their own')
        super().__init__(arch, **common)
        self.stage_norms = nn.ModuleList(
            nn.LayerNorm(channels, self.norm_eps) for channels in self.channels)
        self.build()

    def make_stem(self) -> nn.Module:
        return PatchEmbedding(self.in_channels, self.channels[0], 7, 4, padding=3)

    def make_downsample(self, stage: int) -> nn.Module:
        return PatchEmbedding(*self.channels[stage - 1:stage + 1], 3, 2, padding=1)

    @staticmethod
    def init_parameters(module: nn.Module) -> None:
        """Linear: truncated normal of 0.02; convolutions: normal of sqrt(2 / fan-out), which counts
        the channels of a group; biases 0."""
        if isinstance(module, nn.Conv2d):
            kernel = module.kernel_size[0] * module.kernel_size[1]
            fan_out = kernel * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2 / fan_out)**0.5)
            nn.init.zeros_(module.bias)
        else:
            FLattenBackbone.init_parameters(module)
