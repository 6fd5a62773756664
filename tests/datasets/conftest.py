from pathlib import Path

import pytest

from l2vit_mm.datasets.shapes import generate


@pytest.fixture(scope='session')
def root(tmp_path_factory) -> Path:
    """A small data set; not to be changed."""
    root = tmp_path_factory.mktemp('data') / 'shapes'
    assert generate(root, num_train=60, num_val=25, seed=3)
    return root
