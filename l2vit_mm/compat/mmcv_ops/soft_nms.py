"""Soft NMS, which torchvision lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Soft NMS (Bodla et al. 2017) with mmcv's order and tie rules.

    Args:
        boxes (Tensor): (N, 4), x1, y1, x2, y2, on the CPU.
        scores (Tensor): (N,), on the CPU.
        dets (Tensor): (N, 5); its first rows receive the kept boxes and their decayed scores.
        iou_threshold (float): IoU from which scores decay (naive and linear).
        sigma (float): width of the decay (gaussian).
        min_score (float): boxes whose score falls below it are dropped.
        method (int): 0 naive, 1 linear, 2 gaussian.
        offset (int): a box is x2 - x1 + offset wide.

    Returns:
        Tensor: indices of the kept boxes, int64, in the order in which they were picked.
    """
    # Columns x1, y1, x2, y2, score, area. NumPy's float32 rounds after each operation as C++ does.
    table: Any = np.empty((len(boxes), 6), dtype=np.float32)
    table[:, :4] = boxes.detach().float().numpy()
    table[:, 4] = scores.detach().float().numpy()
    table[:, 5] = (table[:, 2] - table[:, 0] + offset) * (table[:, 3] - table[:, 1] + offset)
    # In mmcv these are C++ floats too.
    iou_threshold, sigma, min_score = (
        np.float32(value).item() for value in (iou_threshold, sigma, min_score)
    )
    order: Any = np.arange(len(table))

    picked = 0
    while picked < len(table):
        best = picked + int(table[picked:, 4].argmax())  # the first of equals
        table[[picked, best]] = table[[best, picked]]
        order[[picked, best]] = order[[best, picked]]
        top, rest = table[picked], table[picked + 1 :]
        picked += 1

        width = np.minimum(top[2], rest[:, 2]) - np.maximum(top[0], rest[:, 0]) + offset
        height = np.minimum(top[3], rest[:, 3]) - np.maximum(top[1], rest[:, 1]) + offset
        inter = np.maximum(width, 0) * np.maximum(height, 0)
        with np.errstate(invalid='ignore', divide='ignore'):  # two empty boxes: 0 / 0
            iou = inter / (top[5] + rest[:, 5] - inter)
        if method == 2:
            # exp in float64, rounded once, equals a correctly rounded float32 exp.
            decay = np.exp((-(iou * iou) / sigma).astype(np.float64)).astype(np.float32)
        else:
            decay = np.where(
                iou >= iou_threshold, 1 - iou if method == 1 else np.float32(0), np.float32(1)
            )
        rest[:, 4] *= decay

        # mmcv replaces a dropped box by the last of the list: the survivors beyond the new end
        # move, last first, into the gaps before it.
        keep = ~(rest[:, 4] < min_score)
        end = int(keep.sum())
        gaps = picked + np.flatnonzero(~keep[:end])
        movers = picked + end + np.flatnonzero(keep[end:])[::-1]
        table[gaps], order[gaps] = table[movers], order[movers]
        table, order = table[: picked + end], order[: picked + end]

    dets[: len(table)] = torch.from_numpy(table[:, :5]).to(dets.dtype)
    return torch.from_numpy(order)
