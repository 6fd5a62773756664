"""Loading the compiled operators: which ones run, and what happens without them."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from op_testing import needs_extension, needs_gpu

import l2vit_mm
from l2vit_mm.ops import (
    extension,
    focused_feature_map,
    linear_attention,
    linear_attention_qkvpacked,
)

HERE = Path(__file__).parent
BUILD = os.environ.get('L2VIT_MM_BUILD', 'auto')

# Prints the top-level modules that l2vit_mm.ops adds to those of torch.
IMPORT = """
import sys, types
import torch.utils.flop_counter
import torch._subclasses.fake_tensor
before = {name.split('.')[0] for name in sys.modules} | sys.stdlib_module_names
package = sys.modules['l2vit_mm'] = types.ModuleType('l2vit_mm')
package.__path__ = sys.argv[1:]
import l2vit_mm.ops
print(*{name.split('.')[0] for name in sys.modules} - before - {'l2vit_mm'})
"""


@pytest.mark.skipif(BUILD == 'none', reason='L2VIT_MM_BUILD=none')
def test_extension_is_loaded():
    """A build that failed silently must fail here: its tests would be skipped."""
    assert extension.load_error() is None


@needs_gpu
@pytest.mark.skipif(BUILD in ('none', 'cpu'), reason=f'L2VIT_MM_BUILD={BUILD}')
def test_extension_has_cuda_kernels():
    assert extension.missing_for(torch.device('cuda')) is None


@needs_extension
def test_build_info():
    info = extension.build_info()
    assert info['cpu'] in ('plain', 'avx2', 'avx512')
    assert info['cpu'] == os.environ.get('L2VIT_MM_CPU', info['cpu'])
    assert info['torch'].split('.')[:2] == torch.__version__.split('.')[:2]
    assert 'compiler' in info


def test_imports_torch_only():
    """On its own, whatever the package around it imports."""
    result = run('-c', IMPORT, str(Path(l2vit_mm.__file__).parent))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_an_old_torch_is_refused():
    for version in ('2.7.0', '2.7.0a0+ab', '2.14.1+cu130', '3.0'):
        extension.check_torch(version)
    with pytest.raises(ImportError, match='torch must be 2.7 or later for l2vit_mm, got 2.6.1'):
        extension.check_torch('2.6.1+cpu')


@needs_extension
def test_a_library_of_other_sources_is_not_used():
    """As after an update without another build."""
    assert extension.lacking(torch.ops.l2vit_mm) is None
    old = SimpleNamespace(build_info=None, linear_attention=None, focused_feature_map=None)
    assert 'built from other sources, it has no max_head_dim, linear_attention_qkvpacked; to ' in (
        extension.lacking(old)
    )


# The instruction sets


def available():
    return {'AVX2': ('plain', 'avx2'), 'AVX512': ('plain', 'avx2', 'avx512')}.get(
        torch.backends.cpu.get_cpu_capability(), ('plain',)
    )


def run(*command, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | environment,
    )


@pytest.mark.train
@needs_extension
@pytest.mark.parametrize('name', ['plain', 'avx2', 'avx512'])
def test_each_instruction_set(name):
    """The numerical tests again, with another instruction set than the best one of this machine."""
    if name not in available():
        pytest.skip(f'no {name} here')
    if name == extension.build_info()['cpu']:
        pytest.skip('what all other tests run')
    tests = {
        'test_extension.py': ('build_info',),
        'test_linear_attention.py': ('head_sizes', 'options', 'zeros_have_no_gradient'),
        'test_focused_feature_map.py': (
            'channels',
            'powers',
            'large_activations',
            'small_activations',
        ),
        'test_layouts.py': ('nan_reaches_what_it_is_part_of',),
    }
    arguments = [f'{HERE / file}::test_{test}' for file, names in tests.items() for test in names]
    result = run(
        '-m',
        'pytest',
        '-q',
        '-p',
        'no:cacheprovider',
        '-k',
        'build_info or cpu and compiled and not dense and not padded',
        *arguments,
        L2VIT_MM_CPU=name,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr


@pytest.mark.train
@needs_extension
def test_instruction_set_that_is_not_there():
    result = run(
        '-c', 'from l2vit_mm.ops import extension; extension.build_info()', L2VIT_MM_CPU='sse9'
    )
    assert result.returncode != 0
    assert 'L2VIT_MM_CPU must be one of plain' in result.stderr


# Without the extension


@pytest.fixture
def without_extension(monkeypatch):
    monkeypatch.setattr(extension, '_error', 'l2vit_mm has no operators here')
    extension.warn_once.cache_clear()
    yield
    extension.warn_once.cache_clear()


def test_plain_pytorch_takes_over_with_one_warning(without_extension):
    q = torch.randn(2, 5, 2, 4)
    x, s = torch.randn(5, 4), torch.randn(4)
    calls = [
        (linear_attention, (q, q, q)),
        (linear_attention_qkvpacked, (torch.stack([q] * 3, -3),)),
        (focused_feature_map, (x, s)),
    ]
    with pytest.warns(UserWarning, match='no operators here. Plain PyTorch takes over') as caught:
        results = [function(*arguments) for function, arguments in calls * 2]
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter('error')  # no warning on explicit request
        for (function, arguments), result in zip(calls * 2, results):
            assert torch.equal(result, function(*arguments, backend='reference'))
    for function, arguments in calls:
        with pytest.raises(RuntimeError, match="backend is 'compiled', but .*no operators here"):
            function(*arguments, backend='compiled')


def test_plain_pytorch_takes_over_in_a_graph(without_extension):
    q = torch.randn(2, 5, 2, 4)
    f = torch.compile(linear_attention, backend='eager', fullgraph=True)
    torch.testing.assert_close(f(q, q, q), linear_attention(q, q, q, backend='reference'))


def test_devices_without_operators(monkeypatch):
    monkeypatch.setattr(extension, '_error', None)
    monkeypatch.setattr(extension, '_archs', [])
    assert extension.missing_for(torch.device('cpu')) is None
    assert 'built without CUDA' in extension.missing_for(torch.device('cuda'))
    assert 'pip install' in extension.missing_for(torch.device('cuda'))
    assert 'no compiled operators for xpu' in extension.missing_for(torch.device('xpu'))


def test_gpus_that_the_operators_were_not_built_for(monkeypatch):
    monkeypatch.setattr(extension, '_error', None)
    monkeypatch.setattr(extension, '_archs', ['8.0', '9.0'])
    device = torch.device('cuda:1')
    for capability, runs in (((7, 5), False), ((8, 9), True), ((10, 0), False)):
        monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda _: capability)
        missing = extension.missing_for(device)
        assert missing is None if runs else '8.0, 9.0, and cuda:1 has' in missing
    assert extension.built_for((12, 0), ['8.0', '9.0+PTX'])  # PTX runs on later ones
    assert extension.built_for((9, 0), ['8.0', 'Hopper'])  # torch takes such names, too
    # While tracing, neither the GPU nor anything else that cannot be traced is queried.
    f = torch.compile(
        lambda x: x + (extension.missing_for(device) is None), backend='eager', fullgraph=True
    )
    assert f(torch.zeros(1)) == 1


CODE = """
import sys, warnings
for name in ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'):
    sys.modules[name] = None  # as if not installed: importing it fails
