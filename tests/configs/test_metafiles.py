"""model-index.yml agrees with the configs, and README's model zoo with it."""

from functools import cache
from pathlib import Path
from urllib.parse import urlparse

import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from modelindex.load_model_index import load as load_index  # as mmpretrain reads it

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.registry import find_model, list_models

ROOT = Path(__file__).resolve().parents[2]
METAFILES = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
CONTENTS = {name: yaml.safe_load((ROOT / name).read_text()) for name in METAFILES}
ENTRIES = [entry for content in CONTENTS.values() for entry in content['Models']]
PUBLISHED = [entry for entry in ENTRIES if 'Weights' in entry]
HEADER = '| model | parameters (M) | ImageNet-1K top-1 | published weights | config |'
ARCHS = {(cls.__name__, arch): name for name in list_models() for cls, arch in [find_model(name)]}
# Ends the name of a file that comes from ImageNet-22K, where its config trains without.
FROM_22K = '_in22k-pre'


def name_of(entry):
    return entry['Name']


@cache
def config(path):
    return Config.fromfile(str(ROOT / path))


@cache
def parameters(path):
    cfg = config(path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.device('meta'):
        return sum(value.numel() for value in MODELS.build(cfg.model).parameters())


def row(entry):
    """A published file's line of README's table."""
    backbone = config(entry['Config']).model.backbone
    model = f'`{ARCHS[backbone.type, backbone.arch]}`'
    if 'ImageNet-22k' in entry['Metadata']['Training Data']:
        model += ', from ImageNet-22K'
    (result,) = entry['Results']
    url = urlparse(entry['Weights'])
    file = url.path.split('/')[-1] or url.netloc  # cloud storage doesn't name the file
    return (
        f'| {model} | {entry["Metadata"]["Parameters"] / 1e6:.1f} '
        f'| {result["Metrics"]["Top 1 Accuracy"]} | [{file}]({entry["Weights"]}) '
        f'| [{Path(entry["Config"]).stem}]({entry["Config"]}) |'
    )


def test_the_index_lists_every_metafile():
    assert sorted(METAFILES) == sorted(
        str(path.relative_to(ROOT)) for path in ROOT.glob('configs/metafile*.yml')
    )


def test_the_toolboxes_read_the_index():
    index = load_index(str(ROOT / 'model-index.yml'))
    index.build_models_with_collections()
    assert [model.name for model in index.models] == [entry['Name'] for entry in ENTRIES]


def test_names_are_unique():
    names = [entry['Name'].lower() for entry in ENTRIES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize('content', CONTENTS.values(), ids=CONTENTS)
def test_collections(content):
    collections = [collection['Name'] for collection in content['Collections']]
    assert {entry['In Collection'] for entry in content['Models']} == set(collections)
    for collection in content['Collections']:
        assert (ROOT / collection['README']).is_file()


@pytest.mark.parametrize('entry', ENTRIES, ids=name_of)
def test_entry_is_named_after_its_config(entry):
    assert (ROOT / entry['Config']).is_file()
    assert entry['Config'] == f'configs/{entry["Name"].removesuffix(FROM_22K)}.py'
    if entry['Name'].endswith(FROM_22K):
        assert entry['Metadata']['Training Data'] == ['ImageNet-22k', 'ImageNet-1k']


@pytest.mark.parametrize('entry', ENTRIES, ids=name_of)
def test_parameters_are_those_of_the_config(entry):
    assert entry['Metadata']['Parameters'] == parameters(entry['Config'])


@pytest.mark.parametrize('entry', ENTRIES, ids=name_of)
def test_results_are_of_the_task_of_the_config(entry):
    measured = {
        'mmpretrain': {('Image Classification', 'ImageNet-1k', 'Top 1 Accuracy')},
        'mmdet': {
            ('Object Detection', 'COCO', 'box AP'),
            ('Instance Segmentation', 'COCO', 'mask AP'),
        },
        'mmseg': {('Semantic Segmentation', 'ADE20K', 'mIoU')},
    }[config(entry['Config']).default_scope]
    assert {
        (result['Task'], result['Dataset'], *result['Metrics']) for result in entry['Results']
    } == measured


@pytest.mark.parametrize('entry', PUBLISHED, ids=name_of)
def test_weights_are_the_published_ones(entry):
    assert config(entry['Config']).default_scope == 'mmpretrain'
    assert entry['Weights'] == entry['Converted From']['Weights']
    assert urlparse(entry['Weights']).scheme == 'https'


def test_readme_has_a_row_for_each_published_file():
    lines = (ROOT / 'README.md').read_text().splitlines()
    assert lines.count(HEADER) == 1
    start = lines.index(HEADER) + 2
    end = next(
        (index for index, line in enumerate(lines) if index >= start and not line.startswith('|')),
        len(lines),
    )
    assert lines[start:end] == [row(entry) for entry in PUBLISHED]
