"""Modules shared by the backbones. Imports nothing of MM."""
from l2vit_mm.layers.attention import EnhancedLinearAttention, WindowAttention
from l2vit_mm.layers.common import (MLP, ConditionalPositionEncoding, ConvStem, Downsample,
                                    DropPath, LocalConcentrationModule)
from l2vit_mm.layers.layout import TokenLayout
from l2vit_mm.layers.norm import BATCH_NORMS, build_batch_norm

__all__ = [
    'BATCH_NORMS', 'ConditionalPositionEncoding', 'ConvStem', 'Downsample', 'DropPath',
    'EnhancedLinearAttention', 'LocalConcentrationModule', 'MLP', 'TokenLayout', 'WindowAttention',
    'build_batch_norm'
]
