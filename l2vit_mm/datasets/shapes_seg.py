"""The generated shapes for mmseg."""

from typing import Any

from mmengine.registry import DATASETS
from mmseg.datasets import BaseSegDataset

from l2vit_mm.datasets.shapes import SEG_CLASSES, SEG_PALETTE


@DATASETS.register_module()
class ShapesSegDataset(BaseSegDataset):
    """The generated shapes, for semantic segmentation.

    In the PNGs 0 is unlabeled, 1 the background and 2 to 9 the shapes, so ``reduce_zero_label``
    makes them 255 (ignored) and the indices of ``METAINFO['classes']``.

    Args:
        img_suffix (str): Suffix of the images.
        seg_map_suffix (str): Suffix of the label maps.
        reduce_zero_label (bool): Whether to ignore label 0 and subtract 1 from the others.
        **kwargs: Other arguments of :class:`mmseg.datasets.BaseSegDataset`.
    """

    METAINFO = dict(classes=SEG_CLASSES, palette=SEG_PALETTE)

    def __init__(
        self,
        img_suffix: str = '.jpg',
        seg_map_suffix: str = '.png',
        reduce_zero_label: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            img_suffix=img_suffix,
            seg_map_suffix=seg_map_suffix,
            reduce_zero_label=reduce_zero_label,
            **kwargs,
        )
