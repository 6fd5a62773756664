"""Scores of predictors that never look at the image: the floor of the data set.

``python -m l2vit_mm.datasets.shapes.baselines --root data/shapes`` prints the table in
docs/shapes.md.
"""

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from l2vit_mm.datasets.shapes.metainfo import SEG_CLASSES


def _load_instances(root: Path, split: str) -> COCO:
    """The COCO file of a split, without what COCO prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(root / 'annotations' / f'instances_{split}.json'))


def _detection(
    image: dict[str, Any], category: int, mask: np.ndarray, score: float
) -> dict[str, Any]:
    """A detection as a COCO result.

    Args:
        image (dict): COCO entry of the image.
        category (int): Category id.
        mask (np.ndarray): The pixels (H, W), 0 or 1.
        score (float): Confidence.

    Returns:
        dict: With 'bbox' and 'segmentation'.
    """
    rle = mask_utils.encode(np.asfortranarray(mask, np.uint8))
    return dict(
        image_id=image['id'],
        category_id=category,
        segmentation=rle,
        bbox=mask_utils.toBbox(rle).tolist(),
        score=score,
    )


def predict_whole_image(training: COCO, validation: COCO) -> list[dict[str, Any]]:
    """The whole image, as every class.

    Args:
        training (COCO): Ground truth of the training images.
        validation (COCO): Ground truth of the validation images, of which only the sizes are used.

    Returns:
        list[dict]: COCO results for the validation images.
    """
    return [
        _detection(image, category, np.ones((image['height'], image['width'])), 1.0)
        for image in validation.dataset['images']
        for category in training.cats
    ]


def predict_mean_box(training: COCO, validation: COCO) -> list[dict[str, Any]]:
    """The mean box of each class in the training images, relative to the image, filled.

    Args:
        training (COCO): Ground truth of the training images.
        validation (COCO): Ground truth of the validation images, of which only the sizes are used.

    Returns:
        list[dict]: COCO results for the validation images.
    """
    corners: dict[int, list[np.ndarray]] = {category: [] for category in training.cats}
    for annotation in training.anns.values():
        x, y, w, h = annotation['bbox']
        image = training.imgs[annotation['image_id']]
        size = np.array([image['width'], image['height']] * 2)
        corners[annotation['category_id']].append([x, y, x + w, y + h] / size)
    detections = []
    for image in validation.dataset['images']:
        for category, boxes in corners.items():
            box = np.mean(boxes, 0) * ([image['width'], image['height']] * 2)
            x0, y0, x1, y1 = np.round(box).astype(int)
            mask = np.zeros((image['height'], image['width']))
            mask[y0:y1, x0:x1] = 1
            detections.append(_detection(image, category, mask, 1.0))
    return detections


def predict_random_objects(training: COCO, validation: COCO, seed: int = 0) -> list[dict[str, Any]]:
    """100 objects of random training images, stretched to the image, with random scores.

    Args:
        training (COCO): Ground truth of the training images.
        validation (COCO): Ground truth of the validation images, of which only the sizes are used.
        seed (int): Seed of the choice and the scores.

    Returns:
        list[dict]: COCO results for the validation images.
    """
    rng = np.random.default_rng(seed)
    annotations = training.dataset['annotations']
    detections = []
    for image in validation.dataset['images']:
        for index in rng.integers(len(annotations), size=100):
            mask = cv2.resize(
                mask_utils.decode(annotations[index]['segmentation']),
                (image['width'], image['height']),
                interpolation=cv2.INTER_NEAREST,
            )
            detections.append(
                _detection(image, annotations[index]['category_id'], mask, rng.random())
            )
    return detections


def mean_ap(truth: COCO, detections: list[dict[str, Any]], kind: str) -> float:
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
    """mIoU as mmseg computes it: the areas are first summed over all images.

    Args:
        pairs (Iterable[tuple[np.ndarray, np.ndarray]]): Predicted and true labels, integers
            (H, W), with the values of the PNGs: 1.. are ``SEG_CLASSES``, and pixels whose true
            label is 0 are ignored.

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


def _load_label_maps(root: Path, split: str) -> list[np.ndarray]:
    """The PNGs of a split, uint8 (H, W) each."""
    return [
        np.asarray(cv2.imread(str(path), cv2.IMREAD_UNCHANGED))
        for path in sorted((root / 'annotations' / split).glob('*.png'))
    ]


def compute_scores(
    root: Path, seed: int = 0
) -> list[tuple[str, float | None, float | None, float | None]]:
    """Scores all predictors on the validation images.

    Args:
        root (Path): The data set.
        seed (int): Seed of the predictors of label maps.

    Returns:
        list[tuple]: Rows (predictor, box mAP, mask mAP, mIoU), None where it does not apply.
    """
    training, validation = _load_instances(root, 'training'), _load_instances(root, 'validation')
    rows: list[tuple[str, float | None, float | None, float | None]] = []
    for name, predict in (
        ('the whole image as every class', predict_whole_image),
        ('the mean training box of each class', predict_mean_box),
        ('100 random training objects', predict_random_objects),
    ):
        detections = predict(training, validation)
        rows.append(
            (
                name,
                mean_ap(validation, detections, 'bbox'),
                mean_ap(validation, detections, 'segm'),
                None,
            )
        )

    rng = np.random.default_rng(seed)
    truth = _load_label_maps(root, 'validation')
    others = _load_label_maps(root, 'training')
    others = [others[index] for index in rng.integers(len(others), size=len(truth))]
    for name, predictions in (
        ('background everywhere', [np.ones_like(label) for label in truth]),
        (
            'a random class at each pixel',
            [rng.integers(1, len(SEG_CLASSES) + 1, label.shape) for label in truth],
        ),
        (
            'the labels of a random training image',
            [
                cv2.resize(label, true.shape[::-1], interpolation=cv2.INTER_NEAREST)
                for label, true in zip(others, truth, strict=True)
            ],
        ),
    ):
        rows.append((name, None, None, mean_iou(zip(predictions, truth, strict=True))))
    return rows


def main() -> None:
    """Prints the scores as a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--root', type=Path, default=Path('data/shapes'), help='folder of the data set'
    )
    args = parser.parse_args()
    if not (args.root / 'shapes.json').is_file():
        sys.exit(f'error: root must be a shapes data set (see docs/shapes.md), got {args.root}')
    print('Parameters:', json.dumps(json.loads((args.root / 'shapes.json').read_text())))
    print('\n| predictor | box mAP | mask mAP | mIoU |\n| --- | --- | --- | --- |')
    for name, *values in compute_scores(args.root):
        print('|', name, '|', ' | '.join('' if v is None else f'{v:.3f}' for v in values), '|')


if __name__ == '__main__':
    main()
