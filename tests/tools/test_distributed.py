"""Several processes: the scripts, and what they compute, on the CPU over gloo."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

IMAGES = 20
# Notes, in files a process, each iteration's loss, and at the end how many threads gloo has left.
HOOK = """
import atexit
import os
from pathlib import Path
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class NoteLoss(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        with open(f"{runner.work_dir}/loss{os.environ.get('RANK', '')}", 'a') as file:
            print(outputs['loss'].item(), file=file)

def note_threads():
    names = [file.read_text() for file in Path('/proc/self/task').glob('*/comm')]
    count = sum('gloo' in name for name in names)
    Path(__file__).with_name('threads' + os.environ.get('RANK', '')).write_text(str(count))
    return count

atexit.register(note_threads)
"""
# A classifier, whose loss is a mean over images, without randomness; BatchNorms in eval mode.
CONFIG = """
_base_ = '{repo}/configs/l2vit_t_imagenet.py'
custom_imports = dict(imports=['l2vit_mm', 'note_loss'], allow_failed_imports=False)
model = dict(
    backbone=dict(arch='pico', norm_eval=True, drop_path_rate=0.),
    head=dict(in_channels=192, num_classes=4),
    train_cfg=None)
pipeline = [
    dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64)), dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=4, num_workers=0, persistent_workers=False,
    dataset=dict(data_root='{data}', metainfo=dict(classes=list('abcd')), pipeline=pipeline))
val_dataloader = None
val_cfg = None
val_evaluator = None
test_dataloader = dict(
    batch_size=2, num_workers=0, persistent_workers=False,
    dataset=dict(data_root='{data}', split='train', metainfo=dict(classes=list('abcd')),
                 pipeline=pipeline))
test_evaluator = dict(topk=(1,))
optim_wrapper = dict(_delete_=True, optimizer=dict(type='SGD', lr=0.02, momentum=0.9))
param_scheduler = []
train_cfg = dict(max_epochs=1)
custom_hooks = [dict(type='NoteLoss')]
randomness = dict(seed=0)
"""


@pytest.fixture
def config(repo, tmp_path):
    pytest.importorskip('mmpretrain')
    rng = np.random.default_rng(0)
    for index in range(IMAGES):
        folder = tmp_path / 'data' / 'train' / 'abcd'[index % 4]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        pixels[..., index % 4 % 3] //= 2
        Image.fromarray(pixels).save(folder / f'{index}.png')
    (tmp_path / 'note_loss.py').write_text(HOOK)
    file = tmp_path / 'config.py'
    file.write_text(CONFIG.format(repo=repo, data=tmp_path / 'data'))
    return file


@pytest.fixture
def environment(tmp_path):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    return {
        **os.environ,
        'PYTHON': sys.executable,
        'PORT': str(port),
        'OMP_NUM_THREADS': '1',
        'PYTHONPATH': os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')]),
    }


def losses(work_dir, rank=''):
    return np.array([float(line) for line in (work_dir / f'loss{rank}').read_text().split()])


def threads_left(folder):
    """Of gloo's, what each process of the last distributed run noted at its end."""
    files = sorted(folder.glob('threads[0-9]'))
    counts = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    return counts


@pytest.mark.train
@pytest.mark.slow
def test_two_processes_compute_what_one_does(config, environment, repo, tmp_path):
    single, double = tmp_path / 'single', tmp_path / 'double'
    subprocess.run(
        [sys.executable, 'tools/train.py', config, '--work-dir', single],
        cwd=repo,
        env=environment,
        check=True,
    )
    subprocess.run(
        [
            'tools/dist_train.sh',
            config,
            '2',
            '--work-dir',
            double,
            '--cfg-options',
            'train_dataloader.batch_size=2',
        ],
        cwd=repo,
        env=environment,
        check=True,
    )
    assert threads_left(tmp_path) == ['0', '0']
    one = losses(single)
    assert len(one) == 5 and abs(one[0] - one[-1]) > 1e-2
    ranks = losses(double, 0), losses(double, 1)
    assert np.abs(ranks[0] - ranks[1]).min() > 1e-4  # each has its own half
    np.testing.assert_allclose((ranks[0] + ranks[1]) / 2, one, atol=1e-5)
    # Written by this test.
    weights = [
        torch.load(folder / 'epoch_1.pth', weights_only=False)['state_dict']
        for folder in (single, double)
    ]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5, msg=name)

    scores = []
    for command in (
        [sys.executable, 'tools/test.py', config, single / 'epoch_1.pth'],
        ['tools/dist_test.sh', config, single / 'epoch_1.pth', '2'],
    ):
        result = subprocess.run(
            [*command, '--work-dir', tmp_path / 'test'],
            cwd=repo,
            env=environment,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        )
        scores.append(re.findall(r'^top-1 accuracy .*$', result.stdout, re.M))
    assert scores[0] == scores[1] and len(scores[0]) == 1  # one process prints it
    assert threads_left(tmp_path) == ['0', '0']


