"""Linear attention in plain PyTorch: the definition of the operator."""
import torch
from torch import Tensor


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: Tensor | float | None = None,
                     denom_min: float = 100.) -> Tensor:
    """Global linear attention with ReLU features and a clamped normaliser.

    With ``phi = relu`` and sums over all keys of the same image, a head at a time
    (L2ViT, arXiv 2501.16182)::

        out_i = scale * phi(q_i) (sum_j phi(k_j) v_j^T) / max(phi(q_i) . sum_j phi(k_j), denom_min)

    Args:
        q (Tensor): queries, (B, N, H, D), any strides.
        k (Tensor): keys, (B, M, H, D).
        v (Tensor): values, (B, M, H, Dv).
        scale (Tensor or float, optional): factor of the output; a tensor has one a head, (H,).
            None: 1.
        denom_min (float): the least that the output is divided by.

    Returns:
        Tensor: (B, N, H, Dv) in the type of ``q``. Sums are in float32 for half precisions.
    """
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    # Autocast would put the sums over tens of thousands of keys back into half precision.
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (x.transpose(1, 2) for x in (q.relu(), k.relu(), v))  # (B, H, N, D)
        state = k.transpose(-2, -1) @ v  # (B, H, D, Dv)
        denom = (q @ k.sum(-2, keepdim=True).transpose(-2, -1)).clamp(min=denom_min)
        out = (q @ state / denom).transpose(1, 2)
        if scale is not None:
            out = out * (scale[:, None] if isinstance(scale, Tensor) else scale)
    return out.to(dtype)
