"""The project's configs, trained, resumed and scored by tools/train.py and tools/test.py."""

import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

pytestmark = pytest.mark.train


def load(path):
    return torch.load(path, map_location='cpu', weights_only=False)  # written by this test


def log_text(work_dir):
    """The log of the latest run."""
    return max(work_dir.glob('*/*.log')).read_text()


def check_resumed(before, after, iterations):
    """``after`` continued ``before``: same optimizer, moved weights."""
    assert after['meta']['iter'] == iterations
    states = after['optimizer']['state'].values()
    assert {int(state['step']) for state in states} == {iterations}
    name = 'backbone.stem.conv1.weight'
    assert not torch.equal(before['state_dict'][name], after['state_dict'][name])


@pytest.mark.slow
def test_mask_rcnn_trains_resumes_and_is_scored(
    train, test_tool, coco_files, small_mask_rcnn, repo, tmp_path, capsys
):
    config = str(repo / 'configs' / 'mask_rcnn_l2vit_t_coco.py')
    work_dir = tmp_path / 'work'
    common = [
        '--work-dir',
        str(work_dir),
        '--cfg-options',
        *coco_files,
        *small_mask_rcnn,
        'train_dataloader.dataset.pipeline.4.scales=[(96,160)]',
    ]

    # From the command line, as a user does it: one epoch, two iterations.
    subprocess.run(
        [
            sys.executable,
            'tools/train.py',
            config,
            *common,
            'train_cfg.max_epochs=1',
            'train_cfg.val_interval=2',
        ],
        cwd=repo,
        check=True,
    )
    first = load(work_dir / 'epoch_1.pth')
    assert first['meta']['iter'] == 2

    # The second in this process, in mixed precision.
    train([config, '--resume', '--amp', *common, 'train_cfg.max_epochs=2'])
    assert 'resumed epoch: 1, iter: 2' in log_text(work_dir)
    check_resumed(first, load(work_dir / 'epoch_2.pth'), iterations=4)

    out, show_dir = tmp_path / 'out.pkl', tmp_path / 'show'
    capsys.readouterr()
    test_tool(
        [
            config,
            str(work_dir / 'epoch_2.pth'),
            '--out',
            str(out),
            '--show-dir',
            str(show_dir),
            *common,
        ]
    )
    assert re.search(r'^box mAP \d\.\d{3}  mask mAP \d\.\d{3}$', capsys.readouterr().out, re.M)
    predictions = pickle.loads(out.read_bytes())
    assert len(list(show_dir.iterdir())) == len(predictions) >= 3
    instances = predictions[0]['pred_instances']
    assert len(instances['scores']) == len(instances['masks']) > 0


@pytest.mark.slow
def test_upernet_trains_resumes_and_is_scored(
    train, test_tool, ade_files, small_upernet, repo, tmp_path, capsys
):
    config = str(repo / 'configs' / 'upernet_l2vit_t_ade20k.py')
    work_dir = tmp_path / 'work'
    common = ['--work-dir', str(work_dir), '--cfg-options', *ade_files, *small_upernet]

    train([config, '--auto-scale-lr', *common, 'train_cfg.max_iters=2'])
    first = load(work_dir / 'iter_2.pth')
    # Two images an iteration instead of the 16 that the learning rate is for.
    assert first['optimizer']['param_groups'][0]['initial_lr'] == pytest.approx(6e-5 * 2 / 16)

    train([config, '--resume', str(work_dir / 'iter_2.pth'), *common, 'train_cfg.max_iters=4'])
    assert 'resumed epoch: 0, iter: 2' in log_text(work_dir)
    check_resumed(first, load(work_dir / 'iter_4.pth'), iterations=4)

    out, show_dir = tmp_path / 'labels', tmp_path / 'show'
    capsys.readouterr()
    test_tool(
        [
            config,
            str(work_dir / 'iter_4.pth'),
            '--out',
            str(out),
            '--show-dir',
            str(show_dir),
            *common,
        ]
    )
    assert re.search(r'^mIoU \(%\) \d+\.\d\d$', capsys.readouterr().out, re.M)
    labels = [np.array(Image.open(path)) for path in out.glob('*.png')]
    assert len(labels) == 3 and all(1 <= label.min() <= label.max() <= 150 for label in labels)
    assert len(list(show_dir.rglob('*.png'))) == 3


CLASSIFIER = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(mean=[124, 116, 104], std=[58, 57, 57], to_rgb=True, num_classes=2),
    backbone=dict(type='L2ViT', arch='pico', out_indices=(3, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=2, in_channels={channels}, topk=(1, ),
              loss=dict(type='CrossEntropyLoss')))
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset', data_root='{root}',
        pipeline=[dict(type='LoadImageFromFile'), dict(type='Resize', scale=(40, 32)),
                  dict(type='PackInputs')]))
val_dataloader = test_dataloader = train_dataloader
val_evaluator = test_evaluator = dict(type='Accuracy', topk=(1, ))
train_cfg = dict(by_epoch=False, max_iters=2, val_interval=2)
val_cfg = test_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=2),
    visualization=dict(type='VisualizationHook'))
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
"""


def test_classifier_trains_and_is_scored(train, test_tool, pico_channels, tmp_path, capsys):
    pytest.importorskip('mmpretrain')
    rng = np.random.default_rng(0)
    for name in ('cat', 'dog'):
        (tmp_path / 'data' / name).mkdir(parents=True)
        for index in range(2):
            image = Image.fromarray(rng.integers(0, 256, (32, 40, 3), dtype=np.uint8))
            image.save(tmp_path / 'data' / name / f'{name}{index}.png')
    config = tmp_path / 'classifier.py'
    config.write_text(CLASSIFIER.format(root=tmp_path / 'data', channels=pico_channels[3]))
    work_dir = tmp_path / 'work'

    train([str(config), '--work-dir', str(work_dir)])
    out, show_dir = tmp_path / 'out.pkl', tmp_path / 'show'
    capsys.readouterr()
    test_tool(
        [
            str(config),
            str(work_dir / 'iter_2.pth'),
            '--work-dir',
            str(work_dir),
            '--out',
            str(out),
            '--show-dir',
            str(show_dir),
        ]
    )
    accuracy = float(
        re.search(r'^top-1 accuracy \(%\) (\d+\.\d\d)$', capsys.readouterr().out, re.M)[1]
    )
    # The dumped predictions are those that were scored.
    predictions = pickle.loads(out.read_bytes())
    right = [int(p['pred_label']) == int(p['gt_label']) for p in predictions]
    assert len(right) == 4 and accuracy == 100 * np.mean(right)
    assert len(list(show_dir.iterdir())) == 4
