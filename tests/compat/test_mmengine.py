"""Loading that can't run code, by every way in which mmengine loads a checkpoint."""

import contextlib
import os
import pickle
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch

import l2vit_mm  # noqa: F401
from l2vit_mm.checkpoint import safe_load

pytest.importorskip('mmengine')

import mmengine.runner.checkpoint as mmengine_checkpoint  # noqa: E402
from mmengine.logging import HistoryBuffer  # noqa: E402
from mmengine.model import BaseModel  # noqa: E402
from mmengine.runner import Runner, load_checkpoint  # noqa: E402

multiarray = np.core.multiarray if np.__version__ < '2' else np._core.multiarray


class Toy(BaseModel):
    def __init__(self, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, *inputs, mode='tensor'):
        return dict(loss=self.layer(torch.stack(inputs)).square().mean())


def make_runner(folder, **options):
    return Runner(
        model=Toy(),
        work_dir=str(folder),
        experiment_name=f'toy{os.urandom(4).hex()}',
        train_dataloader=dict(
            batch_size=2,
            num_workers=0,
            dataset=[torch.ones(2)] * 8,
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='pseudo_collate'),
        ),
        train_cfg=dict(by_epoch=False, max_iters=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False)),
        log_level='ERROR',
        **options,
    )


def by_init_cfg(file, folder):
    Toy(init_cfg=dict(type='Pretrained', checkpoint=file)).init_weights()


def by_load_from(file, folder):
    make_runner(folder, load_from=file).load_or_resume()


def by_resume(file, folder):
    make_runner(folder, load_from=file, resume=True).load_or_resume()


def by_load_checkpoint(file, folder):
    load_checkpoint(Toy(), file)


class Call:
    """Pickled as a call of function with args, and then, if given, of __setstate__ with state."""

    def __init__(self, function, args, *state):
        self.pickled = (function, args, *state)

    def __reduce__(self):
        return self.pickled


def exploits(canary):
    """What writes the file canary when it is unpickled with the name's weakness."""
    code = f'open({canary!r}, "w").close()'
    builtins = Call(getattr, (getattr, '__self__'))
    return dict(
        plain=Call(exec, (code,)),
        system=Call(os.system, (f'touch {canary}',)),
        # allowed by OneDL's list, with weights_only=True: getattr, and torch's function that calls
        # what it is given
        getattr=Call(
            torch._tensor._rebuild_from_type_v2,
            (Call(getattr, (builtins, 'exec')), torch.Tensor, (code,), {}),
        ),
        # in a checkpoint that is a checkpoint otherwise, where the log history is expected
        nested=dict(
            meta=dict(epoch=1, iter=2),
            state_dict=Toy().state_dict(),
            message_hub=dict(log_scalars=dict(loss=Call(exec, (code,)))),
        ),
    )


@pytest.mark.parametrize('way', [by_init_cfg, by_load_from, by_resume, by_load_checkpoint])
@pytest.mark.parametrize('exploit', ['plain', 'system', 'getattr', 'nested'])
def test_crafted_file_is_refused(tmp_path, way, exploit):
    canary, file = tmp_path / 'canary', str(tmp_path / 'crafted.pth')
    torch.save(exploits(str(canary))[exploit], file)
    with pytest.raises(pickle.UnpicklingError) as error:
        way(file, tmp_path)
    assert not canary.exists()
    assert file in str(error.value) and '\n' not in str(error.value)


def test_the_exploits_work(tmp_path):
    """Or the test above shows nothing. (This runs them.)"""
    for name, exploit in exploits(str(tmp_path / 'canary')).items():
        torch.save(exploit, tmp_path / 'crafted.pth')
        with contextlib.suppress(Exception):  # after the code ran
            torch.load(tmp_path / 'crafted.pth', weights_only=False)
        assert (tmp_path / 'canary').exists(), name
        (tmp_path / 'canary').unlink()


def test_the_environment_can_not_switch_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    torch.save(exploits(str(tmp_path / 'canary'))['plain'], tmp_path / 'crafted.pth')
    with pytest.raises(pickle.UnpicklingError):
        by_init_cfg(str(tmp_path / 'crafted.pth'), tmp_path)
    assert not (tmp_path / 'canary').exists()


