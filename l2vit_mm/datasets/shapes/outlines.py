"""The outline of each class, and its pixels."""

import cv2
import numpy as np

SUPERSAMPLING = 4


def regular_polygon(radius: float, num_points: int = 48) -> np.ndarray:
    """A regular polygon around the origin; 48 vertices make a circle.

    Args:
        radius (float): Distance of the vertices from the origin.
        num_points (int): Number of vertices.

    Returns:
        np.ndarray: Vertices (num_points, 2) as (x, y), float64.
    """
    angle = np.linspace(0, 2 * np.pi, num_points, endpoint=False)
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1)


def _crescent() -> np.ndarray:
    # The unit disc less a disc of radius 0.8 around (0.5, 0); they meet at x = 0.61. Then centered.
    x, y = 0.61, np.sqrt(1 - 0.61**2)
    outer = np.arctan2(y, x)
    inner = np.arctan2(y, x - 0.5)
    outer = np.linspace(outer, 2 * np.pi - outer, 40)
    inner = np.linspace(2 * np.pi - inner, inner, 32)
    arcs = [
        np.stack([np.cos(outer), np.sin(outer)], 1),
        np.stack([0.5 + 0.8 * np.cos(inner), 0.8 * np.sin(inner)], 1),
    ]
    return np.concatenate(arcs) + [0.2, 0]


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x, y + 2.5], 1) / 16


def _star() -> np.ndarray:
    return regular_polygon(1, 10) * np.where(np.arange(10) % 2, 0.45, 1)[:, None]


def _cross() -> np.ndarray:
    arm, half = 0.98, 0.33
    quarter = np.array([[arm, -half], [arm, half], [half, half]])
    turn = np.array([[0, 1], [-1, 0]])
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


# Contours of each class, approximately in the unit disc: the outer one, then its holes.
OUTLINES: dict[str, list[np.ndarray]] = {
    'circle': [regular_polygon(1)],
    'square': [regular_polygon(1.1, 4)],
    'triangle': [regular_polygon(1.1, 3)],
    'star': [_star()],
    'ring': [regular_polygon(1), regular_polygon(0.58)],
    'cross': [_cross()],
    'crescent': [_crescent()],
    'heart': [_heart()],
}


def _polygon_area(points: np.ndarray) -> float:
    x, y = points.T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def contour_area(contours: list[np.ndarray]) -> float:
    """The area that contours enclose, whether or not it lies in the image.

    Args:
        contours (list[np.ndarray]): Points (N, 2) as (x, y): the outer contour, then its holes.

    Returns:
        float: The area in squared units of the points.
    """
    return _polygon_area(contours[0]) - sum(map(_polygon_area, contours[1:]))


def coverage(
    contours: list[np.ndarray], height: int, width: int
) -> tuple[tuple[slice, slice], np.ndarray]:
    """Anti-aliased fill by the even-odd rule.

    Args:
        contours (list[np.ndarray]): Points (N, 2) as (x, y), in pixels.
        height (int): Image height.
        width (int): Image width.

    Returns:
        tuple[tuple[slice, slice], np.ndarray]: The window of the image that the contours touch, as
        slices of rows and columns, and the fraction of each of its pixels that they cover, float32
        (h, w). The window is empty when the contours lie outside the image.
    """
    points = np.concatenate(contours)
    x0, y0 = np.maximum(np.floor(points.min(0)).astype(int), 0)
    x1, y1 = np.minimum(np.ceil(points.max(0)).astype(int), (width, height))
    h, w = max(y1 - y0, 0), max(x1 - x0, 0)
    window = (slice(y0, y0 + h), slice(x0, x0 + w))
    if h == 0 or w == 0:
        return window, np.zeros((h, w), np.float32)
    fine = np.zeros((h * SUPERSAMPLING, w * SUPERSAMPLING), np.uint8)
    cv2.fillPoly(
        fine,
        [np.round((c - (x0, y0)) * SUPERSAMPLING - 0.5).astype(np.int32) for c in contours],
        255,
    )
    return window, cv2.resize(fine, (w, h), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
