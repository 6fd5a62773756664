"""Makes golden figures from the code of a published repository, and writes them into its file here.

    pip install timm==0.9.16
    git clone https://github.com/LeapLabTHU/FLatten-Transformer ../FLatten-Transformer
    PYTHONPATH=../FLatten-Transformer python -m tests.golden.make_golden flatten_pvt_t

The published model is built, its weights are filled by the recipe of ``tests.golden``, and it runs
in float64 on the CPU. CONTRIBUTING.md says how to add an entry to ``PUBLISHED``.
"""

import argparse
import importlib
import json
import re
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from tests import golden

SAMPLES = 48  # values kept of every output


@dataclass(frozen=True)
class Published:
    """How a published model is built and run.

    Attributes:
        file: Registered name of our backbone, the stem of the JSON file.
        backbone: Arguments that make ours the same model.
        checkout: Folder that must be on PYTHONPATH, for the error message.
        build: 'module:callable' in the checkout.
        kwargs: Arguments of that callable. Those that the published configs set are given, also
            where they equal a default.
        stages: Modules whose outputs are 'stage0', 'stage1', ...; empty where the model itself
            returns them as a tuple.
        logits: Whether the model returns logits.
        inputs: Shapes (B, 3, H, W) of the images, one run per shape.
    """

    file: str
    backbone: dict
    checkout: str
    build: str
    kwargs: dict = field(default_factory=dict)
    stages: tuple[str, ...] = ()
    logits: bool = True
    inputs: tuple[tuple[int, int, int, int], ...] = ((1, 3, 224, 224),)


FLATTEN = 'FLatten-Transformer of https://github.com/LeapLabTHU/FLatten-Transformer'
L2VIT = 'L2ViT/{} of https://github.com/ChuanyangZheng/L2ViT'
PVT_STAGES = tuple(f'block{i}.1' for i in (1, 2, 3, 4))
PUBLISHED = {
    'l2vit_t_det': Published(
        'l2vit',
        {'arch': 'tiny'},
        L2VIT.format('object_detection'),
        'mmdet.models.backbones.l2vit:L2ViT',
        {'block_type': 'mix_local_enhanced_vit', 'conv_stem': True},
        logits=False,
        inputs=((1, 3, 96, 128), (2, 3, 100, 130), (1, 3, 224, 224)),
    ),
    'l2vit_t_cls': Published(
        'l2vit',
        {'arch': 'tiny', 'out_indices': [3]},
        L2VIT.format('classification'),
        'models.l2vit:L2ViT_Tiny',
    ),
    'flatten_pvt_t': Published(
        'flatten-pvt',
        {'arch': 'tiny'},
        FLATTEN,
        'models.flatten_pvt:flatten_pvt_tiny',
        {'la_sr_ratios': '1111', 'attn_type': 'LLLL'},
        PVT_STAGES,
    ),
    'flatten_pvt_t_sr8421': Published(
        'flatten-pvt',
        {'arch': 'tiny', 'sr_ratios': [8, 4, 2, 1]},
        FLATTEN,
        'models.flatten_pvt:flatten_pvt_tiny',
        {'la_sr_ratios': '8421', 'attn_type': 'LLLL'},
        PVT_STAGES,
    ),
    'flatten_pvt_v2_b0': Published(
        'flatten-pvt-v2',
        {'arch': 'b0'},
        FLATTEN,
        'models.flatten_pvt_v2:flatten_pvt_v2_b0',
        {'la_sr_ratios': '1111', 'attn_type': 'LLLL'},
        ('norm1', 'norm2', 'norm3', 'norm4'),
    ),
    'flatten_swin_t': Published(
        'flatten-swin',
        {'arch': 'tiny'},
        FLATTEN,
        'models.flatten_swin:FLattenSwinTransformer',
        {'window_size': 56, 'attn_type': 'LLSS'},
        ('layers.0.blocks.1', 'layers.1.blocks.1', 'layers.2.blocks.5', 'layers.3.blocks.1'),
    ),
    'flatten_cswin_t': Published(
        'flatten-cswin',
        {'arch': 'tiny'},
        FLATTEN,
        'models.flatten_cswin:FLatten_CSWin_64_24181_tiny_224',
        {'attn_type': 'LLSS'},
        ('stage1.1', 'stage2.3', 'stage3.17', 'stage4.0'),
    ),
}


