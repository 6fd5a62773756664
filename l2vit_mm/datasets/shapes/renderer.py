"""Draws the images: a textured background, distractors, objects, blur and noise."""

import cv2
import numpy as np

from l2vit_mm.datasets.shapes.metainfo import CLASSES, SPLITS
from l2vit_mm.datasets.shapes.outlines import OUTLINES, contour_area, coverage, regular_polygon

MAX_OBJECTS = 5
MIN_DIAMETER = 28  # pixels; the thinnest part of a class (the ring's band) is then 6 pixels wide
MAX_DIAMETER = 0.65  # relative to the shorter side
MIN_BOX = 16  # pixels, height and width of the visible part
MIN_VISIBLE = 0.5  # of the shape's whole area, including the part beyond the image border
MIN_CONTRAST = 90  # Euclidean distance in RGB that three quarters of the pixels behind exceed
NUM_COLORS = 12  # candidates for the color of an object
NUM_PLACES = 8  # candidates for its place


def _texture(
    rng: np.random.Generator, height: int, width: int, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """A gradient, noise, stripes or a checkerboard between two colors.

    Args:
        rng (np.random.Generator): Source of the pattern.
        height (int): Height in pixels.
        width (int): Width in pixels.
        first (np.ndarray): RGB values (3,).
        second (np.ndarray): RGB values (3,).

    Returns:
        np.ndarray: RGB values (height, width, 3), float32.
    """
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


def _random_color(rng: np.random.Generator) -> np.ndarray:
    """A random color: RGB values (3,), float32."""
    return rng.uniform(0, 255, 3).astype(np.float32)


def _similar_color(rng: np.random.Generator, color: np.ndarray, reach: float) -> np.ndarray:
    """A random color (3,) whose channels differ from those of ``color`` by at most ``reach``."""
    return np.clip(color + rng.uniform(-reach, reach, 3), 0, 255).astype(np.float32)


def _contrasting_color(rng: np.random.Generator, behind: np.ndarray) -> np.ndarray:
    """The first of some random colors that stands out from what is behind it, or the best of them.

    Args:
        rng (np.random.Generator): Source of the random colors.
        behind (np.ndarray): RGB values of pixels (N, 3).

    Returns:
        np.ndarray: RGB values (3,), float32.
    """
    candidates = rng.uniform(0, 255, (NUM_COLORS, 3)).astype(np.float32)
    distance = np.linalg.norm(candidates[:, None] - behind[None], axis=-1)
    contrast = np.quantile(distance, 0.25, axis=1)
    return candidates[np.argmax(np.minimum(contrast, MIN_CONTRAST))]


def _paint(
    image: np.ndarray, window: tuple[slice, slice], alpha: np.ndarray, fill: np.ndarray
) -> None:
    """Blends a color (3,) or texture (h, w, 3) into a window of the image, in place.

    Args:
        image (np.ndarray): RGB values (H, W, 3).
        window (tuple[slice, slice]): Rows and columns of the window (h, w).
        alpha (np.ndarray): Opacity (h, w), from 0 to 1.
        fill (np.ndarray): What to paint.
    """
    image[window] += alpha[..., None] * (fill - image[window])


def _add_distractors(rng: np.random.Generator, image: np.ndarray) -> None:
    """Paints lines, splinters and soft spots, which have no label, into the image, in place."""
    height, width = image.shape[:2]
    for _ in range(rng.integers(5)):
        center = rng.uniform(0, 1, 2) * (width, height)
        kind = rng.integers(3)
        if kind == 0:
            angle = rng.uniform(0, np.pi)
            along = np.array([np.cos(angle), np.sin(angle)])
            across = np.array([-along[1], along[0]]) * rng.uniform(0.5, 1.5)
            along = along * rng.uniform(10, 60)
            contour = center + [along + across, along - across, -along - across, across - along]
            window, alpha = coverage([contour], height, width)
        elif kind == 1:
            radii = rng.uniform(0.25, 1, (rng.integers(7, 12), 1)) * rng.uniform(6, 16)
            contour = center + regular_polygon(1, len(radii)) * radii
            window, alpha = coverage([contour], height, width)
        else:
            y, x = np.ogrid[:height, :width]
            spread = 2 * rng.uniform(3, 9) ** 2
            alpha = np.exp(
                ((x - center[0]) ** 2 + (y - center[1]) ** 2).astype(np.float32) / -spread
            )
            window = np.s_[:, :]
        _paint(image, window, alpha, _random_color(rng))


def _place(rng: np.random.Generator, name: str, height: int, width: int) -> list[np.ndarray]:
    """Contours of a class at a random size, stretch, rotation and position.

    Args:
        rng (np.random.Generator): Source of the place.
        name (str): The class.
        height (int): Image height in pixels.
        width (int): Image width in pixels.

    Returns:
        list[np.ndarray]: Points (N, 2) as (x, y), in pixels.
    """
    short = min(height, width)
    radius = np.exp(rng.uniform(np.log(MIN_DIAMETER), np.log(MAX_DIAMETER * short))) / 2
    stretch = np.exp(rng.uniform(-0.15, 0.15))
    angle = rng.uniform(0, 2 * np.pi)
    margin = radius / 2  # so that the border cuts many shapes, but none to a sliver
    center = rng.uniform((margin, margin), (width - margin, height - margin))
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return [c * (radius * stretch, radius / stretch) @ turn + center for c in OUTLINES[name]]


def _visible(owner: np.ndarray, areas: list[float]) -> bool:
    """Whether enough of every object can be seen.

    Args:
        owner (np.ndarray): For each pixel (H, W) the number of the object there, from 1; 0 is the
            background.
        areas (list[float]): Whole area of each object in pixels.

    Returns:
        bool: False if one is covered or cut by more than ``MIN_VISIBLE`` and ``MIN_BOX`` allow.
    """
    for number, area in enumerate(areas, 1):
        mask = owner == number
        if (
            mask.sum() < MIN_VISIBLE * area
            or np.ptp(np.flatnonzero(mask.any(0))) + 1 < MIN_BOX
            or np.ptp(np.flatnonzero(mask.any(1))) + 1 < MIN_BOX
        ):
            return False
    return True


def _add_objects(rng: np.random.Generator, image: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Paints 1 to ``MAX_OBJECTS`` objects into the image, in place.

    Args:
        rng (np.random.Generator): Source of classes, places and colors.
        image (np.ndarray): RGB values (H, W, 3), float32.

    Returns:
        list[tuple[int, np.ndarray]]: For each object its index in ``CLASSES`` and its visible
        pixels, bool (H, W), from the back to the front.
    """
    height, width = image.shape[:2]
    owner = np.zeros((height, width), np.uint8)
    labels: list[int] = []
    areas: list[float] = []
    for _ in range(rng.integers(1, MAX_OBJECTS + 1)):
        label = int(rng.integers(len(CLASSES)))
        for _ in range(NUM_PLACES):
            contours = _place(rng, CLASSES[label], height, width)
            window, alpha = coverage(contours, height, width)
            area = contour_area(contours)
            candidate = owner.copy()
            candidate[window][alpha >= 0.5] = len(labels) + 1
            # Try another place where this shape or one that it covers would be hard to recognize:
            # no shape is drawn without a label.
            if not _visible(candidate, areas + [area]):
                continue
            owner = candidate
            labels.append(label)
            areas.append(area)
            fill = _contrasting_color(rng, image[window][::3, ::3].reshape(-1, 3))
            if rng.random() < 0.5:
                fill = _texture(
                    rng, alpha.shape[0], alpha.shape[1], fill, _similar_color(rng, fill, 60)
                )
            _paint(image, window, alpha, fill)
            break
    return [(label, owner == number) for number, label in enumerate(labels, 1)]


def render(
    seed: int, index: int, split: str = 'training', size: tuple[int, int] = (72, 112)
) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Draws one image.

    Args:
        seed (int): Seed of the data set.
        index (int): Index of the image in its split.
        split (str): 'training' or 'validation'; their random streams are disjoint.
        size (tuple[int, int]): Minimum and maximum of the shorter side in pixels. The longer side
            is up to twice as long, and at most 10/7 of the maximum (160 for 112).

    Returns:
        tuple[np.ndarray, list[tuple[int, np.ndarray]]]: The image, uint8 RGB (H, W, 3), and for
        each object its index in ``CLASSES`` and its visible pixels, bool (H, W), from the back to
        the front.

    Raises:
        ValueError: ``split`` is unknown.
    """
    if split not in SPLITS:
        raise ValueError(f'split must be one of {SPLITS}, got {split!r}')
    rng = np.random.default_rng((seed, SPLITS.index(split), index))
    short = int(rng.integers(size[0], size[1] + 1))
    long = int(min(round(short * 2 ** rng.uniform(0, 1)), size[1] * 10 // 7))
    height, width = (short, long) if rng.random() < 0.5 else (long, short)

    first = _random_color(rng)
    image = _texture(rng, height, width, first, _similar_color(rng, first, 80))
    _add_distractors(rng, image)
    objects = _add_objects(rng, image)

    if rng.random() < 0.5:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 0.9))
    image += rng.uniform(0, 8) * rng.standard_normal(image.shape, np.float32)
    image = np.clip(np.round(image), 0, 255).astype(np.uint8)
    return image, objects
