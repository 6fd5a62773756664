import torch
from torch import nn

from l2vit_mm.layers import DropPath, SelfAttention, SoftmaxAttention, TokenLayout, Window


def test_drop_path_drops_whole_images_and_keeps_the_mean():
    torch.manual_seed(0)
    layout = TokenLayout(2000, 2, 3)
    out = DropPath(0.25).train()(torch.ones(2000, 2, 3, 4), layout)
    images = out.flatten(1)
    assert torch.equal(images.amin(1), images.amax(1))
    kept = images[:, 0] > 0
    torch.testing.assert_close(images[kept], torch.full_like(images[kept], 1 / 0.75))
    assert abs(kept.float().mean() - 0.75) < 0.04


def test_window_attention_against_its_formula():
    torch.manual_seed(0)
    attention = SelfAttention(8, SoftmaxAttention(2), Window(3, 3)).double()
    x = torch.randn(1, 4, 5, 8, dtype=torch.float64)
    out = attention(x, TokenLayout(1, 4, 5))
    padded = nn.functional.pad(x, (0, 0, 0, 1, 0, 2))
    expected = torch.zeros_like(padded)
    for top in (0, 3):
        for left in (0, 3):
            window = padded[0, top:top + 3, left:left + 3].reshape(9, 8)
            q, k, v = attention.qkv(window).split(8, -1)
            heads = []
            for h in (slice(0, 4), slice(4, 8)):
                heads.append((q[:, h] @ k[:, h].T * 4**-0.5).softmax(-1) @ v[:, h])
            expected[0, top:top + 3, left:left + 3] = attention.proj(
                torch.cat(heads, -1)).view(3, 3, 8)
    torch.testing.assert_close(out, expected[:, :4, :5])
