"""Data preprocessor for mmdet, imported as soon as ``mmdet.models`` is."""

from mmdet.models import DetDataPreprocessor
from mmengine.registry import MODELS

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin


@MODELS.register_module()
class ValidRegionDetDataPreprocessor(ValidRegionMixin, DetDataPreprocessor):
    """mmdet's ``DetDataPreprocessor`` that keeps images apart from their padding.

    Takes the arguments of ``DetDataPreprocessor``. For what it does and its errors see
    :class:`~l2vit_mm.data_preprocessors.valid_region.ValidRegionMixin`.
    """
