"""A mistake on the command line ends in one line that names it, and exit status 2."""

import shutil
import subprocess
import sys

import pytest
import torch

from l2vit_mm.apis import errors
from l2vit_mm.backbones import FLattenPVTv2

DETECTOR = 'configs/mask_rcnn_l2vit_t_coco.py'
SEGMENTER = 'configs/upernet_l2vit_t_ade20k.py'


@pytest.fixture
def error_of(repo, monkeypatch, tmp_path, capsys):
    """Runs a tool's main, from the repository, and returns its one line on stderr."""
    monkeypatch.chdir(repo)

    def run(main, *argv):
        with pytest.raises(SystemExit) as exit_:
            errors.run(
                lambda: main(
                    [*argv, '--work-dir', str(tmp_path / 'work')]
                    if '--work-dir' not in argv
                    else argv
                )
            )
        assert exit_.value.code == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        # Nothing was left behind.
        assert not (tmp_path / 'work').exists()
        return lines[0]

    return run


@pytest.mark.train
def test_exit_status_of_the_command(repo):
    process = subprocess.run(
        [sys.executable, 'tools/train.py', 'configs/none.py'],
        cwd=repo,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 2
    assert (
        process.stderr == "train.py: error: config: configs/none.py doesn't exist; "
        'see docs/train.md\n'
    )


def test_missing_base_config(train, error_of, tmp_path):
    config = tmp_path / 'child.py'
    config.write_text("_base_ = 'parent.py'")
    assert str(tmp_path / 'parent.py') in error_of(train, str(config))


def test_config_that_does_not_parse(train, error_of, tmp_path):
    config = tmp_path / 'broken.py'
    config.write_text('model = dict(')
    assert str(config) in error_of(train, str(config))


def test_toolbox_that_is_not_installed(train, error_of, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text("default_scope = 'mmnothing'")
    assert "default_scope='mmnothing'" in error_of(train, str(config))


@pytest.mark.parametrize(
    'option, hint',
    [
        ('train_dataloder.batch_size=1', "did you mean 'train_dataloader'?"),
        ('train_dataloader.batch_size', 'KEY=VALUE'),
        ('model.neck.in_channels=[1,2', 'Imbalanced brackets'),
        ('param_scheduler.7.end=1', 'Index 7 exceeds the length'),
        ('model.type.name=1', 'type'),
    ],
)
def test_cfg_options(train, error_of, option, hint):
    line = error_of(train, DETECTOR, '--cfg-options', option)
    assert '--cfg-options' in line and hint in line


def test_missing_data_root(train, test_tool, error_of, tmp_path):
    for main, argv, phase in ((train, (), 'train'), (test_tool, ('x.pth',), 'test')):
        root = tmp_path / 'nowhere'
        line = error_of(
            main, DETECTOR, *argv, '--cfg-options', f'{phase}_dataloader.dataset.data_root={root}'
        )
        assert f"error: {phase}_dataloader: {root} doesn't exist; see docs/train.md" in line


@pytest.mark.parametrize('missing', ['annotations/instances_train2017.json', 'train2017'])
def test_missing_part_of_coco(train, error_of, tmp_path, missing):
    root = tmp_path / 'coco'
    (root / 'annotations').mkdir(parents=True)
    for name in ('annotations/instances_train2017.json', 'train2017'):
        if name != missing:
            (root / name).touch()
    line = error_of(train, DETECTOR, '--cfg-options', f'train_dataloader.dataset.data_root={root}')
    assert str(root / missing) in line


def test_missing_folder_of_a_wrapped_dataset(train, error_of, tmp_path, repo):
    config = tmp_path / 'repeated.py'
    config.write_text(f"""
_base_ = '{repo / SEGMENTER}'
train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=[
    dict(type='RepeatDataset', times=2, dataset=dict(
        type='ADE20KDataset', data_root='{tmp_path}', data_prefix=dict(img_path='pictures')))]))
""")
    assert str(tmp_path / 'pictures') in error_of(train, str(config))


def test_missing_annotations_of_the_evaluator(test_tool, error_of, coco_files, tmp_path):
    line = error_of(
        test_tool,
        DETECTOR,
        'x.pth',
        '--cfg-options',
        *coco_files,
        f'test_evaluator.ann_file={tmp_path}/val.json',
    )
    assert f'test_evaluator: {tmp_path}/val.json' in line


def test_missing_checkpoint(train, test_tool, error_of, coco_files, tmp_path):
    checkpoint = str(tmp_path / 'none.pth')
    options = ['--cfg-options', *coco_files]
    init_cfg = 'model.backbone.init_cfg'
    for line in (
        error_of(test_tool, DETECTOR, checkpoint, *options),
        error_of(train, DETECTOR, '--resume', checkpoint, *options),
        error_of(train, DETECTOR, *options, f'load_from={checkpoint}'),
        error_of(
            train,
            DETECTOR,
            *options,
            f'{init_cfg}.type=Pretrained',
            f'{init_cfg}.checkpoint={checkpoint}',
        ),
    ):
        assert f"checkpoint: {checkpoint} doesn't exist" in line


def test_work_dir_that_cannot_be_made(train, error_of, coco_files, tmp_path):
    (tmp_path / 'file').touch()
    work_dir = str(tmp_path / 'file' / 'work')
    line = error_of(train, DETECTOR, '--work-dir', work_dir, '--cfg-options', *coco_files)
    assert 'work-dir' in line and work_dir in line


def test_options_that_the_config_cannot_follow(train, test_tool, error_of, tmp_path):
    bare = tmp_path / 'bare.py'
    bare.write_text(
        "default_scope = 'mmdet'\noptim_wrapper = dict(type='MyWrapper')\n"
        "test_evaluator = dict(type='CocoMetric')"
    )
    assert 'base_batch_size' in error_of(train, str(bare), '--auto-scale-lr')
    assert "'MyWrapper'" in error_of(train, str(bare), '--amp')
    assert 'default_hooks' in error_of(test_tool, str(bare), 'x.pth', '--show-dir', 'show')
    assert "'out.json'" in error_of(test_tool, str(bare), 'x.pth', '--out', 'out.json')
    assert "'out.pkl'" in error_of(test_tool, SEGMENTER, 'x.pth', '--out', 'out.pkl')


def last_error_of(main, argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        errors.run(lambda: main(argv))
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.train
def test_broken_checkpoint(test_tool, repo, tmp_path, capsys, ade_files, small_upernet):
    broken = tmp_path / 'broken.pth'
    broken.write_bytes(b'not a checkpoint')
    argv = [
        str(repo / SEGMENTER),
        str(broken),
        '--work-dir',
        str(tmp_path / 'work'),
        '--cfg-options',
        *ade_files,
        *small_upernet,
    ]
    assert str(broken) in last_error_of(test_tool, argv, capsys)


@pytest.mark.train
def test_checkpoint_of_something_else(
    train, test_tool, repo, tmp_path, capsys, ade_files, small_upernet
):
    other, options = (
        tmp_path / 'other.pth',
        ['--work-dir', str(tmp_path / 'work'), '--cfg-options', *ade_files, *small_upernet],
    )
    torch.save(dict(state_dict=FLattenPVTv2('b0').state_dict()), other)
    line = last_error_of(test_tool, [str(repo / SEGMENTER), str(other), *options], capsys)
    assert 'does not fit EncoderDecoder: its backbone looks like flatten-pvt-v2-b0; ' in line
    options += [
        'model.backbone.init_cfg.type=Pretrained',
        f'model.backbone.init_cfg.checkpoint={other}',
    ]
    line = last_error_of(train, [str(repo / SEGMENTER), *options], capsys)
    assert 'does not fit L2ViT: it looks like flatten-pvt-v2-b0; ' in line


@pytest.mark.train
def test_missing_label_map_that_a_worker_finds(
    train, repo, tmp_path, capsys, shapes, ade_files, small_upernet
):
    data = tmp_path / 'data'
    shutil.copytree(shapes, data)
    for label_map in (data / 'annotations' / 'training').iterdir():
        label_map.unlink()
    argv = [
        str(repo / SEGMENTER),
        '--work-dir',
        str(tmp_path / 'work'),
        '--cfg-options',
        *ade_files,
        *small_upernet,
        f'train_dataloader.dataset.data_root={data}',
        'train_dataloader.num_workers=1',
    ]
    line = last_error_of(train, argv, capsys)
    assert f'{data}/annotations/training/' in line and 'docs/train.md' in line
