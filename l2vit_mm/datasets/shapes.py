"""The generated data set "shapes", for detection, instance and semantic segmentation.

Every image is a function of (seed, split, index) alone, so a data set is the same however many
images or processes make it. The images have different sizes and aspect ratios. Written as COCO
instance files and as ADE20K-layout PNGs that label the same pixels.
"""
import json
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as mask_utils

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross', 'crescent', 'heart')
PALETTE = [(230, 25, 75), (60, 180, 75), (255, 225, 25), (0, 130, 200), (245, 130, 48),
           (145, 30, 180), (70, 240, 240), (240, 50, 230)]
# Semantic labels: the PNGs hold 0 = unlabelled (ADE20K's "other", unused here), 1 = background,
# 2.. = CLASSES, so they are read with reduce_zero_label=True and these names.
SEG_CLASSES = ('background', *CLASSES)
SEG_PALETTE = [(0, 0, 0), *PALETTE]
SPLITS = ('training', 'validation')

VERSION = 1  # raise it when the same parameters give other pixels: older trees are then outdated
MAX_OBJECTS = 5
MIN_DIAMETER = 28  # pixels; the thinnest part of a class (the ring's band) is then 6 pixels
MAX_DIAMETER = 0.65  # of the shorter side
MIN_BOX = 16  # pixels, each side of the visible part
MIN_VISIBLE = 0.5  # of the shape's whole area, the part beyond the image border included
MIN_CONTRAST = 90  # Euclidean distance in RGB to the pixels behind (the quarter that is most alike)
SUPERSAMPLING = 4


def _circle(radius: float, num: int = 48) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, num, endpoint=False)
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1)


def _crescent() -> np.ndarray:
    # The unit disc less a disc of radius 0.8 around (0.5, 0); they meet at x = 0.61. Then centred.
    x, y = 0.61, np.sqrt(1 - 0.61**2)
    outer = np.arctan2(y, x)
    inner = np.arctan2(y, x - 0.5)
    outer = np.linspace(outer, 2 * np.pi - outer, 40)
    inner = np.linspace(2 * np.pi - inner, inner, 32)
    arcs = [np.stack([np.cos(outer), np.sin(outer)], 1),
            np.stack([0.5 + 0.8 * np.cos(inner), 0.8 * np.sin(inner)], 1)]
    return np.concatenate(arcs) + [0.2, 0]


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = 16 * np.sin(t)**3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x, y + 2.5], 1) / 16


def _star() -> np.ndarray:
    return _circle(1, 10) * np.where(np.arange(10) % 2, 0.45, 1)[:, None]


def _cross() -> np.ndarray:
    arm, half = 0.98, 0.33
    quarter = np.array([[arm, -half], [arm, half], [half, half]])
    turn = np.array([[0, 1], [-1, 0]])
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


# Contours of each class in the unit disc (about), filled by the even-odd rule.
OUTLINES = {
    'circle': [_circle(1)],
    'square': [_circle(1.1, 4)],
    'triangle': [_circle(1.1, 3)],
    'star': [_star()],
    'ring': [_circle(1), _circle(0.58)],
    'cross': [_cross()],
    'crescent': [_crescent()],
    'heart': [_heart()],
}