import torch
import l2vit_mm
from l2vit_mm.ops import extension, linear_attention
assert l2vit_mm.__file__.startswith(sys.argv[1]), l2vit_mm.__file__
q = torch.ones(1, 5, 2, 4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    out = [linear_attention(q, 30 * q, q) for _ in range(3)][0]
assert torch.allclose(out, q), out
message, = (str(x.message) for x in caught)
print(message)
try:
    linear_attention(q, q, q, backend='compiled')
except RuntimeError as error:
    print(error)
"""


@pytest.mark.train
@pytest.mark.parametrize(
    'content, reason',
    [
        (None, 'installed without its compiled operators'),
        (b'not a library', 'does not load with torch ' + torch.__version__),
    ],
    ids=['none', 'broken'],
)
def test_package_without_a_library_that_loads(content, reason, tmp_path):
    package = tmp_path / 'l2vit_mm'
    shutil.copytree(
        Path(l2vit_mm.__file__).parent,
        package,
        ignore=shutil.ignore_patterns('*.so', '__pycache__'),
    )
    if content:
        (package / '_C.abi3.so').write_bytes(content)
    result = run('-c', CODE, str(tmp_path), cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    warning, error = result.stdout.splitlines()
    for text in (warning, error):
        assert reason in text
        assert 'pip install --no-build-isolation' in text  # how to build it
    assert 'Plain PyTorch takes over' in warning
    assert "backend is 'compiled'" in error
