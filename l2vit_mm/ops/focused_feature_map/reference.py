"""FLatten's feature map in plain PyTorch: the definition and the fallback."""

import torch.nn.functional as F
from torch import Tensor

from l2vit_mm.ops.precision import no_autocast, widen


def focused_feature_map(
    x: Tensor, s: Tensor, power: float = 3, pos: Tensor | None = None
) -> Tensor:
    """Computes FLatten's feature map.

    The arguments are those of :func:`l2vit_mm.ops.focused_feature_map`, checked there; s is (C,),
    and pos broadcasts with x.
    """
    dtype = x.dtype
    with no_autocast(x):
        x = widen(x)
        if pos is not None:
            x = x + pos.to(x.dtype)
        u = (x.relu() + 1e-6) / F.softplus(s.to(x.dtype))
        # f(a u) = a f(u): powers of values in (0, 1] do not overflow.
        largest = u.detach().amax(-1, keepdim=True)
        u = u / largest
        focused = u**power
        ratio = u.norm(dim=-1, keepdim=True) / focused.norm(dim=-1, keepdim=True)
        out: Tensor = (largest * focused * ratio).to(dtype).contiguous()
    return out
