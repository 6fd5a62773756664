"""The pyramid that a plain backbone needs. Of MM it knows ``mmengine.model.BaseModule`` alone."""
from l2vit_mm.necks.simple_feature_pyramid import SimpleFeaturePyramid

__all__ = ['SimpleFeaturePyramid']
