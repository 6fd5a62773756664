"""FLatten-DeiT (arXiv 2308.00442)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from l2vit_mm.backbones.arch import resolve_arch
from l2vit_mm.backbones.flatten import FLattenBackbone
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.layers import PatchEmbedding, PositionTable, SelfAttention, SoftmaxAttention
from l2vit_mm.registry import register_backbone


@register_backbone(
    'flatten-deit', test_arch=dict(channels=8, depth=3, num_heads=2, pretrain_size=64)
)
class FLattenDeiT(FLattenBackbone):
    """FLatten-DeiT (arXiv 2308.00442): a DeiT (arXiv 2012.12877) with linear attention, without
    class token: a plain backbone, whose maps all have stride 16.

    The paper has it, but no code or weights were released.
    :class:`~l2vit_mm.necks.SimpleFeaturePyramid` makes strides 4 to 32 from the last map.

    Args:
        arch (str | dict): 'tiny', 'small', 'base', or a dict with ``channels``, ``depth``,
            ``num_heads`` and optionally ``patch_size`` (16), ``mlp_ratio`` (4), ``attn_types``
            ('L') and ``pretrain_size`` (224).
        out_indices (Sequence[int], optional): blocks whose maps are returned; a stage is a block
            here. None: the last.
        kwargs: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Raises:
        TypeError, ValueError: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`.

    Example:
        >>> import torch
        >>> from l2vit_mm.backbones import FLattenDeiT
        >>> [tuple(y.shape) for y in FLattenDeiT('tiny')(torch.rand(1, 3, 100, 130))]
        [(1, 192, 7, 9)]
    """

    arch_zoo = {
        'tiny': dict(channels=192, depth=12, num_heads=3),
        'small': dict(channels=384, depth=12, num_heads=6),
        'base': dict(channels=768, depth=12, num_heads=12),
    }
    arch_defaults = dict(FLattenBackbone.arch_defaults, attn_types='L', patch_size=16)
    norm_eps = 1e-6
    published_names = NameTable()  # no code was released

    def __init__(
        self,
        arch: str | dict[str, Any] = 'tiny',
        *,
        out_indices: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        if out_indices is None:
            out_indices = (len(self.resolve(arch)['depths']) - 1,)
        super().__init__(arch, out_indices=out_indices, **kwargs)

    @classmethod
    def resolve(cls, arch: str | dict[str, Any]) -> dict[str, Any]:
        settings = resolve_arch(arch, cls.arch_zoo, cls.arch_defaults)
        depth = settings['depth']
        return {
            **settings,
            'channels': (settings['channels'],) * depth,
            'depths': (1,) * depth,
            'num_heads': (settings['num_heads'],) * depth,
        }

    def stride(self, stage: int) -> int:
        return self.settings['patch_size']

    def make_stem(self, in_channels: int) -> nn.Module:
        patch, size = self.settings['patch_size'], self.map_size(0)
        position = PositionTable(self.channels[0], (size, size))
        nn.init.trunc_normal_(position.table, std=0.02)
        return PatchEmbedding(
            in_channels, self.channels[0], patch, patch, norm=False, position=position
        )

    def make_downsamples(self) -> Iterator[nn.Module]:
        return iter(())

    def make_attention(self, stage: int, block: int) -> nn.Module:
        core = (
            self.linear_core(stage, self.map_size(stage))
            if self.attn_types[stage][block] == 'L'
            else SoftmaxAttention(self.num_heads[stage])
        )
        return SelfAttention(self.channels[stage], core)
