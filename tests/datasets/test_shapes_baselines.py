import sys

import numpy as np
import pytest
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO

from l2vit_mm.datasets.shapes import SEG_CLASSES, baselines


@pytest.fixture(scope='module')
def truth(root):
    return COCO(str(root / 'annotations/instances_validation.json'))


def test_predictors_that_do_not_look_score_next_to_nothing(root):
    rows = {name: values for name, *values in baselines.compute_scores(root)}
    assert len(rows) == 6
    boxes = [values[:2] for values in rows.values() if values[0] is not None]
    assert len(boxes) == 3 and np.max(boxes) < 0.05
    ious = {name: values[2] for name, values in rows.items() if values[2] is not None}
    assert len(ious) == 3 and max(ious.values()) < 0.15
    # Background everywhere: its share of the pixels, over nine classes.
    assert 0.6 / 9 < ious['background everywhere'] < 0.9 / 9


def test_the_truth_scores_one(truth):
    found = [
        dict(
            image_id=annotation['image_id'],
            category_id=annotation['category_id'],
            segmentation=annotation['segmentation'],
            bbox=annotation['bbox'],
            score=0.9,
        )
        for annotation in truth.anns.values()
    ]
    for kind in ('bbox', 'segm'):
        assert baselines.mean_ap(truth, found, kind) == pytest.approx(1)
    for detection in found:  # the right boxes, filled
        x, y, w, h = map(int, detection['bbox'])
        mask = np.zeros(detection['segmentation']['size'], np.uint8, order='F')
        mask[y : y + h, x : x + w] = 1
        detection['segmentation'] = mask_utils.encode(mask)
    assert baselines.mean_ap(truth, found, 'bbox') == pytest.approx(1)
    assert baselines.mean_ap(truth, found, 'segm') < 0.3
    for detection in found:
        detection['category_id'] = detection['category_id'] % 8 + 1
    assert baselines.mean_ap(truth, found, 'bbox') < 0.1


def test_mean_iou_is_that_of_mmseg():
    torch = pytest.importorskip('torch')
    pytest.importorskip('mmseg')
    from mmseg.evaluation import IoUMetric

    num = len(SEG_CLASSES)
    rng = np.random.default_rng(0)
    pairs = [
        (rng.integers(1, num + 1, (20, 30)), rng.integers(0, num + 1, (20, 30))) for _ in range(3)
    ]
    areas = [
        IoUMetric.intersect_and_union(
            torch.from_numpy(predicted - 1),
            torch.from_numpy(np.where(true, true - 1, 255)),
            num,
            255,
        )
        for predicted, true in pairs
    ]
    expected = IoUMetric.total_area_to_metrics(*map(sum, zip(*areas, strict=True)))['IoU'].mean()
    assert baselines.mean_iou(pairs) == pytest.approx(expected, abs=1e-6)


def test_command(root, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, 'argv', ['baselines', '--root', str(root)])
    baselines.main()
    assert '| background everywhere |  |  | 0.0' in capsys.readouterr().out
    monkeypatch.setattr(sys, 'argv', ['baselines', '--root', str(tmp_path)])
    with pytest.raises(SystemExit, match=f'root must be a shapes data set.*got {tmp_path}'):
        baselines.main()
