"""Data preprocessor for mmpretrain, imported as soon as ``mmpretrain.models`` is."""

from mmengine.registry import MODELS
from mmpretrain.models import ClsDataPreprocessor

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin


@MODELS.register_module()
class ValidRegionClsDataPreprocessor(ValidRegionMixin, ClsDataPreprocessor):
    """mmpretrain's ``ClsDataPreprocessor`` that keeps images apart from their padding.

    Takes the arguments of ``ClsDataPreprocessor``. For what it does and its errors see
    :class:`~l2vit_mm.data_preprocessors.valid_region.ValidRegionMixin`.
    """
