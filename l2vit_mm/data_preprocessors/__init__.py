"""Data preprocessors that pass the image sizes of a padded batch to the backbone.

Those for mmdet, mmseg and mmpretrain are in files of their own, which import their toolbox.
"""

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin, ValidRegionTensor

__all__ = ['ValidRegionMixin', 'ValidRegionTensor']
