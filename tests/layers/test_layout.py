import pytest
import torch

from l2vit_mm.layers import DenseLayout, PackedLayout, Window
from l2vit_mm.layers.layout import packed


@pytest.fixture
def tokens():
    return torch.randn(2, 5, 7, 3)


LAYOUT = DenseLayout(2, 5, 7)


def test_maps_are_views(tokens):
    seen = []

    def function(maps):
        seen.append(maps)
        return maps[:, :, ::2, 1:]

    out = LAYOUT.over_maps(function, tokens)
    assert seen[0].shape == (2, 3, 5, 7)
    assert seen[0].data_ptr() == tokens.data_ptr() and out._base is not None
    assert seen[0][1, 2, 3, 4] == tokens[1, 3, 4, 2]
    assert torch.equal(out, tokens[:, ::2, 1:])


def test_map_and_back(tokens):
    feature_map = LAYOUT.to_map(tokens, 5, 7)
    assert feature_map.shape == (2, 3, 5, 7)
    assert feature_map[1, 2, 3, 4] == tokens[1, 3, 4, 2]
    assert torch.equal(LAYOUT.from_map(feature_map.contiguous()), tokens)
    assert LAYOUT.from_map(feature_map.contiguous()).is_contiguous()


PACKED = PackedLayout.of_sizes([(2, 3), (2, 3), (4, 1)])


@pytest.mark.parametrize('large', [0, 2**17])
def test_packed_map_and_back(large, monkeypatch):
    monkeypatch.setattr(packed, '_LARGE', large)
    tokens = torch.arange(1.0, 17).view(16, 1)
    feature_map = PACKED.to_map(tokens, 5, 4)
    assert feature_map[:, 0].tolist() == [
        [[1, 2, 3, 0], [4, 5, 6, 0], [0] * 4, [0] * 4, [0] * 4],
        [[7, 8, 9, 0], [10, 11, 12, 0], [0] * 4, [0] * 4, [0] * 4],
        [[13, 0, 0, 0], [14, 0, 0, 0], [15, 0, 0, 0], [16, 0, 0, 0], [0] * 4],
    ]
    feature_map[feature_map == 0] = torch.nan
    assert torch.equal(PACKED.from_map(feature_map), tokens)


def test_large_packed_maps_are_views_by_size(monkeypatch):
    monkeypatch.setattr(packed, '_LARGE', 16 * 3 / 2)
    tokens, seen = torch.randn(16, 3), []

    def function(maps):
        seen.append(maps)
        return maps[:, :, 1:]

    out = PACKED.over_maps(function, tokens)
    assert [maps.shape for maps in seen] == [(2, 3, 2, 3), (1, 3, 4, 1)]
    assert seen[0].data_ptr() == tokens.data_ptr() == seen[1].data_ptr() - 4 * 12 * 3
    assert torch.equal(out, tokens[[3, 4, 5, 9, 10, 11, 13, 14, 15]])


def test_small_packed_maps_come_in_one_batch(monkeypatch):
    monkeypatch.setattr(packed, '_LARGE', 16 * 3 / 2 + 1)
    tokens, seen = torch.randn(16, 3), []

    def function(maps):
        seen.append(maps)
        return maps[:, :, 1::2, ::2]

    reduced = PackedLayout([(2, 1, 2), (1, 2, 1)])
    out = PACKED.over_maps(function, tokens, reduced)
    assert len(seen) == 1 and torch.equal(seen[0], PACKED.to_map(tokens, 4, 3))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, tokens[[3, 5, 9, 11, 13, 15]])


def test_sequences(tokens):
    sequences = LAYOUT.to_sequences(tokens)
    assert sequences.shape == (2, 35, 3)
    assert torch.equal(sequences[1, 2 * 7 + 3], tokens[1, 2, 3])
    assert torch.equal(LAYOUT.from_sequences(sequences), tokens)


@pytest.mark.parametrize('shift', [False, True])
@pytest.mark.parametrize(
    'window', [(2, 3), (5, 7), (1, 1), (8, 8), (None, 2), (3, None), (None, None)]
)
def test_windows_round_trip_with_padding(tokens, window, shift):
    h, w = window[0] or 5, window[1] or 7
    window = Window(*window, shift=shift)
    windows, layout = LAYOUT.to_windows(tokens, window)
    rows, columns = -(-5 // h), -(-7 // w)
    assert layout == DenseLayout(2 * rows * columns, h, w)
    assert windows.shape == (2 * rows * columns, h, w, 3)
    assert torch.equal(LAYOUT.from_windows(windows, window), tokens)
    # Row by row, image by image; what is beyond the map is zero. A shift moves all to the left and
    # up, where there is more than one window.
    shift_y, shift_x = (h // 2 if shift and h < 5 else 0), (w // 2 if shift and w < 7 else 0)
    for b in range(2):
        for y in range(rows * h):
            for x in range(columns * w):
                token = windows[(b * rows + y // h) * columns + x // w, y % h, x % w]
                map_y, map_x = (y + shift_y) % (rows * h), (x + shift_x) % (columns * w)
                inside = map_y < 5 and map_x < 7
                assert torch.equal(token, tokens[b, map_y, map_x] if inside else torch.zeros(3))


def test_windows_clipped_to_the_map(tokens):
    windows, layout = LAYOUT.to_windows(tokens, Window(6, 4, clip=True))
    assert layout == DenseLayout(4, 5, 4)
    assert torch.equal(LAYOUT.from_windows(windows, Window(6, 4, clip=True)), tokens)
    assert LAYOUT.to_windows(tokens, Window(6, 4))[1] == DenseLayout(4, 6, 4)


def test_parts_of_shifted_windows():
    assert LAYOUT.window_parts(Window(2, 3), 'cpu') is None
    assert LAYOUT.window_parts(Window(5, 7, shift=True), 'cpu') is None
    parts = LAYOUT.window_parts(Window(2, 3, shift=True), 'cpu')  # 6 x 9 tokens, rolled by 1 and 1
    assert parts.shape == (2 * 3 * 3, 6)
    for image in parts.reshape(2, 3, 3, 2, 3):
        for row in range(3):
            for column in range(3):
                for y in range(2):
                    for x in range(3):
                        # The last row and column come from the other side of the map.
                        expected = 2 * (2 * row + y == 5) + (3 * column + x == 8)
                        assert image[row, column, y, x] == expected


def test_per_image(tokens):
    scaled = tokens * LAYOUT.per_image(torch.tensor([2.0, 3.0]))
    assert torch.equal(scaled[0], 2 * tokens[0]) and torch.equal(scaled[1], 3 * tokens[1])


def test_values_an_image_of_packed_tokens():
    layout = PackedLayout.of_sizes([(1, 2), (3, 1), (3, 1)])
    values = layout.per_image(torch.tensor([2.0, 3.0, 5.0]))
    assert values.tolist() == [[2.0]] * 2 + [[3.0]] * 3 + [[5.0]] * 3


def test_per_position():
    table = LAYOUT.per_position(
        lambda height, width: torch.arange(height * width).reshape(height, width, 1)
    )
    assert table.shape == (5, 7, 1)
