import pytest
import torch
import torch.nn.functional as F

from l2vit_mm.layers import DenseLayout, PositionTable, RelativePositionBias
from l2vit_mm.layers import position as module


@pytest.fixture
def table():
    table = PositionTable(6, (4, 5)).double()
    torch.nn.init.normal_(table.table)
    return table.eval()


@pytest.fixture
def resizes(monkeypatch):
    """Counts resizes."""
    calls = []

    def counted(*args):
        calls.append(args[1:3])
        return resize(*args)

    resize = module.resize_table
    monkeypatch.setattr(module, 'resize_table', counted)
    return calls


def test_at_its_own_size_it_is_the_table_itself(table):
    assert table(DenseLayout(3, 4, 5)) is table.table


@pytest.mark.parametrize('mode', ['bicubic', 'bilinear'])
@pytest.mark.parametrize('size', [(1, 1), (7, 3), (4, 9)])
def test_resized(table, size, mode):
    table.mode = mode
    expected = F.interpolate(
        table.table.permute(2, 0, 1)[None], size, mode=mode, align_corners=False
    )
    out = table(DenseLayout(1, *size))
    torch.testing.assert_close(out, expected[0].permute(1, 2, 0))
    assert out.is_contiguous()


def test_a_size_is_resized_once(table, resizes):
    with torch.no_grad():
        first = table(DenseLayout(1, 7, 3))
        assert table(DenseLayout(2, 7, 3)) is first
        table(DenseLayout(1, 3, 7))
        assert resizes == [(7, 3), (3, 7)]
        for width in range(10, 20):
            table(DenseLayout(1, 2, width))
        assert len(table._cache) == module._KEPT_SIZES  # memory has an end


def test_a_gradient_reaches_the_table(table):
    with torch.no_grad():
        table(DenseLayout(1, 7, 3))
    table(DenseLayout(1, 7, 3)).sum().backward()
    assert table.table.grad.any()
    table.train()
    with torch.no_grad():
        table(DenseLayout(1, 7, 3))
    assert not table._cache


@pytest.mark.parametrize(
    'change',
    [
        lambda table: table.load_state_dict({'table': torch.ones(4, 5, 6)}),
        lambda table: (table.table.data.fill_(1.0), table.eval()),  # mmengine's EMA, before val
        lambda table: torch.nn.init.ones_(table.table),
    ],
    ids=['load', 'ema', 'in place'],
)
def test_changed_weights_are_seen(table, change):
    with torch.no_grad():
        table(DenseLayout(1, 7, 3))
        change(table)
        torch.testing.assert_close(
            table(DenseLayout(1, 7, 3)), torch.ones(7, 3, 6, dtype=torch.float64)
        )


def test_other_types(table):
    with torch.no_grad():
        table(DenseLayout(1, 7, 3))
        assert table.float()(DenseLayout(1, 7, 3)).dtype == torch.float32


def test_inference_mode(table):
    with torch.inference_mode():
        table(DenseLayout(1, 7, 3))
    table.requires_grad_(False)
    x = torch.ones(7, 3, 6, dtype=torch.float64, requires_grad=True)
    (x * table(DenseLayout(1, 7, 3))).sum().backward()  # raises for what inference mode made
    with torch.inference_mode():
        frozen = PositionTable(2, (2, 2)).eval()
        assert frozen(DenseLayout(1, 3, 3)).shape == (3, 3, 2)


def test_tables_of_windows_that_are_no_squares_load():
    table = PositionTable(2, (2, 3))
    loaded = torch.arange(12.0).reshape(1, 6, 2)
    assert torch.equal(table.fit(loaded), loaded.reshape(2, 3, 2))
    odd = torch.zeros(1, 7, 2)  # of no known height and width
    assert table.fit(odd) is odd


def test_half_precision_tables_are_resized_when_loaded():
    out = PositionTable(2, (4, 4)).fit(torch.ones(1, 9, 2, dtype=torch.float16))
    assert out.dtype == torch.float16 and torch.equal(out, torch.ones_like(out))


def test_relative_position_bias():
    bias = RelativePositionBias(2, 3)
    torch.nn.init.normal_(bias.table)
    out = bias()
    assert out.shape == (2, 9, 9)
    for query in range(9):
        for key in range(9):
            dy, dx = query // 3 - key // 3, query % 3 - key % 3
            assert torch.equal(out[:, query, key], bias.table[(dy + 2) * 5 + dx + 2])
    for odd in (torch.zeros(24, 2), torch.zeros(25, 3), torch.zeros(4)):
        assert bias.fit(odd) is odd
