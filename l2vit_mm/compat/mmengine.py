"""Replaces mmengine's checkpoint loaders by ones that run no code from the file.

They are registered through mmengine's public ``CheckpointLoader``, and so serve ``init_cfg``,
``load_from``, ``resume`` and the functions of the toolboxes. OpenMMLab's mmengine 0.10.7 can't load
its own checkpoints on torch >= 2.6; OneDL's falls back to full unpickling.
"""

import io
import os

import torch
from mmengine.dist import get_dist_info
from mmengine.fileio import get_file_backend
from mmengine.runner import CheckpointLoader
from mmengine.runner.checkpoint import (
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)

from l2vit_mm.checkpoint import safe_load

MapLocation = str | torch.device | None


# mmengine logs the name of a loader without its first 10 letters, "load_from_".


def load_from_local(filename: str, map_location: MapLocation = None) -> dict:
    """Loads a local file."""
    filename = os.path.expanduser(filename)
    if not os.path.isfile(filename):
        raise FileNotFoundError(f'{filename} can not be found.')
    return safe_load.load(filename, map_location=map_location)


def load_from_http(filename: str, map_location: MapLocation = None) -> dict:
    """Loads a file from a URL; the first process downloads it into the folder of torch.hub."""
    rank, world_size = get_dist_info()
    if rank == 0:
        checkpoint = safe_load.load_url(filename, map_location=map_location)
    if world_size > 1:
        torch.distributed.barrier()
        if rank > 0:
            checkpoint = safe_load.load_url(filename, map_location=map_location)
    return checkpoint


def load_from_ceph(filename: str, map_location: MapLocation = None) -> dict:
    """Loads a file from an object store."""
    backend = get_file_backend(filename, backend_args={'backend': 'petrel'})
    return safe_load.load(io.BytesIO(backend.get(filename)), map_location=map_location)


def load_from_torchvision(filename: str, map_location: MapLocation = None) -> dict:
    """Loads one of torchvision's models."""
    return load_from_http(get_torchvision_models()[_model_name(filename)], map_location)


def load_from_openmmlab(filename: str, map_location: MapLocation = None) -> dict:
    """Loads one of OpenMMLab's models, from a URL or from mmengine's folder."""
    name = _model_name(filename)
    url = get_external_models()[get_deprecated_model_names().get(name, name)]
    if '://' in url:
        return load_from_http(url, map_location)
    cache = os.environ.get('XDG_CACHE_HOME', '~/.cache')
    home = os.path.expanduser(os.environ.get('MMENGINE_HOME', os.path.join(cache, 'mmengine')))
    return load_from_local(os.path.join(home, url), map_location)


def load_from_mmcls(filename: str, map_location: MapLocation = None) -> dict:
    """Loads the backbone of one of mmcls's models."""
    checkpoint = load_from_http(get_mmcls_models()[_model_name(filename)], map_location)
    state = checkpoint.get('state_dict', checkpoint)
    return dict(
        state_dict={
            name.removeprefix('backbone.'): value
            for name, value in state.items()
            if name.startswith('backbone.')
        }
    )


def load_from_pavi(filename: str, map_location: MapLocation = None) -> dict:
    """Raises: only machines of OpenMMLab can reach these files."""
    raise ValueError(f'checkpoint must be a file or a URL, got {filename!r}')


def _model_name(filename: str) -> str:
    return filename.split('://', 1)[1]


for _loader, _schemes in (
    (load_from_local, ['']),
    (load_from_http, ['http://', 'https://']),
    (load_from_ceph, [r'(\S+\:)?s3://', r'(\S+\:)?petrel://']),
    (load_from_torchvision, ['modelzoo://', 'torchvision://']),
    (load_from_openmmlab, ['open-mmlab://', 'openmmlab://']),
    (load_from_mmcls, ['mmcls://']),
    (load_from_pavi, ['pavi://']),
):
    CheckpointLoader.register_scheme(_schemes, _loader, force=True)
