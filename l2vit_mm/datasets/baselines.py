"""What predictors that never look at the image score on "shapes": the floor of the data set.

``python -m l2vit_mm.datasets.baselines --root data/shapes`` prints the table of docs/shapes.md.
"""
import argparse
import contextlib
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from l2vit_mm.datasets.shapes import SEG_CLASSES


def _load(root: Path, split: str) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(root / 'annotations' / f'instances_{split}.json'))


def _detection(image: dict, category: int, mask: np.ndarray, score: float) -> dict:
    rle = mask_utils.encode(np.asfortranarray(mask, np.uint8))
    return dict(image_id=image['id'], category_id=category, segmentation=rle,
                bbox=mask_utils.toBbox(rle).tolist(), score=score)


def whole_image(training: COCO, validation: COCO) -> list[dict]:
    """The whole image, as every class."""
    return [_detection(image, category, np.ones((image['height'], image['width'])), 1.)
            for image in validation.dataset['images'] for category in training.cats]


def mean_box(training: COCO, validation: COCO) -> list[dict]:
    """The mean box of each class in the training images, relative to the image, filled."""
    corners = {category: [] for category in training.cats}
    for annotation in training.anns.values():
        x, y, w, h = annotation['bbox']
        image = training.imgs[annotation['image_id']]
        size = np.array([image['width'], image['height']] * 2)
        corners[annotation['category_id']].append([x, y, x + w, y + h] / size)
    found = []
    for image in validation.dataset['images']:
        for category, boxes in corners.items():
            box = np.mean(boxes, 0) * ([image['width'], image['height']] * 2)
            x0, y0, x1, y1 = np.round(box).astype(int)
            mask = np.zeros((image['height'], image['width']))
            mask[y0:y1, x0:x1] = 1
            found.append(_detection(image, category, mask, 1.))
    return found


def other_objects(training: COCO, validation: COCO, seed: int = 0) -> list[dict]:
    """100 objects of random training images, stretched to the image, with random scores."""
    rng = np.random.default_rng(seed)
    annotations = training.dataset['annotations']
    found = []
    for image in validation.dataset['images']:
        for index in rng.integers(len(annotations), size=100):
            mask = cv2.resize(mask_utils.decode(annotations[index]['segmentation']),
                              (image['width'], image['height']), interpolation=cv2.INTER_NEAREST)
            found.append(_detection(image, annotations[index]['category_id'], mask, rng.random()))
    return found


def mean_ap(truth: COCO, detections: list[dict], kind: str) -> float:
    """COCO mAP over IoU 0.50:0.95.

    Args:
        truth (COCO): Ground truth.
        detections (list[dict]): COCO results with 'bbox' and 'segmentation'.
        kind (str): 'bbox' or 'segm'.

    Returns:
        float: From 0 to 1.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, truth.loadRes(detections), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def mean_iou(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """mIoU as mmseg has it: areas summed over all images first.

    Args:
        pairs (Iterable[tuple[np.ndarray, np.ndarray]]): Predicted and true labels, integers
            (H, W), with the values of the PNGs: 0 in the truth is ignored, 1.. are
            ``SEG_CLASSES``.

    Returns:
        float: From 0 to 1; the mean over the classes that occur.
    """
    num = len(SEG_CLASSES)
    confusion = np.zeros((num, num), np.int64)
    for predicted, true in pairs:
        index = num * (true[true > 0] - 1).astype(np.int64) + (predicted[true > 0] - 1)
        confusion += np.bincount(index, minlength=num * num).reshape(num, num)
    intersection = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - intersection
    return float(np.mean(intersection[union > 0] / union[union > 0]))


def _semantic(root: Path, split: str) -> list[np.ndarray]:
    return [cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            for path in sorted((root / 'annotations' / split).glob('*.png'))]


def scores(root: Path, seed: int = 0) -> list[tuple[str, float | None, float | None, float | None]]:
    """Rows (predictor, box mAP, mask mAP, mIoU), measured on the validation images."""
    training, validation = _load(root, 'training'), _load(root, 'validation')
    rows = []
    for name, predictor in (('the whole image as every class', whole_image),
                            ("each class's mean training box", mean_box),
                            ('100 random training objects an image', other_objects)):
        found = predictor(training, validation)
        rows.append((name, mean_ap(validation, found, 'bbox'),
                     mean_ap(validation, found, 'segm'), None))

    rng = np.random.default_rng(seed)
    truth = _semantic(root, 'validation')
    other = _semantic(root, 'training')
    other = [other[index] for index in rng.integers(len(other), size=len(truth))]
    for name, predictions in (
        ('background everywhere', map(np.ones_like, truth)),
        ('a random class at each pixel',
         [rng.integers(1, len(SEG_CLASSES) + 1, label.shape) for label in truth]),
        ("a random training image's labels",
         [cv2.resize(label, true.shape[::-1], interpolation=cv2.INTER_NEAREST)
          for label, true in zip(other, truth)])):
        rows.append((name, None, None, mean_iou(zip(predictions, truth))))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', type=Path, default='data/shapes', help='the data set')
    args = parser.parse_args()
    if not (args.root / 'shapes.json').is_file():
        sys.exit(f'error: root must be a shapes data set (see docs/shapes.md), got {args.root}')
    print('Parameters:', json.dumps(json.loads((args.root / 'shapes.json').read_text())))
    print('\n| predictor | box mAP | mask mAP | mIoU |\n| --- | --- | --- | --- |')
    for name, *values in scores(args.root):
        print('|', name, '|', ' | '.join('' if v is None else f'{v:.3f}' for v in values), '|')


if __name__ == '__main__':
    main()