@pytest.mark.train
@pytest.mark.slow
def test_when_one_process_is_killed_the_others_end(config, environment, repo, tmp_path):
    work_dir = tmp_path / 'work'
    process = subprocess.Popen(
        [
            'tools/dist_train.sh',
            config,
            '2',
            '--work-dir',
            work_dir,
            '--cfg-options',
            'train_cfg.max_epochs=10000',
        ],
        cwd=repo,
        env=environment,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 120
        while not (work_dir / 'loss1').exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        children = subprocess.run(
            ['pgrep', '-P', str(process.pid)], text=True, capture_output=True, check=True
        ).stdout.split()
        os.kill(int(children[-1]), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert 'Signal 9 (SIGKILL)' in errors


# note_loss, imported before the group is made, counts after the group has been left.
END = """
import sys
import time
import torch
from mmengine.config import Config
from note_loss import note_threads
from l2vit_mm.compat.distributed import init_cpu_group

init_cpu_group(Config())
deadline = time.monotonic() + 20  # a thread takes its name when it first runs
while not note_threads():
    assert time.monotonic() < deadline
cycle = [torch.distributed.group.WORLD]
cycle.append(cycle)
del cycle
{end}
"""


@pytest.mark.train
@pytest.mark.parametrize(
    'end, status', [('', 0), ('sys.exit(2)', 2), ('torch.distributed.destroy_process_group()', 0)]
)
def test_a_process_leaves_its_group_before_it_ends(end, status, config, environment, repo):
    """Else it is now and then aborted, after all its work."""
    result = subprocess.run(
        [sys.executable, '-c', END.format(end=end)],
        cwd=repo,
        env={
            **environment,
            'RANK': '0',
            'WORLD_SIZE': '1',
            'MASTER_ADDR': '127.0.0.1',
            'MASTER_PORT': environment['PORT'],
        },
    )
    assert result.returncode == status
    assert threads_left(config.parent) == ['0']


@pytest.mark.parametrize('script', ['dist_train', 'dist_test', 'slurm_train', 'slurm_test'])
def test_scripts_say_what_they_take(script, repo):
    result = subprocess.run([f'tools/{script}.sh', 'one'], cwd=repo, text=True, capture_output=True)
    assert result.returncode == 2
    assert f'tools/{script}.sh ' in result.stderr and '[options of t' in result.stderr


@pytest.mark.parametrize(
    'script, arguments, expected',
    [
        (
            'slurm_train',
            ['part', 'job', 'c.py', 'work', '--amp'],
            'train.py c.py --work-dir work --launcher slurm --amp',
        ),
        (
            'slurm_test',
            ['part', 'job', 'c.py', 'c.pth', '--out', 'a b.pkl'],
            'test.py c.py --launcher slurm c.pth --out a b.pkl',
        ),
    ],
)
def test_slurm(script, arguments, expected, repo, tmp_path):
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    srun.chmod(0o755)
    result = subprocess.run(
        [f'tools/{script}.sh', *arguments],
        cwd=repo,
        text=True,
        capture_output=True,
        check=True,
        env={
            **os.environ,
            'PATH': f'{tmp_path}:{os.environ["PATH"]}',
            'GPUS': '4',
            'SRUN_ARGS': '--quota=spot --exclusive',
            'PYTHON': 'py',
        },
    )
    words = result.stdout.splitlines()
    assert words[:4] == ['-p', 'part', '--job-name=job', '--gres=gpu:4']
    assert {
        '--ntasks=4',
        '--ntasks-per-node=4',
        '--cpus-per-task=5',
        '--quota=spot',
        '--exclusive',
    } <= set(words)
    assert ' '.join(words[words.index('py') + 2 :]).endswith(expected.split(' ', 1)[1])
    assert words[words.index('py') + 2].endswith(f'tools/{expected.split()[0]}')


@pytest.mark.train
def test_slurm_without_a_gpu_is_one_line(config, environment, repo):
    if torch.cuda.is_available():
        pytest.skip('there is one')
    result = subprocess.run(
        [
            sys.executable,
            'tools/train.py',
            config,
            '--launcher',
            'slurm',
            '--work-dir',
            config.parent / 'work',
        ],
        cwd=repo,
        text=True,
        capture_output=True,
        env=environment,
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == (
        'train.py: error: --launcher must be pytorch on a machine without a GPU, got slurm'
    )
