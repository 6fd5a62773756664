"""Linear attention. Imports torch and nothing of MM, so that it can be used alone."""
from l2vit_mm.ops.linear_attention import (focused_feature_map, linear_attention,
                                           linear_attention_qkv)

__all__ = ['focused_feature_map', 'linear_attention', 'linear_attention_qkv']
