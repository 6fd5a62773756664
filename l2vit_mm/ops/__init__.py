"""Linear attention. Imports torch and nothing of MM, so that it can be used alone."""
from l2vit_mm.ops.reference import linear_attention

__all__ = ['linear_attention']
