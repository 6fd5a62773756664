"""tools/generate_shapes.py and tools/tile_pictures.py."""

import os
import re
import runpy
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

TOOLS = Path(__file__).parents[2] / 'tools'


@pytest.fixture
def run(monkeypatch):
    def run(tool, *arguments):
        monkeypatch.setattr(sys, 'argv', [tool, *map(str, arguments)])
        monkeypatch.setattr(os, 'cpu_count', lambda: 1)  # starting workers takes seconds
        runpy.run_path(str(TOOLS / tool))['main']()

    return run


def test_generate_shapes(run, tmp_path, capsys):
    root, pictures = tmp_path / 'shapes', tmp_path / 'pictures'
    arguments = ['--root', root, '--num-train', 4, '--num-val', 2]
    run('generate_shapes.py', *arguments)
    assert capsys.readouterr().out == (f'{root}: 4 training and 2 validation images, written\n')
    run('generate_shapes.py', *arguments, '--show-dir', pictures)
    assert 'already there' in capsys.readouterr().out
    assert [path.name for path in sorted(pictures.iterdir())] == ['00000001.png', '00000002.png']
    picture = cv2.imread(str(pictures / '00000001.png'))
    plain, marked = np.hsplit(picture, 2)
    image = cv2.imread(str(root / 'images/validation/validation_00000001.jpg'))
    assert plain.shape[:2] == (2 * image.shape[0], 2 * image.shape[1])
    assert 0 < (plain != marked).any(-1).mean() < 0.3
    with pytest.raises(SystemExit, match="error: root must be .*'seed': 1.*got .*'seed': 0"):
        run('generate_shapes.py', *arguments, '--seed', 1)
    run('generate_shapes.py', *arguments, '--seed', 1, '--force')
    with pytest.raises(SystemExit, match='error: num_val must be .* got 0'):
        run('generate_shapes.py', '--num-val', 0)


def test_generate_shapes_shows_progress_on_a_terminal(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    run('generate_shapes.py', '--root', tmp_path / 'shapes', '--num-train', 4, '--num-val', 2)
    train, val, written = capsys.readouterr().out.strip().split('\n')
    for line, num in ((train, 4), (val, 2)):
        assert re.search(rf'{num}/{num}, .* task/s, .*ETA: +0s$', line)
    assert written.endswith('written')


def test_tile_pictures(run, tmp_path):
    colors = {'a': (0, 0, 250), 'b': (0, 250, 0), 'c': (250, 0, 0)}
    folder = tmp_path / 'in'
    for step, (name, shape) in enumerate(
        dict(a=(40, 60, 3), b=(80, 30, 3), c=(20, 50, 3), d=(30, 30, 3)).items()
    ):
        for run_number in range(2):  # the second is newer
            path = folder / str(run_number) / f'{name}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            color = colors.get(name, (9, 90, 9)) if run_number else (0, 0, 0)
            cv2.imwrite(str(path), np.full(shape, color, np.uint8))
            os.utime(path, (step + 10 * run_number,) * 2)
    out = tmp_path / 'out.png'
    run('tile_pictures.py', folder, out, '--num', 3, '--columns', 2, '--scale', 2)
    picture = cv2.imread(str(out))
    assert picture.shape == (160 + 40 + 2 * 24, 2 * 126, 3)
    for (name, color), (y, x, h, w) in zip(
        colors.items(), [(18, 6, 80, 120), (18, 132, 160, 60), (202, 6, 40, 100)], strict=True
    ):
        assert (picture[y : y + h, x : x + w] == color).all(), name
        assert (picture == color).all(-1).sum() == h * w, name
    assert not (picture == (9, 90, 9)).all(-1).any()  # only three
    run('tile_pictures.py', folder, out, '--title', 'ground truth | prediction')
    assert cv2.imread(str(out)).shape == (18 + 80 + 30 + 2 * 24, 3 * 66, 3)


def test_tile_pictures_errors(run, tmp_path):
    with pytest.raises(SystemExit, match=f'folder must hold .*, got {tmp_path}/none'):
        run('tile_pictures.py', tmp_path / 'none', tmp_path / 'out.jpg')
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((9, 9, 3), np.uint8))
    for out in ('out.xyz', 'none/out.jpg'):
        with pytest.raises(SystemExit, match=f'out must be .*, got {tmp_path}/{out}'):
            run('tile_pictures.py', tmp_path, tmp_path / out)
    with pytest.raises(SystemExit, match='must be positive, got 0, 3 and 1'):
        run('tile_pictures.py', tmp_path, tmp_path / 'out.jpg', '--num', 0)
    (tmp_path / 'b.jpg').write_text('no picture')
    with pytest.raises(SystemExit, match='pictures must be readable, got .*b.jpg'):
        run('tile_pictures.py', tmp_path, tmp_path / 'out.jpg')
