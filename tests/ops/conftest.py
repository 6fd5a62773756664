import os

import pytest
import torch
from op_testing import NO_GPU

from l2vit_mm.ops import extension


@pytest.fixture(
    scope='session',
    params=[
        'cpu',
        pytest.param(
            'cuda', marks=[pytest.mark.cuda, pytest.mark.skipif(NO_GPU, reason='no CUDA device')]
        ),
    ],
)
def device(request):
    return request.param


@pytest.fixture(scope='session')
def compiled(device):
    """The backend, for tests of the compiled operators only."""
    missing = extension.missing_for(torch.device(device))
    if missing:
        pytest.skip(missing)
    return 'compiled'


@pytest.fixture(scope='session', params=['compiled', 'reference'])
def backend(request, device):
    return request.getfixturevalue('compiled') if request.param == 'compiled' else request.param


@pytest.fixture(autouse=True)
def fresh_seed():
    """Different inputs in every run. A failed test prints the seed that reproduces it."""
    seed = int(os.environ.get('L2VIT_MM_TEST_SEED') or torch.seed() % 2**32)
    torch.manual_seed(seed)
    print(f'L2VIT_MM_TEST_SEED={seed}')
