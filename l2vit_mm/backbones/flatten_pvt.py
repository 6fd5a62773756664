"""FLatten-PVT and FLatten-PVTv2 (arXiv 2308.00442)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from l2vit_mm.backbones.flatten import FLattenBackbone, check_per_stage
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.layers import (
    PatchEmbedding,
    PositionTable,
    SoftmaxAttention,
    SpatialReductionAttention,
)
from l2vit_mm.registry import register_backbone

_CHANNELS, _HEADS, _MLP_RATIOS = (64, 128, 320, 512), (1, 2, 5, 8), (8, 8, 4, 4)
_SOFTMAX_SR_RATIOS = (8, 4, 2, 1)
_TEST_ARCH = dict(
    channels=(8, 16),
    depths=(1, 2),
    num_heads=(1, 2),
    mlp_ratios=(2, 2),
    attn_types='LL',
    pretrain_size=32,
)


@register_backbone('flatten-pvt', test_arch=_TEST_ARCH)
class FLattenPVT(FLattenBackbone):
    """FLatten-PVT (arXiv 2308.00442): a PVT (arXiv 2102.12122) with linear attention.

    Published files load under their own names; ``norm``, which the published code doesn't use, and
    ``head`` are skipped. The stages end in no norm, and released detectors on PVT add none, so
    ``output_norm`` is False by default.

    Args:
        arch (str | dict): 'tiny', 'small', 'medium', 'large', or a dict with ``channels``,
            ``depths``, ``num_heads``, ``mlp_ratios`` (one entry per stage) and optionally
            ``attn_types`` ('LLLL') and ``pretrain_size`` (224).
        sr_ratios (Sequence[int], optional): how many times smaller than the map the keys' and
            values' map is, one number per stage. None: 1 in linear blocks; 8, 4, 2, 1 in softmax
            blocks.
        output_norm (bool): LayerNorm on each returned map.
        kwargs: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Raises:
        TypeError, ValueError: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import FLattenPVT
        >>> [tuple(y.shape) for y in FLattenPVT('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 64, 25, 33), (1, 128, 13, 17), (1, 320, 7, 9), (1, 512, 4, 5)]
    """

    arch_zoo = {
        name: dict(channels=_CHANNELS, depths=depths, num_heads=_HEADS, mlp_ratios=_MLP_RATIOS)
        for name, depths in dict(
            tiny=(2, 2, 2, 2), small=(3, 4, 6, 3), medium=(3, 4, 18, 3), large=(3, 8, 27, 3)
        ).items()
    }
    arch_defaults = dict(attn_types='LLLL', pretrain_size=224)
    norm_eps = 1e-6  # of the blocks; the other norms have 1e-5
    published_names = NameTable(
        ('norm.', None),
        ('patch_embed1.', 'stem.'),
        *((f'patch_embed{i + 2}.', f'downsamples.{i}.') for i in range(3)),
        *((f'block{i + 1}.', f'stages.{i}.') for i in range(4)),
        ('stages.#.#.attn.sr.', 'stages.#.#.attn.reduction.'),
        ('stages.#.#.attn.norm.', 'stages.#.#.attn.reduction_norm.'),
        *FLattenBackbone.published_names.rows,
        ('pos_embed1$', 'stem.position.table$', 'h w c -> 1 (h w) c'),
        *(
            (f'pos_embed{i + 2}$', f'downsamples.{i}.position.table$', 'h w c -> 1 (h w) c')
            for i in range(3)
        ),
    )

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        sr_ratios: Sequence[int] | None = None,
        output_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(arch, output_norm=output_norm, options=dict(sr_ratios=sr_ratios), **kwargs)

    def check_options(self) -> None:
        check_sr_ratios(self)

    def make_stem(self, in_channels: int) -> nn.Module:
        return self._embedding(in_channels, 0, 4)

    def make_downsamples(self) -> Iterator[nn.Module]:
        return (
            self._embedding(self.channels[stage - 1], stage, 2)
            for stage in range(1, len(self.depths))
        )

    def _embedding(self, in_channels: int, stage: int, stride: int) -> nn.Module:
        size = self.map_size(stage)
        position = PositionTable(self.channels[stage], (size, size), mode='bilinear')
        nn.init.trunc_normal_(position.table, std=0.02)
        return PatchEmbedding(in_channels, self.channels[stage], stride, stride, position=position)

    def make_attention(self, stage: int, block: int) -> nn.Module:
        return make_reduced_attention(self, stage, block)

    def published_only(self) -> dict[str, Tensor]:
        """A norm that the published code makes and doesn't use."""
        channels = self.channels[-1]
        return {'norm.weight': torch.ones(channels), 'norm.bias': torch.zeros(channels)}


@register_backbone('flatten-pvt-v2', test_arch=_TEST_ARCH)
class FLattenPVTv2(FLattenBackbone):
    """FLatten-PVTv2 (arXiv 2308.00442): a PVTv2 (arXiv 2106.13797) with linear attention.

    Published files load under their own names; ``head`` is skipped. Each stage ends in a norm that
    is part of the model, so there is no ``output_norm``.

    Args:
        arch (str | dict): 'b0' to 'b5', or a dict as for :class:`FLattenPVT`.
        sr_ratios (Sequence[int], optional): as for :class:`FLattenPVT`.
        output_norm (bool): False.
        kwargs: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Raises:
        TypeError, ValueError: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import FLattenPVTv2
        >>> [tuple(y.shape) for y in FLattenPVTv2('b0')(torch.rand(1, 3, 100, 130))]
        [(1, 32, 25, 33), (1, 64, 13, 17), (1, 160, 7, 9), (1, 256, 4, 5)]
    """

    arch_zoo = {
        'b0': dict(
            channels=(32, 64, 160, 256),
            depths=(2, 2, 2, 2),
            num_heads=_HEADS,
            mlp_ratios=_MLP_RATIOS,
        ),
        **{
            name: dict(channels=_CHANNELS, depths=depths, num_heads=_HEADS, mlp_ratios=ratios)
            for name, depths, ratios in (
                ('b1', (2, 2, 2, 2), _MLP_RATIOS),
                ('b2', (3, 4, 6, 3), _MLP_RATIOS),
                ('b3', (3, 4, 18, 3), _MLP_RATIOS),
                ('b4', (3, 8, 27, 3), _MLP_RATIOS),
                ('b5', (3, 6, 40, 3), (4, 4, 4, 4)),
            )
        },
    }
    arch_defaults = FLattenPVT.arch_defaults
    norm_eps = FLattenPVT.norm_eps
    depthwise_mlp = True
    published_names = NameTable(
        *((f'norm{i + 1}.', f'stage_norms.{i}.') for i in range(4)),
        # FLatten-PVT's, but for its norm and position tables.
        *(
            row
            for row in FLattenPVT.published_names.rows
            if not row[0].startswith(('norm.', 'pos_embed'))
        ),
        ('stages.#.#.mlp.dwconv.dwconv.', 'stages.#.#.mlp.dwconv.'),
    )

    def __init__(
        self,
        arch: str | dict[str, Any] = 'b0',
        *,
        sr_ratios: Sequence[int] | None = None,
        output_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        if output_norm:
            raise ValueError(
                'output_norm must be False, as the stages of FLattenPVTv2 end in '
                'norms of their own, got True'
            )
        super().__init__(arch, output_norm=False, options=dict(sr_ratios=sr_ratios), **kwargs)

    def check_options(self) -> None:
        check_sr_ratios(self)

    def make_stem(self, in_channels: int) -> nn.Module:
        return PatchEmbedding(in_channels, self.channels[0], 7, 4, padding=3)

    def make_downsamples(self) -> Iterator[nn.Module]:
        return (
            PatchEmbedding(self.channels[stage - 1], self.channels[stage], 3, 2, padding=1)
            for stage in range(1, len(self.depths))
        )

    def make_attention(self, stage: int, block: int) -> nn.Module:
        return make_reduced_attention(self, stage, block)

    def make_stage_norms(self) -> Iterator[nn.Module]:
        return (nn.LayerNorm(channels, self.norm_eps) for channels in self.channels)

    @staticmethod
    def init_parameters(module: nn.Module) -> None:
        """Linear: truncated normal of 0.02; convolutions: normal of sqrt(2 / fan-out), which counts
        the channels of a group; biases 0."""
        if isinstance(module, nn.Conv2d):
            kernel = module.kernel_size[0] * module.kernel_size[1]
            fan_out = kernel * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            FLattenBackbone.init_parameters(module)


def check_sr_ratios(backbone: FLattenBackbone) -> None:
    """Raises a ValueError unless each stage has a spatial reduction."""
    softmax = any('S' in types for types in backbone.attn_types)
    ratios = backbone.settings.get('sr_ratios', _SOFTMAX_SR_RATIOS if softmax else None)
    if ratios is not None:
        check_per_stage('sr_ratios', ratios, backbone.depths, optional=False)


def make_reduced_attention(backbone: FLattenBackbone, stage: int, block: int) -> nn.Module:
    """The attention of a block of PVT or PVTv2, with the spatial reduction of its stage."""
    linear = backbone.attn_types[stage][block] == 'L'
    if 'sr_ratios' in backbone.settings:
        reduction = backbone.settings['sr_ratios'][stage]
    else:
        reduction = 1 if linear else _SOFTMAX_SR_RATIOS[stage]
    key_size = -(-backbone.map_size(stage) // reduction)
    core = (
        backbone.linear_core(stage, key_size)
        if linear
        else SoftmaxAttention(backbone.num_heads[stage])
    )
    return SpatialReductionAttention(backbone.channels[stage], core, reduction)
