import pytest
import torch

from l2vit_mm.layers import TokenLayout


@pytest.fixture
def tokens():
    return torch.randn(2, 5, 7, 3)


LAYOUT = TokenLayout(2, 5, 7)


def test_map_is_a_view(tokens):
    feature_map = LAYOUT.to_map(tokens)
    assert feature_map.shape == (2, 3, 5, 7)
    assert feature_map.data_ptr() == tokens.data_ptr()
    assert feature_map[1, 2, 3, 4] == tokens[1, 3, 4, 2]
    assert torch.equal(LAYOUT.from_map(feature_map), tokens)
    assert TokenLayout.of_map(feature_map) == LAYOUT


def test_sequences(tokens):
    sequences = LAYOUT.to_sequences(tokens)
    assert sequences.shape == (2, 35, 3)
    assert torch.equal(sequences[1, 2 * 7 + 3], tokens[1, 2, 3])
    assert torch.equal(LAYOUT.from_sequences(sequences), tokens)


@pytest.mark.parametrize('window', [(2, 3), (5, 7), (1, 1), (8, 8)])
def test_windows_round_trip_with_padding(tokens, window):
    windows = LAYOUT.to_windows(tokens, window)
    h, w = window
    rows, columns = -(-5 // h), -(-7 // w)
    assert windows.shape == (2 * rows * columns, h * w, 3)
    assert torch.equal(LAYOUT.from_windows(windows, window), tokens)
    # Row by row, image by image; what is beyond the map is zero.
    for b in range(2):
        for y in range(rows * h):
            for x in range(columns * w):
                token = windows[(b * rows + y // h) * columns + x // w, y % h * w + x % w]
                expected = tokens[b, y, x] if y < 5 and x < 7 else torch.zeros(3)
                assert torch.equal(token, expected)


def test_per_image(tokens):
    scaled = tokens * LAYOUT.per_image(torch.tensor([2., 3.]))
    assert torch.equal(scaled[0], 2 * tokens[0]) and torch.equal(scaled[1], 3 * tokens[1])
