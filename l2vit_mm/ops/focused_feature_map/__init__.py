"""FLatten's feature map."""

from l2vit_mm.ops.focused_feature_map.interface import focused_feature_map

__all__ = ['focused_feature_map']
