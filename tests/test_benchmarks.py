"""benchmarks/: what is computed from times and bytes. Nothing here depends on how fast it runs."""

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from l2vit_mm.ops import extension

BENCHMARKS = Path(__file__).parents[1] / 'benchmarks'
sys.path.insert(0, str(BENCHMARKS))

import bench_batch  # noqa: E402
import bench_ops  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402

CPU = torch.device('cpu')
TINY = bench_ops.Plan(
    rounds=3,
    budget=0.0,
    copy_bytes=2**12,
    matmul_size=16,
    stages=((48, 32), (24, 64), (12, 32), (3, 96)),
    images=((32, 64), (96, 32), (64, 64)),
    resolutions=((16, 16), (16, 32), (32, 32), (32, 64)),
)


def test_relative_times():
    samples = {'slow': [4.0, 9.0, 40.0], 'fast': [2.0, 3.0, 4.0]}
    assert measure.medians(samples) == {'slow': 9.0, 'fast': 3.0}
    # 9 / 3, and the median of 2, 3 and 10
    assert measure.relative(samples, 'fast') == {'slow': {'of_medians': 3.0, 'paired': 3.0}}
    samples = {'slow': [10.0, 9.0, 2.0], 'fast': [1.0, 3.0, 4.0]}
    assert measure.relative(samples, 'fast') == {'slow': {'of_medians': 3.0, 'paired': 3.0}}
    samples = {'slow': [8.0, 9.0, 2.0], 'fast': [4.0, 3.0, 1.0]}
    assert measure.relative(samples, 'fast') == {'slow': {'of_medians': 8 / 3, 'paired': 2.0}}


def test_floor_is_the_larger_of_moving_and_computing():
    ceilings = {'copy_bytes_per_second': 100.0, 'matmul_operations_per_second': 1000.0}
    row = {'bytes': 200, 'operations': 1000, 'seconds': {'reference': 9.0, 'compiled': 3.0}}
    bench_ops.add_floor(row, ceilings)
    assert row['floor'] == {'seconds': 2.0, 'bound_by': 'bytes', 'times': 1.5}
    row.update(operations=6000)
    bench_ops.add_floor(row, ceilings)
    assert row['floor'] == {'seconds': 6.0, 'bound_by': 'operations', 'times': 0.5}


def test_slopes_of_the_larger_half():
    rows = [
        {'tokens': n, 'seconds': {'linear': max(n, 8), 'softmax': max(n, 8) ** 2}}
        for n in (2, 4, 16, 64)
    ]
    del rows[3]['seconds']['softmax']  # it would take too long
    slopes = bench_ops.slopes(rows, 'seconds')
    assert slopes['linear'] == pytest.approx(1)
    assert slopes['softmax'] == pytest.approx(math.log(256 / 64) / math.log(4))  # of 4 and 16


def test_calls_are_interleaved():
    class Clock(measure.Timer):
        """Two seconds a call, and a record of what was called."""

        def __call__(self, call, repeats=1):
            call()
            return 2.0

    order = []
    calls = {name: lambda name=name: order.append(name) for name in 'ab'}
    samples = Clock(CPU).interleave(calls, rounds=9, budget=16.0)
    assert samples == {'a': [2.0] * 4, 'b': [2.0] * 4}
    assert ''.join(order) == 'ab' + 'ab' + 'ba' + 'ab' + 'ba'  # the first two to see how long
    assert len(Clock(CPU).interleave(calls, rounds=9, budget=1.0)['a']) == 3


def test_peak_memory():
    def call():
        a, b = torch.empty(1000), torch.empty(500)
        del a
        c = torch.empty(200)
        return b, c

    peak, kept = measure.peak_memory(call, CPU)
    assert (peak, kept) == (6000, 2800)


def test_plans():
    full = bench_ops.plan(CPU, quick=False, rounds=None)
    quick = bench_ops.plan(CPU, quick=True, rounds=7)
    assert quick.stages == full.stages
    assert quick.rounds == 7 and quick.budget < full.budget
    assert bench_ops.plan(torch.device('cuda'), False, None).batches == (1, 8)


