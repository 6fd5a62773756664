"""For mmpretrain. Imported once ``mmpretrain.models`` is."""

from mmengine.registry import MODELS
from mmpretrain.models import ClsDataPreprocessor

from l2vit_mm.data_preprocessors.valid_region import ValidRegionMixin


@MODELS.register_module()
class ValidRegionClsDataPreprocessor(ValidRegionMixin, ClsDataPreprocessor):
    """mmpretrain's ``ClsDataPreprocessor``, for backbones that keep images apart from their padding.

    Arguments: those of ``ClsDataPreprocessor``. What it does, errors: see
    :class:`~l2vit_mm.data_preprocessors.valid_region.ValidRegionMixin`.
    """
