"""The generated shapes for mmdet."""

from mmdet.datasets import CocoDataset
from mmengine.registry import DATASETS

from l2vit_mm.datasets.shapes import CLASSES, PALETTE


@DATASETS.register_module()
class ShapesDetDataset(CocoDataset):
    """The generated shapes, for detection and instance segmentation.

    Takes the arguments of :class:`mmdet.datasets.CocoDataset`. Masks are RLE: load them with
    ``LoadAnnotations(with_mask=True)``, whose default is ``poly2mask=True``. With
    ``poly2mask=False`` mmdet keeps polygons only and would ignore every object.
    """

    METAINFO = dict(classes=CLASSES, palette=PALETTE)