def stub_mmdet2() -> None:
    """Stands in for what L2ViT's detection backbone imports of MMDetection 2 and mmcv 1.

    Its initialization does nothing: every weight is filled afterwards.
    """
    folders = [Path(path) / 'mmdet' / 'models' / 'backbones' for path in sys.path]
    modules = {
        'mmdet': {},
        'mmdet.builder': {'BACKBONES': SimpleNamespace(register_module=lambda: lambda cls: cls)},
        'mmdet.utils': {'get_root_logger': None},
        'mmdet.models': {},
        'mmdet.models.backbones': {
            '__path__': [str(folder) for folder in folders if (folder / 'l2vit.py').exists()]
        },
        'mmcv': {},
        'mmcv.cnn': {'constant_init': lambda *args: None, 'kaiming_init': lambda *args: None},
        'mmcv_custom': {'load_checkpoint': None},
    }
    for name, attributes in modules.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update({'__path__': [], **attributes})


def build(published: Published) -> nn.Module:
    """Builds the published model, without its stochastic depth.

    Raises:
        SystemExit: If the checkout can't be imported.
    """
    module, _, name = published.build.partition(':')
    if module.startswith('mmdet.'):
        stub_mmdet2()
    try:
        function = getattr(importlib.import_module(module), name)
    except ImportError as error:
        sys.exit(f'PYTHONPATH must have {published.checkout}, got an error: {error}')
    return function(**published.kwargs, drop_path_rate=0.0)


def sample(out: Tensor, key: str) -> dict:
    """Describes an output by shape, mean, std, and its values at indices drawn from a key."""
    flat = out.detach().double().flatten()
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(f'index:{key}'.encode())))
    index = rng.integers(0, flat.numel(), SAMPLES).tolist()
    return {
        'shape': list(out.shape),
        'mean': flat.mean().item(),
        'std': flat.std(correction=0).item(),
        'index': index,
        'value': flat[index].tolist(),
    }


@torch.no_grad()
def describe(name: str, published: Published, model: nn.Module) -> dict:
    """Fills the weights of a published model, runs it and returns its golden entry.

    Args:
        name: Name of the entry; the images and the kept indices are drawn from it.
        published: How the model is run.
        model: The published model.
    """
    keys = {key: list(value.shape) for key, value in model.state_dict().items()}
    entry = {
        'backbone': published.backbone,
        'params': sum(parameter.numel() for parameter in model.parameters()),
        'keys': keys,
        'runs': [],
    }
    # What is derived from the architecture keeps the model's own values.
    own = {
        key: value
        for key, value in model.state_dict().items()
        if key.rpartition('.')[2] in golden.DERIVED
    }
    model.load_state_dict({**golden.state_dict(entry), **own})
    model.double().eval()

    outputs = {}
    for stage, path in enumerate(published.stages):
        model.get_submodule(path).register_forward_hook(
            lambda module, args, out, key=f'stage{stage}': outputs.update({key: out})
        )
    for shape in published.inputs:
        run = {'input': list(shape), 'image_key': f'{name}:{"x".join(map(str, shape))}'}
        outputs.clear()
        out = model(golden.image(run).double())
        if published.logits:
            outputs['logits'] = out
        else:
            outputs.update({f'stage{stage}': value for stage, value in enumerate(out)})
        run['outputs'] = {key: sample(value, f'{name}:{key}') for key, value in outputs.items()}
        entry['runs'].append(run)
    return entry


def dumps(models: dict) -> str:
    """Formats the entries of a file as JSON, with one line per list of numbers."""

    def one_line(match: re.Match) -> str:
        return re.sub(r'(?<=[\[{]) | (?=[\]}])', '', re.sub(r'\s+', ' ', match[0]))

    text = json.dumps(models, indent=1)
    # Lists of numbers, and the arguments of ours.
    text = re.sub(r'"backbone": \{[^{}]*\}|\[[^\[\]{}]*\]', one_line, text)
    return text + '\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('name', choices=PUBLISHED, help='entry to make, or to make again')
    parser.add_argument(
        '--folder',
        type=Path,
        default=Path(__file__).parent,
        help='where the JSON file is written (default: beside this script)',
    )
    args = parser.parse_args()
    published = PUBLISHED[args.name]
    entry = describe(args.name, published, build(published))
    file = args.folder / f'{published.file}.json'
    models = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(dumps({**models, args.name: entry}))
    print(f'{file}: {args.name}, {entry["params"]} parameters, {len(entry["runs"])} runs')


if __name__ == '__main__':
    main()