def test_resume_does_not_run_the_config_text_of_a_checkpoint(tmp_path):
    runner = make_runner(tmp_path)
    runner.train()
    file, canary = tmp_path / 'iter_2.pth', tmp_path / 'canary'
    checkpoint = torch.load(file, weights_only=False)
    checkpoint['meta']['config'] = f'open({str(canary)!r}, "w").close()\n'
    torch.save(checkpoint, file)
    by_resume(str(file), tmp_path)
    assert not canary.exists()


def test_a_statistic_of_the_file_is_not_taken_over(tmp_path):
    before = dict(HistoryBuffer._statistics_methods)
    state = dict(
        statistics_methods=dict(mean=slice, evil=slice),
        max_length=9,
        min=slice,
        _log_history=np.ones(2),
        _count_history=np.ones(2),
    )
    torch.save(dict(history=Call(HistoryBuffer, (), state)), tmp_path / 'crafted.pth')
    history = mmengine_checkpoint._load_checkpoint(str(tmp_path / 'crafted.pth'))['history']
    assert HistoryBuffer._statistics_methods == before
    assert history.statistics('mean') == 1 and history.min() == 1


def test_array_of_forged_objects_is_an_array_of_numbers(tmp_path):
    """Flags 63 say that the eight bytes are a pointer to a Python object."""
    forged = Call(np.dtype, ('f8', False, True), (3, '<', None, None, None, -1, -1, 63))
    array = Call(
        multiarray._reconstruct,
        (np.ndarray, (0,), b'b'),
        (1, (1,), forged, False, np.float64(7).tobytes()),
    )
    scalar = Call(multiarray.scalar, (forged, np.float64(8).tobytes()))
    torch.save(dict(array=array, scalar=scalar), tmp_path / 'crafted.pth')
    loaded = mmengine_checkpoint._load_checkpoint(str(tmp_path / 'crafted.pth'))
    assert not loaded['array'].dtype.hasobject
    assert loaded['array'].tolist() == [7] and loaded['scalar'] == 8
    torch.save(np.array([None]), tmp_path / 'crafted.pth')
    with pytest.raises(pickle.UnpicklingError, match="NumPy array of type 'O8'"):
        mmengine_checkpoint._load_checkpoint(str(tmp_path / 'crafted.pth'))


def test_own_checkpoint_resumes(tmp_path):
    first = make_runner(tmp_path)
    first.message_hub.update_info('palette', np.arange(6, dtype='>i2').reshape(2, 3).T)
    first.message_hub.update_info('best', np.float32(0.5))
    first.message_hub.log_scalars['nothing_yet'] = HistoryBuffer()
    first.message_hub._resumed_keys['nothing_yet'] = True
    first.train()
    assert first.message_hub.get_scalar('train/loss').current() > 0

    second = make_runner(tmp_path, load_from=str(tmp_path / 'iter_2.pth'), resume=True)
    second.load_or_resume()
    assert second.iter == 2
    for name, history in first.message_hub.log_scalars.items():
        resumed = second.message_hub.log_scalars[name]
        for mine, theirs in zip(resumed.data, history.data):
            assert type(mine) is np.ndarray and np.array_equal(mine, theirs)
    palette = second.message_hub.get_info('palette')
    assert palette.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert second.message_hub.get_info('best') == np.float32(0.5)
    for name, value in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value)

    # what was loaded is saved again in the same types
    torch.save(second.message_hub.state_dict(), tmp_path / 'again.pth')
    again = torch.load(tmp_path / 'again.pth', weights_only=False)
    assert type(again['runtime_info']['palette']) is np.ndarray


def test_numpy_1_and_2_names_are_known(tmp_path):
    """A file written under the other NumPy differs in one name."""
    old, new = b'numpy.core.multiarray', b'numpy._core.multiarray'
    torch.save(
        dict(a=np.arange(3), b=np.float64(2)),
        tmp_path / 'x.pth',
        _use_new_zipfile_serialization=False,
    )
    data = (tmp_path / 'x.pth').read_bytes()
    assert old in data or new in data
    for theirs, ours in ((old, new), (new, old)):
        (tmp_path / 'x.pth').write_bytes(data.replace(theirs, ours))
        loaded = mmengine_checkpoint._load_checkpoint(str(tmp_path / 'x.pth'))
        assert loaded['a'].tolist() == [0, 1, 2] and loaded['b'] == 2


