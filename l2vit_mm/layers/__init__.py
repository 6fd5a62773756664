"""Modules shared by the backbones. Imports nothing of MM."""
from l2vit_mm.layers.attention import (EnhancedLinearAttention, SelfAttention,
                                       ShiftedWindowAttention, SpatialReductionAttention)
from l2vit_mm.layers.common import (MLP, ConditionalPositionEncoding, ConvStem, Downsample,
                                    DropPath, LocalConcentrationModule, PatchEmbedding,
                                    TransformerBlock, depthwise_conv, pad_to_multiple)
from l2vit_mm.layers.cores import (ATTENTIONS, EfficientAttention, FocusedLinearAttention,
                                   HydraAttention, MappedLinearAttention, SoftmaxAttention,
                                   build_attention)
from l2vit_mm.layers.layout import PackedLayout, TokenLayout, Window
from l2vit_mm.layers.norm import BATCH_NORMS, build_batch_norm
from l2vit_mm.layers.position import PositionTable, RelativePositionBias, ResizedTable

__all__ = [
    'ATTENTIONS', 'BATCH_NORMS', 'ConditionalPositionEncoding', 'ConvStem', 'Downsample',
    'DropPath', 'EfficientAttention', 'EnhancedLinearAttention', 'FocusedLinearAttention',
    'HydraAttention', 'LocalConcentrationModule', 'MLP', 'MappedLinearAttention',
    'PackedLayout', 'PatchEmbedding', 'PositionTable', 'RelativePositionBias', 'ResizedTable', 'SelfAttention',
    'ShiftedWindowAttention', 'SoftmaxAttention', 'SpatialReductionAttention', 'TokenLayout',
    'TransformerBlock', 'Window', 'build_attention', 'build_batch_norm', 'depthwise_conv',
    'pad_to_multiple'
]
