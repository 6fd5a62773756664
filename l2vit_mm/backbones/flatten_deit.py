"""FLatten-DeiT (arXiv 2308.00442)."""
from collections.abc import Sequence

from torch import nn

from l2vit_mm.backbones.base import resolve_arch
from l2vit_mm.backbones.flatten import FLattenBackbone
from l2vit_mm.backbones.loading import NameTable
from l2vit_mm.layers import PatchEmbedding, PositionTable, SelfAttention, SoftmaxAttention


class FLattenDeiT(FLattenBackbone):
    """FLatten-DeiT (arXiv 2308.00442): a DeiT (arXiv 2012.12877) with linear attention, without
    class token: a plain backbone, whose maps all have stride 16.

    The paper has it, but no code or weights were released.
    :class:`~l2vit_mm.necks.SimpleFeaturePyramid` makes strides 4 to 32 from the last map. Other
    arguments, errors: see :class:`~l2vit_mm.backbones.flatten.FLattenBackbone`; a stage is a block
    here.

    Args:
        arch (str or dict): 'tiny', 'small', 'base', or a dict with ``channels``, ``depth``,
            ``num_heads`` and, as one wishes, ``patch_size`` (16), ``mlp_ratio`` (4),
            ``attn_types`` ('L') and ``pretrain_size`` (224).
        out_indices (Sequence[int], optional): blocks whose maps are returned. None: the last.

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
    plain = True
    published_names = NameTable()  # no code was released

    def __init__(self, arch: str | dict = 'tiny', *,
                 out_indices: Sequence[int] | None = None, **common) -> None:
        if out_indices is None:
            out_indices = (len(self.resolve(arch)['depths']) - 1,)
        super().__init__(arch, out_indices=out_indices, **common)
        self.stem_stride = self.settings['patch_size']
        self.build()

    @classmethod
    def resolve(cls, arch: str | dict) -> dict:
        settings = resolve_arch(arch, cls.arch_zoo, cls.arch_defaults)
        depth = settings['depth']
        return {**settings, 'channels': (settings['channels'],) * depth, 'depths': (1,) * depth,
                'num_heads': (settings['num_heads'],) * depth}

    def make_stem(self) -> nn.Module:
        patch, size = self.stem_stride, self.map_size(0)
        position = PositionTable(self.channels[0], (size, size))
        nn.init.trunc_normal_(position.table, std=0.02)
        return PatchEmbedding(self.in_channels, self.channels[0], patch, patch, norm=False,
                              position=position)

    def make_attention(self, stage: int, block: int) -> nn.Module:
        core = (self.linear_core(stage, self.map_size(stage))
                if self.attn_types[stage][block] == 'L' else
                SoftmaxAttention(self.num_heads[stage]))
        return SelfAttention(self.channels[stage], core)
