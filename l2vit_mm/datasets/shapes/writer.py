"""Writes the data set: JPEGs, COCO instance files and semantic PNGs in ADE20K's layout."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from l2vit_mm.datasets.shapes.metainfo import CLASSES, SPLITS
from l2vit_mm.datasets.shapes.renderer import render

# Raise it when the same parameters give other pixels: existing data sets are then outdated.
VERSION = 1

Map = Callable[[Callable, Iterable], Iterable]
Track = Callable[[tuple[Iterable, int]], Iterable]


def _write_image(
    index: int, folder: Path, seed: int, split: str, size: tuple[int, int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Writes one JPEG and its PNG.

    Args:
        index (int): Index of the image in its split.
        folder (Path): Root of the data set.
        seed (int): Seed of the data set.
        split (str): 'training' or 'validation'.
        size (tuple[int, int]): See :func:`render`.

    Returns:
        tuple[dict, list[dict]]: The COCO entry of the image and those of its objects, which lack
        their ids.

    Raises:
        OSError: A file could not be written.
    """
    # Only here: who trains with mmseg reads a data set without pycocotools.
    from pycocotools import mask as mask_utils

    image, objects = render(seed, index, split, size)
    height, width = image.shape[:2]
    name = f'{split}_{index + 1:08d}'
    semantic = np.ones((height, width), np.uint8)
    annotations = []
    for label, mask in objects:
        semantic[mask] = label + 2
        rle = mask_utils.encode(np.asfortranarray(mask, np.uint8))
        annotations.append(
            dict(
                image_id=index + 1,
                category_id=label + 1,
                # RLE, not polygons: it is exact, and polygons have no holes.
                segmentation=dict(size=[height, width], counts=rle['counts'].decode()),
                area=int(mask_utils.area(rle)),
                bbox=mask_utils.toBbox(rle).tolist(),
                iscrowd=0,
            )
        )
    for path, pixels, options in (
        (f'images/{split}/{name}.jpg', image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95]),
        (f'annotations/{split}/{name}.png', semantic, []),
    ):
        if not cv2.imwrite(str(folder / path), pixels, options):
            raise OSError(f'could not write {folder / path}')
    entry = dict(id=index + 1, file_name=f'{name}.jpg', height=height, width=width, license=1)
    return entry, annotations


def _write_split(
    folder: Path,
    split: str,
    num: int,
    seed: int,
    size: tuple[int, int],
    run_map: Map,
    track: Track | None,
) -> None:
    """Writes the images, PNGs and COCO file of one split; see :func:`generate`."""
    (folder / 'images' / split).mkdir(parents=True)
    (folder / 'annotations' / split).mkdir(parents=True)
    write = partial(_write_image, folder=folder, seed=seed, split=split, size=size)
    written = run_map(write, range(num))
    images, annotations = [], []
    for entry, found in track((written, num)) if track else written:
        images.append(entry)
        annotations += found
    for number, annotation in enumerate(annotations, 1):
        annotation['id'] = number
    content = dict(
        info=dict(description=f'Generated shapes, {split}', version=str(VERSION), seed=seed),
        licenses=[dict(id=1, name='Apache-2.0', url='https://www.apache.org/licenses/LICENSE-2.0')],
        images=images,
        annotations=annotations,
        categories=[
            dict(id=i, name=name, supercategory='shape') for i, name in enumerate(CLASSES, 1)
        ],
    )
    (folder / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))


def _check_arguments(
    num_train: int, num_val: int, seed: int, size: tuple[int, int], num_workers: int
) -> None:
    """Raises ValueError for an argument of :func:`generate` that is out of range."""
    for name, value, least in (
        ('num_train', num_train, 1),
        ('num_val', num_val, 1),
        ('seed', seed, 0),
        ('num_workers', num_workers, 1),
    ):
        if not isinstance(value, int) or value < least:
            raise ValueError(f'{name} must be an integer of at least {least}, got {value!r}')
    if np.shape(size) != (2,) or not 48 <= size[0] <= size[1]:
        raise ValueError(
            'size must be the minimum and maximum of the shorter side in pixels, '
            f'48 <= minimum <= maximum, got {size}'
        )


def generate(
    root: str | os.PathLike,
    num_train: int = 4000,
    num_val: int = 100,
    seed: int = 0,
    size: tuple[int, int] = (72, 112),
    force: bool = False,
    num_workers: int = 1,
    track: Track | None = None,
) -> bool:
    """Writes the data set, unless it is already there.

    The files are written under a temporary name beside ``root``, which is renamed when complete::

        images/{training,validation}/*.jpg
        annotations/{training,validation}/*.png
        annotations/instances_{training,validation}.json
        shapes.json     the parameters

    Args:
        root (str | os.PathLike): Folder to write.
        num_train (int): Number of training images.
        num_val (int): Number of validation images.
        seed (int): Seed of all images.
        size (tuple[int, int]): Minimum and maximum of the shorter side; see :func:`render`.
        force (bool): Replace a shapes data set with other parameters.
        num_workers (int): Number of processes. More than one needs the ``__main__`` guard of
            multiprocessing in the calling script.
        track (Callable, optional): Shows the progress: called for each split with (iterable,
            number of images), it yields the items of the iterable, as
            ``mmengine.utils.track_iter_progress`` does.

    Returns:
        bool: True if the data set was written, False if one with these parameters was there.

    Raises:
        ValueError: An argument is out of range.
        FileExistsError: ``root`` holds a data set with other parameters and ``force`` is not set,
            or it holds something else, which is never replaced.
    """
    _check_arguments(num_train, num_val, seed, size, num_workers)
    root = Path(root).resolve()
    parameters = dict(
        version=VERSION, num_train=num_train, num_val=num_val, seed=seed, size=list(size)
    )
    record = root / 'shapes.json'
    if record.is_file():
        found = json.loads(record.read_text())
        if found == parameters:
            return False
        if not force:
            raise FileExistsError(
                f'root must be new or hold shapes with the parameters {parameters}, got {root} '
                f'with {found}: choose another root, or set force to replace it'
            )
    elif root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise FileExistsError(f'root must be new, empty or a shapes data set, got {root}')

    folder = root.with_name(f'.{root.name}.{os.getpid()}')
    folder.mkdir(parents=True)
    try:
        with ProcessPoolExecutor(num_workers, get_context('spawn')) as pool:
            run_map = partial(pool.map, chunksize=16) if num_workers > 1 else map
            for split, num in zip(SPLITS, (num_train, num_val), strict=True):
                _write_split(folder, split, num, seed, size, run_map, track)
        (folder / record.name).write_text(json.dumps(parameters, indent=2) + '\n')
        if record.is_file():
            shutil.rmtree(root)
        folder.rename(root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True
