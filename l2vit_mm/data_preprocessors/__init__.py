"""Data preprocessors that tell a backbone how large the images of a padded batch are.

Those of the toolboxes are in files of their own, which import their toolbox.
"""

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin, ValidRegionTensor

__all__ = ['ValidRegionMixin', 'ValidRegionTensor']
