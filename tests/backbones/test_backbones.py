"""All registered backbones: the shared checks, the golden values, the tables in the docs."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from l2vit_mm.checkpoint.load import adapt
from l2vit_mm.registry import find_model, list_models, registered_backbones
from tests import golden
from tests.backbones import checks

BACKBONES = registered_backbones()
GOLDEN = [(name, model) for name in BACKBONES for model in golden.load(name)]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
DOCS = Path(__file__).resolve().parents[2] / 'docs'


@pytest.mark.parametrize('name', BACKBONES)
@pytest.mark.parametrize('check', checks.PARAMS)
def test_check(check, name):
    check(BACKBONES[name])


@pytest.mark.parametrize('dtype', TOLERANCE, ids=str)
@pytest.mark.parametrize('name, model', GOLDEN)
def test_published_values(name, model, dtype):
    figures = golden.load(name)[model]
    published = golden.state_dict(figures)
    backbone = BACKBONES[name](**figures['backbone'])
    has_norms = any(backbone.is_output_norm(key) for key in published)
    backbone.load_state_dict(published, strict=True)
    backbone.to(dtype).eval()
    if not has_norms:  # nor have the published maps
        backbone = BACKBONES[name](**figures['backbone'], output_norm=False)
        backbone.load_state_dict(published, strict=True)
        backbone.to(dtype).eval()
    compared = 0
    for run in figures['runs']:
        image = golden.image(run).to(dtype)
        with torch.no_grad():
            maps = backbone(image)
        for key, expected in run['outputs'].items():
            if key == 'logits':
                # A classifier's norm is the last output norm.
                head = BACKBONES[name](**{**figures['backbone'], 'out_indices': (3,)})
                head.load_state_dict(published, strict=True)
                with torch.no_grad():
                    (features,) = head.to(dtype).eval()(image)
                out = F.linear(
                    features.mean((2, 3)),
                    published['head.weight'].to(dtype),
                    published['head.bias'].to(dtype),
                )
            else:
                out = maps[int(key.removeprefix('stage'))]
                if len(expected['shape']) == 3:  # tokens
                    out = out.flatten(2).transpose(1, 2)
            assert golden.error(out, expected) < TOLERANCE[dtype], key
            compared += 1
    assert compared


def test_list_of_models():
    names = list_models()
    assert {'l2vit-tiny', 'flatten-pvt-v2-b5', 'flatten-swin-base-384', 'flatten-deit-base'} < {
        *names
    }
    assert len(names) == len(set(names)) == sum(len(cls.arch_zoo) for cls in BACKBONES.values())
    for name in names:
        cls, arch = find_model(name)
        assert arch in cls.arch_zoo
    with pytest.raises(ValueError, match="name must be one of .*l2vit-tiny.*, got 'tiny'"):
        find_model('tiny')


def test_table_of_the_docs():
    """docs/backbones.md has each class, each arch, its parameters and strides."""
    rows = dict(re.findall(r'^\| `(\w+)` \| (.*) \|$', (DOCS / 'backbones.md').read_text(), re.M))
    for cls in BACKBONES.values():
        for arch in cls.arch_zoo:
            with torch.device('meta'):
                model = cls(arch)
            millions = sum(p.numel() for p in model.parameters()) / 1e6
            described = re.search(rf'`{arch}`(?: and `[\w-]+`)? ([\d.]+)', rows[cls.__name__])
            assert float(described[1]) == round(millions, 1), (cls.__name__, arch)
        strides = ', '.join(map(str, model.out_strides))
        assert re.search(rf'strides? {strides}\b', rows[cls.__name__]), cls.__name__


def test_table_of_the_readme():
    rows = dict(
        re.findall(r'^\| `(\w+)` \| (.*?) \|', (DOCS.parent / 'README.md').read_text(), re.M)
    )
    assert rows.keys() == {cls.__name__ for cls in BACKBONES.values()}
    for cls in BACKBONES.values():
        row = rows[cls.__name__]
        for arch in cls.arch_zoo:
            assert f'`{arch}`' in row or re.fullmatch(r'`b0` to `b5`', row) or arch == 'pico', arch


def _ddp_steps(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', rank=rank, world_size=2, init_method=f'file://{file}')
    for cls in registered_backbones().values():
        with torch.device('meta'):
            count = cls(cls.test_arch).num_stages
        for index in range(count):
            model = DistributedDataParallel(
                checks.make(cls, out_indices=(index,)), find_unused_parameters=False
            )
            for _ in range(2):  # DDP complains of the first step in the second one
                sum(out.square().mean() for out in model(torch.randn(2, 3, 40, 48))).backward()
    dist.destroy_process_group()


@pytest.mark.train
def test_ddp_without_unused_parameters(tmp_path):
    mp.start_processes(_ddp_steps, (str(tmp_path / 'group'),), nprocs=2, start_method='spawn')


def test_a_name_is_registered_once():
    from l2vit_mm.backbones import L2ViT, register_backbone

    with pytest.raises(ValueError, match="name must be a new one, got 'l2vit'.*L2ViT"):
        register_backbone('l2vit', test_arch='pico')(type('Other', (L2ViT,), {}))


def test_the_base_is_abstract():
    from l2vit_mm.backbones import BaseBackbone

    with pytest.raises(TypeError, match='abstract class BaseBackbone'):
        BaseBackbone(
            in_channels=3, channels=(8,), strides=(4,), stem=torch.nn.Identity(), stages=[]
        )


def test_a_larger_arch_is_no_stage_that_is_not_built():
    cls = BACKBONES['l2vit']
    small = cls(dict(channels=(8, 16), depths=(1, 1), num_heads=(1, 1)), out_indices=(0,))
    large = cls(dict(channels=(8, 16, 32), depths=(1, 1, 1), num_heads=(1, 1, 1)))
    _, report = adapt(small, large.state_dict())
    assert any(name.startswith('stages.2.') for name in report.unexpected)
    assert not any(name.startswith('stages.1.') for name in report.unexpected)
