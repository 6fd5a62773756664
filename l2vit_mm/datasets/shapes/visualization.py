"""Pictures of images with their annotations."""

import cv2
import numpy as np

from l2vit_mm.datasets.shapes.metainfo import CLASSES, PALETTE


def draw_objects(
    image: np.ndarray, objects: list[tuple[int, np.ndarray]], scale: int = 2
) -> np.ndarray:
    """Puts an enlarged image beside a copy with the outlines and class names of its objects.

    Args:
        image (np.ndarray): The image, uint8 RGB (H, W, 3).
        objects (list[tuple[int, np.ndarray]]): For each object its index in ``CLASSES`` and its
            visible pixels, bool (H, W): see :func:`l2vit_mm.datasets.shapes.render`.
        scale (int): Factor of the enlargement.

    Returns:
        np.ndarray: uint8 RGB (scale * H, 2 * scale * W, 3).
    """
    plain = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    marked = plain.copy()
    for label, mask in objects:
        fine = cv2.resize(
            mask.astype(np.uint8), None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST
        )
        contours, _ = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(marked, contours, -1, PALETTE[label], 1)
    for label, mask in objects:
        name = CLASSES[label]
        (width, height), _ = cv2.getTextSize(name, cv2.FONT_HERSHEY_SIMPLEX, 0.4, 1)
        y, x = (scale * np.argwhere(mask).mean(0)).astype(int)
        x = int(np.clip(x - width // 2, 0, max(marked.shape[1] - width, 0)))
        y = max(int(y), height + 2)
        cv2.rectangle(marked, (x - 2, y - height - 3), (x + width + 2, y + 3), (0, 0, 0), -1)
        cv2.putText(
            marked, name, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 255), 1, cv2.LINE_AA
        )
    return np.hstack([plain, marked])
