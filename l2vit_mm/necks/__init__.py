"""Necks for plain backbones. Of the OpenMMLab packages they import mmengine only."""

from l2vit_mm.necks.simple_feature_pyramid import SimpleFeaturePyramid

__all__ = ['SimpleFeaturePyramid']
