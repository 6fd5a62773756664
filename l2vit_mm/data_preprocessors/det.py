"""For mmdet. Imported once ``mmdet.models`` is."""

from mmdet.models import DetDataPreprocessor
from mmengine.registry import MODELS

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin


@MODELS.register_module()
class ValidRegionDetDataPreprocessor(ValidRegionMixin, DetDataPreprocessor):
    """mmdet's ``DetDataPreprocessor``, for backbones that keep images apart from their padding.

    Arguments: those of ``DetDataPreprocessor``. What it does, errors: see
    :class:`~l2vit_mm.data_preprocessors.valid_region.ValidRegionMixin`.
    """
