"""The data set classes of the toolboxes."""

import subprocess
import sys

import numpy as np
import pytest

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.datasets.shapes import CLASSES, PALETTE, SEG_CLASSES, SEG_PALETTE, render


def test_shapes_need_no_toolbox():
    # In a process of its own: here, other tests have imported them.
    subprocess.run(
        [
            sys.executable,
            '-c',
            """
import sys
import l2vit_mm
before = {*sys.modules}
import l2vit_mm.datasets.shapes
new = {name.split('.')[0] for name in {*sys.modules} - before}
assert not new & {'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg', 'pycocotools'}, new
""",
        ],
        check=True,
    )


def test_detection(root):
    pytest.importorskip('mmdet')
    from mmdet.registry import DATASETS

    from l2vit_mm.datasets.shapes_det import ShapesDetDataset

    dataset = DATASETS.build(
        dict(
            type='ShapesDetDataset',
            data_root=str(root),
            ann_file='annotations/instances_validation.json',
            data_prefix=dict(img='images/validation/'),
            filter_cfg=dict(filter_empty_gt=True, min_size=32),
            pipeline=[
                dict(type='LoadImageFromFile'),
                dict(type='mmdet.LoadAnnotations', with_bbox=True, with_mask=True),
            ],
        )
    )
    assert type(dataset) is ShapesDetDataset and len(dataset) == 25
    assert dataset.metainfo == dict(classes=CLASSES, palette=PALETTE)
    for index in range(25):
        found = dataset[index]
        _, objects = render(3, index, 'validation')
        assert found['gt_bboxes_labels'].tolist() == [label for label, _ in objects]
        assert not found['gt_ignore_flags'].any()
        masks = found['gt_masks'].masks
        assert np.array_equal(masks, [mask for _, mask in objects])
        boxes = found['gt_masks'].get_bboxes(type(found['gt_bboxes'])).tensor
        assert np.array_equal(found['gt_bboxes'].tensor, boxes)


def test_segmentation(root):
    pytest.importorskip('mmseg')
    from mmseg.registry import DATASETS

    from l2vit_mm.datasets.shapes_seg import ShapesSegDataset

    dataset = DATASETS.build(
        dict(
            type='ShapesSegDataset',
            data_root=str(root),
            data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
            pipeline=[dict(type='LoadImageFromFile'), dict(type='mmseg.LoadAnnotations')],
        )
    )
    assert type(dataset) is ShapesSegDataset and len(dataset) == 25
    assert dataset.metainfo == dict(
        classes=SEG_CLASSES, palette=SEG_PALETTE, label_map=None, reduce_zero_label=True
    )
    for index in range(25):
        found = dataset[index]
        expected = np.zeros(found['img'].shape[:2])
        for label, mask in render(3, index, 'validation')[1]:
            expected[mask] = SEG_CLASSES.index(CLASSES[label])
        assert np.array_equal(found['gt_seg_map'], expected)


def test_classes_are_found_from_every_toolbox():
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    from mmengine.registry import DATASETS

    from l2vit_mm.datasets import shapes_det, shapes_seg

    assert DATASETS.get('ShapesDetDataset') is shapes_det.ShapesDetDataset
    assert DATASETS.get('ShapesSegDataset') is shapes_seg.ShapesSegDataset
