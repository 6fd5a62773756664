"""Data preprocessor for mmseg, imported as soon as ``mmseg.models`` is."""

from mmengine.registry import MODELS
from mmseg.models import SegDataPreProcessor

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin


@MODELS.register_module()
class ValidRegionSegDataPreProcessor(ValidRegionMixin, SegDataPreProcessor):
    """mmseg's ``SegDataPreProcessor`` that keeps images apart from their padding.

    Takes the arguments of ``SegDataPreProcessor``. For what it does and its errors see
    :class:`~l2vit_mm.data_preprocessors.valid_region.ValidRegionMixin`.
    """
