"""A run that is killed while it writes a checkpoint goes on as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS

from l2vit_mm.apis.errors import UsageError
from l2vit_mm.apis.resume import latest_checkpoint, resume
from l2vit_mm.datasets.seeded import SeededDataset, SeededSampler
from l2vit_mm.engine.hooks import SeedStepHook

# Runs a script, and ends the process in the middle of writing one file.
KILLER = """
import os
import runpy
import signal
import sys

from mmengine.fileio import LocalBackend

put = LocalBackend.put


def put_half(self, obj, filepath):
    if not str(filepath).endswith(os.environ['KILL_AT']):
        return put(self, obj, filepath)
    with open(filepath, 'wb') as stream:
        stream.write(obj[:len(obj) // 2])
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)


LocalBackend.put = put_half
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def steps(work_dir):
    """Iteration to what was logged of it, losses and gradient norm; later runs replace earlier."""
    found = {}
    for file in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if 'loss' in record:
                found[record['step']] = {
                    key: value for key, value in record.items() if 'loss' in key
                }
    return found


@pytest.fixture
def run(repo, tmp_path):
    (tmp_path / 'killer.py').write_text(KILLER)

    def train(config, work_dir, *args, kill_at=None):
        killer = [tmp_path / 'killer.py'] if kill_at else []
        return subprocess.run(
            [
                sys.executable,
                *killer,
                'tools/train.py',
                f'configs/{config}',
                '--work-dir',
                work_dir,
                *args,
            ],
            cwd=repo,
            text=True,
            capture_output=True,
            env={**os.environ, 'OMP_NUM_THREADS': '1', 'KILL_AT': str(kill_at)},
        )

    return train


def check_exact(run, config, settings, work_dir, kill_at, previous, last):
    """Straight against killed at ``kill_at`` and resumed from ``previous``, both to ``last``."""
    seed = ['randomness.seed=3', 'randomness.deterministic=True']
    straight, broken = work_dir / 'straight', work_dir / 'broken'
    result = run(config, straight, '--cfg-options', *settings, *seed)
    assert result.returncode == 0, result.stderr
    result = run(config, broken, '--cfg-options', *settings, *seed, kill_at=kill_at)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert (broken / kill_at).exists() and not (broken / last).exists()
    before = steps(broken)

    # Neither the seed nor the number of workers is that of the first part.
    workers = [
        'train_dataloader.num_workers=2' if s == 'train_dataloader.num_workers=0' else s
        for s in settings
    ]
    result = run(
        config, broken, '--resume', '--cfg-options', *workers, 'randomness.deterministic=True'
    )
    assert result.returncode == 0, result.stderr
    assert f'{broken / kill_at}: it is damaged or incomplete' in result.stdout
    assert f'Load checkpoint from {broken / previous}' in result.stdout + result.stderr

    expected = steps(straight)
    assert list(expected) == list(range(1, 11)) and len({s['loss'] for s in expected.values()}) > 7
    assert {step: expected[step] for step in before} == before and len(before) == 6
    assert steps(broken) == expected
    one, two = (
        torch.load(folder / last, weights_only=False)  # written by this test
        for folder in (straight, broken)
    )
    assert one['meta']['iter'] == 10
    for key, value in one['state_dict'].items():
        assert torch.equal(value, two['state_dict'][key]), key
    for index, state in one['optimizer']['state'].items():
        for key, value in state.items():
            assert torch.equal(value, two['optimizer']['state'][index][key]), (index, key)


@pytest.mark.train
@pytest.mark.slow
def test_a_detector_resumes_exactly(run, small_mask_rcnn, coco_files, tmp_path):
    settings = [
        *coco_files,
        *small_mask_rcnn,
        'train_dataloader.dataset.pipeline.4.scales=[(96,160),(64,128),(128,96)]',
        'train_cfg.max_epochs=5',
        'train_cfg.val_interval=100',
        'default_hooks.logger.interval=1',
        'log_processor.window_size=1',
        'model.backbone.drop_path_rate=0.3',
    ]
    check_exact(
        run,
        'mask_rcnn_l2vit_t_coco.py',
        settings,
        tmp_path,
        'epoch_3.pth',
        'epoch_2.pth',
        'epoch_5.pth',
    )


@pytest.mark.train
@pytest.mark.slow
def test_a_segmenter_resumes_exactly(run, small_upernet, ade_files, tmp_path):
    settings = [
        *ade_files,
        *(s for s in small_upernet if 'interval' not in s),
        'train_cfg.max_iters=10',
        'train_cfg.val_interval=100',
        'default_hooks.logger.interval=1',
        'default_hooks.checkpoint.interval=2',
        'log_processor.window_size=1',
        'model.backbone.drop_path_rate=0.3',
    ]
    check_exact(
        run,
        'upernet_l2vit_t_ade20k.py',
        settings,
        tmp_path,
        'iter_6.pth',
        'iter_4.pth',
        'iter_10.pth',
    )


# --- the parts -----------------------------------------------------------------------------------


@DATASETS.register_module()
class RandomNumbers(torch.utils.data.Dataset):
    """A sample is its index and three random numbers."""

    metainfo = dict(classes=('number',))
    pipeline = 'first'

    def __len__(self):
        return 10

    def __getitem__(self, index):
        assert type(index) is int
        return index, random.random(), np.random.rand(), torch.rand(()).item()


def draws(sampler_type, seed=1, workers=0, epoch=0, skip=0):
    dataset = SeededDataset(dict(type='RandomNumbers'))
    sampler = SeededSampler(dataset, dict(type=sampler_type, shuffle=True), seed)
    sampler.set_epoch(epoch)
    if skip:
        sampler.skip(skip)
    loader = torch.utils.data.DataLoader(
        dataset, 5, sampler=sampler, num_workers=workers, collate_fn=list
    )
    batches = iter(loader)
    return [sample for _ in range(2) for sample in next(batches)]


def test_samples_follow_from_seed_and_place():
    first = draws('DefaultSampler')
    assert sorted(sample[0] for sample in first) == list(range(10))
    assert len({number for sample in first for number in sample[1:]}) == 30
    torch.manual_seed(5)
    assert draws('DefaultSampler', workers=2) == first
    assert not {s[1] for s in first} & {s[1] for s in draws('DefaultSampler', epoch=1)}
    assert not {s[1] for s in first} & {s[1] for s in draws('DefaultSampler', seed=2)}
    infinite = draws('InfiniteSampler')
    if hasattr(SeededSampler(range(3), dict(type='InfiniteSampler'), 1), 'skip'):
        assert draws('InfiniteSampler', skip=5)[:5] == infinite[5:]


def test_the_processes_share_the_places(monkeypatch):
    def seeds(rank, world_size):
        for name in ('mmengine.dataset.sampler', 'l2vit_mm.datasets.seeded'):
            monkeypatch.setattr(f'{name}.get_dist_info', lambda: (rank, world_size))
        sampler = SeededSampler(range(10), dict(type='DefaultSampler'), 1)
        return [(index, index.seed) for index in sampler]

    one, two = seeds(0, 2), seeds(1, 2)
    assert [draw for pair in zip(one, two) for draw in pair] == seeds(0, 1)


def test_a_seeded_data_set_is_the_data_set():
    dataset = SeededDataset(dict(type='RandomNumbers'))
    assert len(dataset) == 10 and dataset.metainfo == dict(classes=('number',))
    dataset.pipeline = 'second'
    assert dataset.dataset.pipeline == 'second'
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    dataset[next(iter(SeededSampler(dataset, dict(type='DefaultSampler'), 1)))]
    assert states == (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )
    assert dataset[3] != dataset[3]  # drawn by hand: as without


def test_steps_are_seeded_by_iteration_and_process(monkeypatch):
    def numbers(seed, iteration, rank):
        monkeypatch.setattr('l2vit_mm.engine.hooks.seed_step.get_rank', lambda: rank)
        SeedStepHook().before_train_iter(SimpleNamespace(seed=seed, iter=iteration), 0)
        return random.random(), np.random.rand(), torch.rand(()).item()

    first = numbers(1, 2, 3)
    assert numbers(1, 2, 3) == first
    for other in (numbers(1, 2, 0), numbers(1, 0, 3), numbers(0, 2, 3)):
        assert not set(first) & set(other)


def write(file, time):
    torch.save(dict(a=torch.ones(999)), file)
    os.utime(file, (time, time))


def test_latest_checkpoint(tmp_path, capsys):
    assert latest_checkpoint(str(tmp_path)) is None
    for number, name in enumerate(['iter_30.pth', 'best_iter_40.pth', 'iter_5.pth', 'iter_10.pth']):
        write(tmp_path / name, 1000 + number)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'iter_10.pth')  # written last
    note = tmp_path / 'last_checkpoint'
    note.write_text(f'/elsewhere/{tmp_path.name}/iter_5.pth')
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'iter_5.pth')
    os.utime(note, (1002.5, 1002.5))  # killed between writing the file and the note
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'iter_10.pth')
    capsys.readouterr()
    (tmp_path / 'iter_10.pth').write_bytes((tmp_path / 'iter_10.pth').read_bytes()[:-500])
    (tmp_path / 'iter_5.pth').write_bytes(b'')
    note.write_text('')
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / 'iter_30.pth')
    said = capsys.readouterr().out
    assert 'iter_10.pth: it is damaged or incomplete' in said and 'iter_5.pth' in said


def test_resume_takes_the_seed_and_refuses_bare_weights(tmp_path, capsys):
    cfg = Config(dict(work_dir=str(tmp_path), load_from=None, randomness=dict(deterministic=True)))
    resume(cfg)
    assert not cfg.resume and 'no checkpoint in' in capsys.readouterr().out
    torch.save(dict(meta=dict(seed=7), message_hub={}, optimizer={}), tmp_path / 'iter_1.pth')
    resume(cfg)
    assert cfg.resume and cfg.load_from == str(tmp_path / 'iter_1.pth')
    assert cfg.randomness == ConfigDict(deterministic=True, seed=7)
    torch.save(dict(state_dict={}, meta={}), tmp_path / 'weights.pth')
    cfg.load_from = str(tmp_path / 'weights.pth')
    with pytest.raises(UsageError, match='has no message_hub, optimizer: it is not the state'):
        resume(cfg)