@pytest.fixture(scope='module')
def tiny_run(tmp_path_factory):
    """The figures and the printed text of a whole run at tiny sizes."""
    if extension.load_error():
        pytest.skip(extension.load_error())
    pytest.importorskip('matplotlib')
    folder = tmp_path_factory.mktemp('bench')
    code = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import bench_ops
from bench_ops import Plan
bench_ops.plan = lambda *_: {TINY!r}
bench_ops.main(['--dtype', 'float32', 'bfloat16', '--threads', '1', '--json', 'out/figures.json',
                '--plot', 'out/plot.png'])
"""
    result = subprocess.run(
        [sys.executable, '-c', code], cwd=folder, text=True, capture_output=True
    )
    assert result.returncode == 0, result.stderr
    assert (folder / 'out' / 'plot.png').read_bytes().startswith(b'\x89PNG')
    return json.loads((folder / 'out' / 'figures.json').read_text()), result.stdout


@pytest.mark.train
def test_figures(tiny_run):
    figures, _ = tiny_run
    assert figures['environment']['threads'] == 1
    assert figures['environment']['extension'] == extension.build_info()
    assert [result['dtype'] for result in figures['results']] == ['float32', 'bfloat16']
    for result, itemsize in zip(figures['results'], (4, 2)):
        compared = [*result['stages'], *result['focused'], *result['packed'], result['softmax']]
        for row in compared:
            for name, samples in row['samples'].items():
                assert len(samples) == 3 and min(samples) > 0
                assert row['seconds'][name] == statistics.median(samples)
            assert row['relative'] == measure.relative(row['samples'], row['unit'])
        for row in result['stages'] + result['focused']:
            assert set(row['samples']) >= {'reference', 'compiled'}
            assert row['floor']['times'] == pytest.approx(
                row['seconds']['compiled'] / row['floor']['seconds']
            )

        forward, both = result['stages'][:2]
        size = 48 * 32
        assert (forward['tokens'], forward['channels']) == (48, 32)
        assert (forward['bytes'], both['bytes']) == (4 * size * itemsize, 11 * size * itemsize)
        assert (forward['operations'], both['operations']) == (4 * size * 32, 12 * size * 32)

        # at stride 4: 8 x 16, 24 x 8 and 16 x 16 tokens, in maps of 24 x 16
        assert result['packed'][0]['tokens'] == 576
        assert result['packed'][0]['padding'] == 3 * 24 * 16 - 576
        assert [row['tokens'] for row in result['resolution']['rows']] == [4, 8, 16, 32]
        for row in result['resolution']['rows']:  # output, gradients of projection and scale
            assert row['peak_bytes']['compiled'] >= row['tokens'] * 64 * 4 * itemsize + 8
        for row in result['memory']:
            assert row['kept_bytes'] == row['tokens'] * 64 * 4 * itemsize + 8
            assert row['extra_bytes'] > 0
            assert row['state_bytes'] == 64 * 33 * 4


@pytest.mark.train
def test_tables(tiny_run):
    figures, printed = tiny_run
    stage = figures['results'][0]['stages'][0]
    ratio = stage['relative']['reference']
    assert f'{ratio["of_medians"]:.2f} ({ratio["paired"]:.2f})' in printed
    for result in figures['results']:
        assert report.tables(result) in printed
    tables = [block.splitlines() for block in printed.split('\n\n') if block.startswith('|')]
    assert len(tables) == 2 * 6
    for lines in tables:
        assert len({len(line) for line in lines}) == 1  # aligned


def test_batches_are_drawn_as_in_training():
    batches = bench_batch.draw(200, 2, seed=0, scale=1.0)
    assert (
        batches == bench_batch.draw(200, 2, seed=0, scale=1.0) != bench_batch.draw(200, 2, 1, 1.0)
    )
    shorts = set()
    for sizes in batches:
        assert len({h > w for h, w in sizes}) == 1
        for size in sizes:
            assert max(size) <= 1333
            assert min(size) in bench_batch.SHORT_SIDES or max(size) == 1333
            shorts.add(min(size))
    assert shorts >= set(bench_batch.SHORT_SIDES)
    assert bench_batch.resized(425, 640, 800, 1.0) == (800, 1205)
    assert bench_batch.resized(300, 640, 800, 1.0) == (625, 1333)
    assert bench_batch.resized(425, 640, 800, 0.5) == (400, 602)
    assert bench_batch.padded([(33, 64), (10, 65)]) == (64, 96)


def test_a_step_on_valid_regions_is_the_step_on_single_images(monkeypatch):
    step = bench_batch.Step('pico', CPU, None)
    step.model.eval()  # BatchNorm counts what is in a batch
    gradients = {}
    monkeypatch.setattr(
        step.optimizer,
        'step',
        lambda: gradients.update({name: [p.grad.clone() for p in step.model.parameters()]}),
    )
    calls = step.calls([(30, 40), (33, 17)])
    for name, call in calls.items():  # noqa: B007  (the gradients are kept under it)
        call()
    for single, valid in zip(gradients['one by one'], gradients['valid']):
        torch.testing.assert_close(single, valid, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(gradients['padded'][0], gradients['valid'][0], rtol=1e-2)


@pytest.mark.train
def test_table_of_batches(tmp_path, capsys):
    file = tmp_path / 'figures.json'
    bench_batch.main(
        ['--arch', 'pico', '--batches', '2', '--rounds', '3', '--scale', '0.1', '--json', str(file)]
    )
    figures = json.loads(file.read_text())
    *drawn, full = figures['rows']
    assert len(drawn) == 2 and full['area'] == 1.0
    assert full['sizes'] == [full['padded']] * 2
    for row in drawn:
        (a, b), (height, width) = row['sizes'], row['padded']
        assert row['area'] == (a[0] * a[1] + b[0] * b[1]) / (2 * height * width)
        assert row['seconds'] == measure.medians(row['samples'])
        assert row['time'] == measure.relative(row['samples'], 'padded')
    areas = [row['padded'][0] * row['padded'][1] for row in drawn]
    total = figures['total']
    assert total['area'] == pytest.approx(
        sum(row['area'] * area for row, area in zip(drawn, areas)) / sum(areas)
    )
    assert total['seconds']['valid'] == sum(row['seconds']['valid'] for row in drawn)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('|')]
    assert len(lines) == 2 + 2 + 1 + 1 and 'all of these' in lines[4]
    ratio = total['peak_bytes']['valid'] / total['peak_bytes']['padded']
    assert f'| {ratio:.3f}' in lines[4]


@pytest.fixture
def gpu_check(tmp_path):
    """gpu_check.sh with a Python that only notes what it is asked to run, and fails at a word."""

    def run(fails_at):
        python, log = tmp_path / 'python', tmp_path / 'log'
        python.write_text(
            f'#!/bin/sh\necho "$*" >> {log}\ncase "$*" in *"{fails_at}"*) exit 1;; esac\n'
        )
        python.chmod(0o755)
        result = subprocess.run(
            [BENCHMARKS / 'gpu_check.sh'],
            text=True,
            capture_output=True,
            env={'PATH': '/usr/bin:/bin', 'PYTHON': str(python), 'OUT': str(tmp_path / 'out')},
        )
        return result.returncode, result.stdout, log.read_text()

    return run


def test_gpu_check(gpu_check):
    status, printed, ran = gpu_check('nothing')
    assert status == 0 and 'failed: none' in printed
    parts = (
        'setup.py build_ext',
        '-m l2vit_mm',
        '-m pytest -q -m cuda tests/ops',
        'bench_ops.py --device cuda',
    )
    assert [part for line in ran.splitlines() for part in parts if part in line] == list(parts)


@pytest.mark.parametrize(
    'fails_at, printed_line, benchmark_runs',
    [
        ('build_ext', 'build: exit status 1', False),
        ('-m pytest', 'failed: tests', True),
        ('import pytest', 'tests: not run', True),
        ('bench_ops.py', 'failed: bench', True),
    ],
)
def test_gpu_check_with_a_failing_part(gpu_check, fails_at, printed_line, benchmark_runs):
    status, printed, ran = gpu_check(fails_at)
    assert status == 1
    assert printed_line in printed
    assert ('bench_ops.py' in ran) == benchmark_runs