def test_a_class_can_be_allowed(tmp_path):
    file = str(tmp_path / 'x.pth')
    torch.save(dict(path=PurePosixPath('a/b')), file)
    name = f'{PurePosixPath.__module__}.PurePosixPath'
    with pytest.raises(
        pickle.UnpicklingError,
        match=rf'{name}, .* torch.serialization.add_safe_globals\(\[{name}\]\)',
    ):
        mmengine_checkpoint._load_checkpoint(file)
    with torch.serialization.safe_globals([PurePosixPath]):
        assert mmengine_checkpoint._load_checkpoint(file)['path'] == PurePosixPath('a/b')


def test_what_the_user_allowed_stays_and_does_not_open_a_hole(tmp_path):
    before = torch.serialization.get_safe_globals()
    canary = tmp_path / 'canary'
    torch.save(exploits(str(canary))['getattr'], tmp_path / 'crafted.pth')
    torch.serialization.add_safe_globals([getattr, np.dtype, HistoryBuffer])  # a common workaround
    try:
        with pytest.raises(pickle.UnpicklingError):
            mmengine_checkpoint._load_checkpoint(str(tmp_path / 'crafted.pth'))
        assert {getattr, np.dtype, HistoryBuffer} <= set(torch.serialization.get_safe_globals())
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
    assert not canary.exists()


@pytest.mark.parametrize(
    'content, reason',
    [
        (b'<!DOCTYPE html><title>404</title>', 'not a checkpoint, it starts with .*DOCTYPE'),
        (b'', 'not a checkpoint'),
        (None, 'damaged or incomplete'),
    ],
)
@pytest.mark.parametrize('zipped', [True, False])
def test_broken_file(tmp_path, content, reason, zipped):
    file = tmp_path / 'broken.pth'
    if content is None:
        torch.save(dict(a=torch.ones(999)), file, _use_new_zipfile_serialization=zipped)
        content = file.read_bytes()[:-1000]
    file.write_bytes(content)
    with pytest.raises(pickle.UnpicklingError, match=reason) as error:
        mmengine_checkpoint._load_checkpoint(str(file))
    assert str(file) in str(error.value) and '\n' not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere.pth'):
        mmengine_checkpoint._load_checkpoint(str(tmp_path / 'nowhere.pth'))


def test_downloads(tmp_path):
    canary = tmp_path / 'canary'
    torch.save(exploits(str(canary))['plain'], tmp_path / 'crafted.pth')
    torch.save(dict(a=np.arange(3)), tmp_path / 'honest.pth')
    load = safe_load.load_url
    loaded = load(
        f'file://{tmp_path}/honest.pth', model_dir=str(tmp_path / 'cache'), progress=False
    )
    assert loaded['a'].tolist() == [0, 1, 2]
    with pytest.raises(pickle.UnpicklingError, match='cache/crafted.pth.*exec'):
        load(f'file://{tmp_path}/crafted.pth', model_dir=str(tmp_path / 'cache'), progress=False)
    assert not canary.exists()


def test_every_scheme_of_mmengine_is_ours():
    for scheme, loader in mmengine_checkpoint.CheckpointLoader._schemes.items():
        assert loader.__module__ == 'l2vit_mm.compat.mmengine', scheme


def test_models_by_name(tmp_path, monkeypatch):
    """torchvision's and OpenMMLab's, by addresses that mmengine knows."""
    torch.save(
        dict(state_dict={'backbone.a': torch.ones(2), 'head.b': torch.ones(1)}),
        tmp_path / 'honest.pth',
    )
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    url = f'file://{tmp_path}/honest.pth'
    for name in ('get_torchvision_models', 'get_external_models', 'get_mmcls_models'):
        monkeypatch.setattr(
            f'l2vit_mm.compat.mmengine.{name}', lambda: dict(net=url, local='honest.pth')
        )
    for address in ('torchvision://net', 'modelzoo://net', 'openmmlab://net', 'open-mmlab://local'):
        assert mmengine_checkpoint._load_checkpoint(address)['state_dict']['backbone.a'].sum() == 2
    loaded = mmengine_checkpoint._load_checkpoint('mmcls://net')
    assert list(loaded['state_dict']) == ['a']
    with pytest.raises(ValueError, match="must be a file or a URL, got 'pavi://net'"):
        mmengine_checkpoint._load_checkpoint('pavi://net')
