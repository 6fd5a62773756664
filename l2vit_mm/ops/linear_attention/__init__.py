"""Linear attention over images of any sizes."""

from l2vit_mm.ops.linear_attention.interface import linear_attention, linear_attention_qkvpacked

__all__ = ['linear_attention', 'linear_attention_qkvpacked']
