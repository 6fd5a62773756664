"""Modules shared by the backbones. Imports no OpenMMLab package."""

from l2vit_mm.layers.attention import (
    LinearGlobalAttention,
    SelfAttention,
    ShiftedWindowAttention,
    SpatialReductionAttention,
)
from l2vit_mm.layers.common import (
    MLP,
    ConditionalPositionEncoding,
    ConvStem,
    Downsample,
    DropPath,
    LocalConcentrationModule,
    PatchEmbedding,
    TransformerBlock,
    depthwise_conv,
    pad_to_multiple,
)
from l2vit_mm.layers.cores import (
    ATTENTIONS,
    EfficientAttention,
    FocusedLinearAttention,
    HydraAttention,
    MappedLinearAttention,
    SoftmaxAttention,
    build_attention,
)
from l2vit_mm.layers.layout import DenseLayout, Layout, PackedLayout, Window
from l2vit_mm.layers.norm import BATCH_NORMS, build_batch_norm
from l2vit_mm.layers.position import PositionTable, RelativePositionBias, ResizedTable

__all__ = [
    'ATTENTIONS',
    'BATCH_NORMS',
    'build_attention',
    'build_batch_norm',
    'ConditionalPositionEncoding',
    'ConvStem',
    'DenseLayout',
    'depthwise_conv',
    'Downsample',
    'DropPath',
    'EfficientAttention',
    'FocusedLinearAttention',
    'HydraAttention',
    'Layout',
    'LinearGlobalAttention',
    'LocalConcentrationModule',
    'MappedLinearAttention',
    'MLP',
    'PackedLayout',
    'pad_to_multiple',
    'PatchEmbedding',
    'PositionTable',
    'RelativePositionBias',
    'ResizedTable',
    'SelfAttention',
    'ShiftedWindowAttention',
    'SoftmaxAttention',
    'SpatialReductionAttention',
    'TransformerBlock',
    'Window',
]
