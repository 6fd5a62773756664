"""The data type in which the operators compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def widen(*tensors: Tensor) -> Any:
    """Converts half precision to float32; leaves other types as they are."""
    wide = tuple(t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors)
    return wide if len(wide) > 1 else wide[0]
