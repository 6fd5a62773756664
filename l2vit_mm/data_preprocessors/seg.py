"""For mmseg. Imported once ``mmseg.models`` is."""

from mmengine.registry import MODELS
from mmseg.models import SegDataPreProcessor

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin


@MODELS.register_module()
class ValidRegionSegDataPreProcessor(ValidRegionMixin, SegDataPreProcessor):
    """mmseg's ``SegDataPreProcessor``, for backbones that keep images apart from their padding.

    Arguments: those of ``SegDataPreProcessor``. What it does, errors: see
    :class:`~l2vit_mm.data_preprocessors.valid_region.ValidRegionMixin`.
    """