def _polygon_area(points: np.ndarray) -> float:
    x, y = points.T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _coverage(contours: list[np.ndarray], height: int, width: int) -> tuple[tuple, np.ndarray]:
    """Anti-aliased fill.

    Args:
        contours (list[np.ndarray]): Points (N, 2) as (x, y), in pixels.
        height (int): Image height.
        width (int): Image width.

    Returns:
        tuple: The window of the image that the contours touch, as two slices, and the share of
        each of its pixels that they cover, float32 (h, w). It's empty when they lie outside.
    """
    points = np.concatenate(contours)
    x0, y0 = np.maximum(np.floor(points.min(0)).astype(int), 0)
    x1, y1 = np.minimum(np.ceil(points.max(0)).astype(int), (width, height))
    h, w = max(y1 - y0, 0), max(x1 - x0, 0)
    window = (slice(y0, y0 + h), slice(x0, x0 + w))
    if h == 0 or w == 0:
        return window, np.zeros((h, w), np.float32)
    fine = np.zeros((h * SUPERSAMPLING, w * SUPERSAMPLING), np.uint8)
    cv2.fillPoly(fine, [np.round((c - (x0, y0)) * SUPERSAMPLING - 0.5).astype(np.int32)
                        for c in contours], 255)
    return window, cv2.resize(fine, (w, h), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def _texture(rng: np.random.Generator, height: int, width: int, first: np.ndarray,
             second: np.ndarray) -> np.ndarray:
    """A gradient, noise, stripes or a checker board between two colours, float32 (H, W, 3)."""
    angle = rng.uniform(0, 2 * np.pi)
    period = rng.uniform(6, 24)
    phase = rng.uniform(0, 2 * np.pi)
    sharpness = rng.choice([0.5, 3])
    kind = rng.integers(4)
    y, x = np.ogrid[:height, :width]
    u = (x * np.cos(angle) + y * np.sin(angle)).astype(np.float32)
    if kind == 0:
        mix = (u - u.min()) / (np.ptp(u) + 1)
    elif kind == 1:
        grid = rng.random((int(height / period) + 2, int(width / period) + 2), np.float32)
        mix = cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
    else:
        mix = np.sin(u * (2 * np.pi / period) + phase)
        if kind == 3:
            v = (y * np.cos(angle) - x * np.sin(angle)).astype(np.float32)
            mix = mix * np.sin(v * (2 * np.pi / period))
        mix = 0.5 + sharpness * mix
    return first + np.clip(mix, 0, 1)[..., None] * (second - first)


def _colour(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0, 255, 3).astype(np.float32)


def _near(rng: np.random.Generator, colour: np.ndarray, reach: float) -> np.ndarray:
    return np.clip(colour + rng.uniform(-reach, reach, 3), 0, 255).astype(np.float32)


def _contrasting_colour(rng: np.random.Generator, behind: np.ndarray) -> np.ndarray:
    """The first of 12 colours that stands out from the pixels ``behind`` (N, 3), or the best."""
    candidates = rng.uniform(0, 255, (12, 3)).astype(np.float32)
    distance = np.linalg.norm(candidates[:, None] - behind[None], axis=-1)
    contrast = np.quantile(distance, 0.25, axis=1)
    return candidates[np.argmax(np.minimum(contrast, MIN_CONTRAST))]


def _paint(image: np.ndarray, window: tuple, alpha: np.ndarray, fill: np.ndarray) -> None:
    image[window] += alpha[..., None] * (fill - image[window])


def _add_distractors(rng: np.random.Generator, image: np.ndarray) -> None:
    """Lines, splinters and soft spots: no class, no label."""
    height, width = image.shape[:2]
    for _ in range(rng.integers(5)):
        centre = rng.uniform(0, 1, 2) * (width, height)
        kind = rng.integers(3)
        if kind == 0:
            angle = rng.uniform(0, np.pi)
            along = np.array([np.cos(angle), np.sin(angle)])
            across = np.array([-along[1], along[0]]) * rng.uniform(0.5, 1.5)
            along = along * rng.uniform(10, 60)
            contour = centre + [along + across, along - across, -along - across, across - along]
            window, alpha = _coverage([contour], height, width)
        elif kind == 1:
            radii = rng.uniform(0.25, 1, (rng.integers(7, 12), 1)) * rng.uniform(6, 16)
            window, alpha = _coverage([centre + _circle(1, len(radii)) * radii], height, width)
        else:
            y, x = np.ogrid[:height, :width]
            spread = 2 * rng.uniform(3, 9)**2
            alpha = np.exp(((x - centre[0])**2 + (y - centre[1])**2).astype(np.float32) / -spread)
            window = np.s_[:, :]
        _paint(image, window, alpha, _colour(rng))


def _place(rng: np.random.Generator, name: str, height: int, width: int) -> list[np.ndarray]:
    """Contours of a class at a random size, stretch, rotation and position, in pixels."""
    short = min(height, width)
    radius = np.exp(rng.uniform(np.log(MIN_DIAMETER), np.log(MAX_DIAMETER * short))) / 2
    stretch = np.exp(rng.uniform(-0.15, 0.15))
    angle = rng.uniform(0, 2 * np.pi)
    margin = radius / 2  # so that the border cuts many shapes, but none to a sliver
    centre = rng.uniform((margin, margin), (width - margin, height - margin))
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return [c * (radius * stretch, radius / stretch) @ turn + centre for c in OUTLINES[name]]


def _visible(owner: np.ndarray, areas: list[float]) -> bool:
    """Whether enough of every object 1.. is left in the owner map (H, W)."""
    for number, area in enumerate(areas, 1):
        mask = owner == number
        if (mask.sum() < MIN_VISIBLE * area or np.ptp(np.flatnonzero(mask.any(0))) + 1 < MIN_BOX
                or np.ptp(np.flatnonzero(mask.any(1))) + 1 < MIN_BOX):
            return False
    return True


def render(seed: int,
           index: int,
           split: str = 'training',
           size: tuple[int, int] = (72, 112)) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Draw one image.

    Args:
        seed (int): Seed of the data set.
        index (int): Number of the image in its split.
        split (str): 'training' or 'validation'; their random streams are disjoint.
        size (tuple[int, int]): Least and greatest length of the shorter side in pixels. The longer
            one is up to twice as long, and at most 10/7 of the greatest (160 for 112).

    Returns:
        tuple[np.ndarray, list[tuple[int, np.ndarray]]]: The image, uint8 RGB (H, W, 3), and for
        each object its index in ``CLASSES`` and its visible pixels, bool (H, W), from the back to
        the front.
    """
    if split not in SPLITS:
        raise ValueError(f'split must be one of {SPLITS}, got {split!r}')
    rng = np.random.default_rng((seed, SPLITS.index(split), index))
    short = int(rng.integers(size[0], size[1] + 1))
    long = int(min(round(short * 2**rng.uniform(0, 1)), size[1] * 10 // 7))
    height, width = (short, long) if rng.random() < 0.5 else (long, short)

    first = _colour(rng)
    image = _texture(rng, height, width, first, _near(rng, first, 80))
    _add_distractors(rng, image)

    owner = np.zeros((height, width), np.uint8)
    labels, areas = [], []
    for _ in range(rng.integers(1, MAX_OBJECTS + 1)):
        label = int(rng.integers(len(CLASSES)))
        for _ in range(8):
            contours = _place(rng, CLASSES[label], height, width)
            window, alpha = _coverage(contours, height, width)
            area = _polygon_area(contours[0]) - sum(map(_polygon_area, contours[1:]))
            candidate = owner.copy()
            candidate[window][alpha >= 0.5] = len(labels) + 1
            # A place where this shape, or one that it covers, couldn't be told any more is given
            # up, so that no shape is drawn without a label.
            if not _visible(candidate, areas + [area]):
                continue
            owner = candidate
            labels.append(label)
            areas.append(area)
            fill = _contrasting_colour(rng, image[window][::3, ::3].reshape(-1, 3))
            if rng.random() < 0.5:
                fill = _texture(rng, *alpha.shape, fill, _near(rng, fill, 60))
            _paint(image, window, alpha, fill)
            break

    if rng.random() < 0.5:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 0.9))
    image += rng.uniform(0, 8) * rng.standard_normal(image.shape, np.float32)
    image = np.clip(np.round(image), 0, 255).astype(np.uint8)
    return image, [(label, owner == number) for number, label in enumerate(labels, 1)]


def draw(image: np.ndarray, objects: list[tuple[int, np.ndarray]], scale: int = 2) -> np.ndarray:
    """An enlarged image beside the same with outlines and class names, uint8 RGB."""
    plain = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    marked = plain.copy()
    for label, mask in objects:
        fine = cv2.resize(mask.astype(np.uint8), None, fx=scale, fy=scale,
                          interpolation=cv2.INTER_NEAREST)
        contours, _ = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(marked, contours, -1, PALETTE[label], 1)
    for label, mask in objects:
        name = CLASSES[label]
        (width, height), _ = cv2.getTextSize(name, cv2.FONT_HERSHEY_SIMPLEX, 0.4, 1)
        y, x = (scale * np.argwhere(mask).mean(0)).astype(int)
        x = int(np.clip(x - width // 2, 0, max(marked.shape[1] - width, 0)))
        y = max(int(y), height + 2)
        cv2.rectangle(marked, (x - 2, y - height - 3), (x + width + 2, y + 3), (0, 0, 0), -1)
        cv2.putText(marked, name, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 255), 1,
                    cv2.LINE_AA)
    return np.hstack([plain, marked])


def _write_image(index: int, folder: Path, seed: int, split: str,
                 size: tuple[int, int]) -> tuple[dict, list[dict]]:
    """Write image and PNG ``index``; returns its COCO image and annotations, these without ids."""
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
                # RLE, not polygons: exact, and the only form that has holes.
                segmentation=dict(size=[height, width], counts=rle['counts'].decode()),
                area=int(mask_utils.area(rle)),
                bbox=mask_utils.toBbox(rle).tolist(),
                iscrowd=0))
    for path, pixels, options in (
        (f'images/{split}/{name}.jpg', image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95]),
        (f'annotations/{split}/{name}.png', semantic, [])):
        if not cv2.imwrite(str(folder / path), pixels, options):
            raise OSError(f'could not write {folder / path}')
    entry = dict(id=index + 1, file_name=f'{name}.jpg', height=height, width=width, license=1)
    return entry, annotations


def _write_split(folder: Path, split: str, num: int, seed: int, size: tuple[int, int],
                 run_map) -> None:
    (folder / 'images' / split).mkdir(parents=True)
    (folder / 'annotations' / split).mkdir(parents=True)
    write = partial(_write_image, folder=folder, seed=seed, split=split, size=size)
    images, annotations = [], []
    for entry, found in run_map(write, range(num)):
        images.append(entry)
        annotations += found
    for number, annotation in enumerate(annotations, 1):
        annotation['id'] = number
    content = dict(
        info=dict(description=f'Generated shapes, {split}', version=str(VERSION), seed=seed),
        licenses=[dict(id=1, name='Apache-2.0', url='https://www.apache.org/licenses/LICENSE-2.0')],
        images=images,
        annotations=annotations,
        categories=[dict(id=i, name=name, supercategory='shape')
                    for i, name in enumerate(CLASSES, 1)])
    (folder / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))


def _check(num_train: int, num_val: int, seed: int, size: tuple[int, int], workers: int) -> None:
    for name, value, least in (('num_train', num_train, 1), ('num_val', num_val, 1),
                               ('seed', seed, 0), ('workers', workers, 1)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f'{name} must be an integer of at least {least}, got {value!r}')
    if np.shape(size) != (2,) or not 48 <= size[0] <= size[1]:
        raise ValueError('size must be the least and greatest shorter side in pixels, '
                         f'48 <= least <= greatest, got {size}')


def generate(root: str | os.PathLike,
             num_train: int = 4000,
             num_val: int = 100,
             seed: int = 0,
             size: tuple[int, int] = (72, 112),
             force: bool = False,
             workers: int = 1) -> bool:
    """Write the data set, unless it's there already.

    The tree is made under a temporary name beside ``root`` and renamed when complete::

        images/{training,validation}/*.jpg
        annotations/{training,validation}/*.png
        annotations/instances_{training,validation}.json
        shapes.json     the parameters

    Args:
        root (str | os.PathLike): Folder to make.
        num_train (int): Number of training images.
        num_val (int): Number of validation images.
        seed (int): Seed of every image.
        size (tuple[int, int]): See :func:`render`.
        force (bool): Replace a shapes data set of other parameters.
        workers (int): Number of processes. More than one needs the ``__main__`` guard of
            multiprocessing in the calling script.

    Returns:
        bool: True if it was written, False if a data set of these parameters was there.

    Raises:
        ValueError: An argument is out of range.
        FileExistsError: ``root`` holds a data set of other parameters and ``force`` isn't given,
            or something that isn't such a data set (never replaced).
    """
    _check(num_train, num_val, seed, size, workers)
    root = Path(root).resolve()
    parameters = dict(
        version=VERSION, num_train=num_train, num_val=num_val, seed=seed, size=list(size))
    record = root / 'shapes.json'
    if record.is_file():
        found = json.loads(record.read_text())
        if found == parameters:
            return False
        if not force:
            raise FileExistsError(f'{root} holds shapes made with {found}, not {parameters}: '
                                  'give another root, or force to replace it')
    elif root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise FileExistsError(f'root must be new, empty or a shapes data set, got {root}')

    folder = root.with_name(f'.{root.name}.{os.getpid()}')
    folder.mkdir(parents=True)
    try:
        with ProcessPoolExecutor(workers, get_context('spawn')) as pool:
            run_map = partial(pool.map, chunksize=16) if workers > 1 else map
            for split, num in zip(SPLITS, (num_train, num_val)):
                _write_split(folder, split, num, seed, size, run_map)
        (folder / record.name).write_text(json.dumps(parameters, indent=2) + '\n')
        if record.is_file():
            shutil.rmtree(root)
        folder.rename(root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True
