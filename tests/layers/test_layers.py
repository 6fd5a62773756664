import torch
from torch import nn

from l2vit_mm.layers import (
    MLP,
    DenseLayout,
    DropPath,
    PatchEmbedding,
    PositionTable,
    SelfAttention,
    ShiftedWindowAttention,
    SoftmaxAttention,
    SpatialReductionAttention,
    Window,
)


def test_drop_path_drops_whole_images_and_keeps_the_mean():
    torch.manual_seed(0)
    layout = DenseLayout(2000, 2, 3)
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
    out = attention(x, DenseLayout(1, 4, 5))
    padded = nn.functional.pad(x, (0, 0, 0, 1, 0, 2))
    expected = torch.zeros_like(padded)
    for top in (0, 3):
        for left in (0, 3):
            window = padded[0, top : top + 3, left : left + 3].reshape(9, 8)
            q, k, v = attention.qkv(window).split(8, -1)
            heads = []
            for h in (slice(0, 4), slice(4, 8)):
                heads.append((q[:, h] @ k[:, h].T * 4**-0.5).softmax(-1) @ v[:, h])
            expected[0, top : top + 3, left : left + 3] = attention.proj(torch.cat(heads, -1)).view(
                3, 3, 8
            )
    torch.testing.assert_close(out, expected[:, :4, :5])


def test_shifted_windows_against_their_formula():
    """On a map that is no multiple of the window, nor a square."""
    torch.manual_seed(0)
    attention = ShiftedWindowAttention(8, 2, 4, shift=True).double()
    nn.init.normal_(attention.bias.table)
    height, width = 6, 11
    x = torch.randn(2, height, width, 8, dtype=torch.float64)
    out = attention(x, DenseLayout(2, height, width))
    padded = nn.functional.pad(x, (0, 0, 0, 1, 0, 2))[1]  # 8 x 12
    q, k, v = attention.qkv(padded).split(8, -1)
    # Without rolling: what a token at (y, x) attends to are the tokens of its window on a grid that
    # begins at (2, 2); the first two rows and columns are windows of their own.
    for y in range(height):
        for x_ in range(width):
            keys = [
                (r, c)
                for r in range(8)
                for c in range(12)
                if (r + 2) // 4 == (y + 2) // 4 and (c + 2) // 4 == (x_ + 2) // 4
            ]
            heads = []
            for h in range(2):
                part = slice(4 * h, 4 * h + 4)
                logits = torch.stack(
                    [
                        q[y, x_, part] @ k[r, c, part] / 2
                        + attention.bias.table[(y - r + 3) * 7 + x_ - c + 3, h]
                        for r, c in keys
                    ]
                )
                values = torch.stack([v[r, c, part] for r, c in keys])
                heads.append(logits.softmax(0) @ values)
            torch.testing.assert_close(out[1, y, x_], attention.proj(torch.cat(heads)))


def test_window_is_not_shifted_along_an_axis_that_it_fills():
    torch.manual_seed(0)
    shifted = ShiftedWindowAttention(8, 2, 4, shift=True)
    plain = ShiftedWindowAttention(8, 2, 4, shift=False)
    plain.load_state_dict(shifted.state_dict())
    x = torch.randn(1, 4, 3, 8)
    assert torch.equal(shifted(x, DenseLayout(1, 4, 3)), plain(x, DenseLayout(1, 4, 3)))
    x = torch.randn(1, 4, 8, 8)
    assert not torch.allclose(shifted(x, DenseLayout(1, 4, 8)), plain(x, DenseLayout(1, 4, 8)))


def test_spatial_reduction_against_its_formula():
    torch.manual_seed(0)
    attention = SpatialReductionAttention(8, SoftmaxAttention(1), 2).double()
    x = torch.randn(1, 3, 5, 8, dtype=torch.float64)
    out = attention(x, DenseLayout(1, 3, 5))
    padded = nn.functional.pad(x, (0, 0, 0, 1, 0, 1))[0]
    conv, keys = attention.reduction, []
    for y in range(2):
        for x_ in range(3):
            patch = padded[2 * y : 2 * y + 2, 2 * x_ : 2 * x_ + 2].permute(2, 0, 1)
            keys.append((conv.weight * patch).sum((1, 2, 3)) + conv.bias)
    k, v = attention.kv(attention.reduction_norm(torch.stack(keys))).split(8, -1)
    weights = (attention.q(x[0].flatten(0, 1)) @ k.T * 8**-0.5).softmax(-1)
    torch.testing.assert_close(out[0].flatten(0, 1), attention.proj(weights @ v))
    assert attention.reduction_norm.eps == 1e-5


def test_mlp_with_a_convolution():
    mlp = MLP(4, 2, depthwise=True).double()
    x = torch.randn(1, 3, 5, 4, dtype=torch.float64)
    hidden = mlp.dwconv(mlp.fc1(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(mlp(x, DenseLayout(1, 3, 5)), mlp.fc2(nn.functional.gelu(hidden)))
    assert mlp.dwconv.groups == 8


def test_patch_embedding():
    position = PositionTable(6, (2, 3))
    nn.init.normal_(position.table)
    embedding = PatchEmbedding(3, 6, 4, 4, position=position)
    image = torch.randn(2, 3, 5, 9)
    layout = DenseLayout(2, 5, 9)
    tokens, layout = embedding(layout.from_map(image), layout)
    assert layout == DenseLayout(2, 2, 3)
    patches = embedding.proj(nn.functional.pad(image, (0, 3, 0, 3)))
    torch.testing.assert_close(tokens, embedding.norm(patches.permute(0, 2, 3, 1)) + position.table)
