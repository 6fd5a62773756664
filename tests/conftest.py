"""Settings of all tests."""

import os

# Several processes of tests share the processors (pytest -n): each, and each that it starts, has
# one. Set before anything imports torch.
os.environ.setdefault('OMP_NUM_THREADS', '1')
