"""What setup.py decides, and what it leaves behind when something is missing or fails."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils import cpp_extension

REPO = Path(__file__).resolve().parent.parent
VARIABLES = ('L2VIT_MM_BUILD', 'CUDA_HOME', 'TORCH_CUDA_ARCH_LIST')
# An nvcc that knows where it is and what it is, but can't compile.
NVCC = """\
#!/bin/sh
case "$*" in
  *--dryrun*) echo "#$ _NVVM_BRANCH_=nvvm"; echo "#$ _HERE_=$(dirname "$0")";;
  *--version*) echo "Cuda compilation tools, release {version}, V{version}.88";;
  *) echo "this nvcc is broken"; exit 1;;
esac
"""


@pytest.fixture
def setup(monkeypatch):
    """setup.py as a module, with none of its variables set."""
    for name in VARIABLES:
        monkeypatch.setenv(name, '')  # restores what plan() sets
        monkeypatch.delenv(name)
    monkeypatch.chdir(REPO)
    spec = importlib.util.spec_from_file_location('l2vit_mm_setup', REPO / 'setup.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.atexit, 'register', lambda *args, **options: None)
    return module


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def toolkit(tmp_path):
    """A CUDA toolkit of torch's version whose compiler always fails."""
    executable(tmp_path / 'cuda' / 'bin' / 'nvcc', NVCC.format(version=torch.version.cuda))
    return tmp_path / 'cuda'


def fake_torch(cuda='13.0', gpus=()):
    return SimpleNamespace(
        __version__='2.9.0',
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            is_available=lambda: bool(gpus),
            device_count=lambda: len(gpus),
            get_device_capability=lambda index: gpus[index],
        ),
    )


@pytest.mark.parametrize('way', ['itself', 'a link', 'a script', 'a link to a script'])
def test_toolkit_of_the_nvcc_on_the_path(setup, monkeypatch, tmp_path, toolkit, way):
    nvcc = toolkit / 'bin' / 'nvcc'
    if 'script' in way:
        nvcc = executable(tmp_path / 'scripts' / 'nvcc', f'#!/bin/sh\nexec {nvcc} "$@"\n')
    if 'link' in way:
        (tmp_path / 'links').mkdir()
        (tmp_path / 'links' / 'nvcc').symlink_to(nvcc)
        nvcc = tmp_path / 'links' / 'nvcc'
    monkeypatch.setenv('PATH', f'{nvcc.parent}{os.pathsep}{os.environ["PATH"]}')
    assert setup.find_toolkit() == toolkit.resolve()


def test_cuda_home_comes_first(setup, monkeypatch, tmp_path, toolkit):
    monkeypatch.setenv('CUDA_HOME', str(toolkit))
    assert setup.find_toolkit() == toolkit
    monkeypatch.setenv('CUDA_HOME', str(tmp_path))
    with pytest.raises(setup.NoCuda, match=f'CUDA_HOME must be .* bin/nvcc, got {tmp_path}'):
        setup.find_toolkit()


def test_toolkit_must_fit_torch(setup, monkeypatch, tmp_path):
    monkeypatch.setenv('CUDA_HOME', str(tmp_path))
    nvcc = executable(tmp_path / 'bin' / 'nvcc', NVCC.format(version='13.1'))
    assert setup.find_cuda(fake_torch('13.0')) == (tmp_path, '13.1')
    with pytest.raises(setup.NoCuda, match='must be of CUDA 12.8, got release 13.1'):
        setup.find_cuda(fake_torch('12.8'))
    with pytest.raises(setup.NoCuda, match='torch 2.9.0 is built without CUDA'):
        setup.find_cuda(fake_torch(None))
    nvcc.write_text('#!/bin/sh\nexit 1\n')
    with pytest.raises(setup.NoCuda, match='unknown version'):
        setup.find_cuda(fake_torch('13.0'))


def test_architectures(setup, monkeypatch):
    assert setup.choose_archs(fake_torch()) == setup.ARCHS
    gpus = fake_torch(gpus=[(9, 0), (8, 6), (9, 0)])
    assert setup.choose_archs(gpus) == '8.6;9.0'
    monkeypatch.setenv('TORCH_CUDA_ARCH_LIST', '7.5')
    assert setup.choose_archs(gpus) == '7.5'


def test_unknown_mode(setup, monkeypatch):
    monkeypatch.setenv('L2VIT_MM_BUILD', 'gpu')
    with pytest.raises(SystemExit, match="must be auto, cpu, cuda or none, got 'gpu'"):
        setup.plan()


@pytest.mark.parametrize('mode', ['auto', 'none', 'cpu', 'cuda'])
def test_without_torch(setup, monkeypatch, capsys, mode):
    """As in the environment in which pip builds a package."""
    monkeypatch.setenv('L2VIT_MM_BUILD', mode)
    monkeypatch.setitem(sys.modules, 'torch', None)
    if mode in ('cpu', 'cuda'):
        with pytest.raises(SystemExit, match=f"'{mode}', .*pip install --no-build-isolation"):
            setup.plan()
    else:
        assert setup.plan() == {}
        assert ('pip install --no-build-isolation' in capsys.readouterr().err) == (mode == 'auto')


def test_sources_with_and_without_cuda(setup, monkeypatch, capsys, toolkit):
    monkeypatch.setattr(cpp_extension, 'CUDA_HOME', str(toolkit))
    monkeypatch.setattr(setup, 'find_cuda', lambda torch: (toolkit, '13.0'))
    monkeypatch.setenv('TORCH_CUDA_ARCH_LIST', '8.0;9.0+PTX')
    (extension,) = setup.plan()['ext_modules']
    assert 'l2vit_mm/ops/csrc/bindings.cpp' in extension.sources
    assert any(source.endswith('.cu') for source in extension.sources)
    assert {
        '-DL2VIT_MM_WITH_CUDA',
        '-DL2VIT_MM_CUDA="13.0"',
        '-DL2VIT_MM_ARCHS="8.0 9.0+PTX"',
    } <= set(extension.extra_compile_args['cxx'])
    assert os.environ['CUDA_HOME'] == str(toolkit)

    def no_cuda(torch):
        raise setup.NoCuda('THE REASON')

    monkeypatch.setattr(setup, 'find_cuda', no_cuda)
    (extension,) = setup.plan()['ext_modules']
    assert not any(source.endswith('.cu') for source in extension.sources)
    assert not any('CUDA' in flag for flag in extension.extra_compile_args['cxx'])
    assert 'kernels for the CPU only: THE REASON' in capsys.readouterr().out
    monkeypatch.setenv('L2VIT_MM_BUILD', 'cuda')
    with pytest.raises(SystemExit, match='THE REASON'):
        setup.plan()


@pytest.fixture
def project(tmp_path):
    """A project of setup.py and two tiny sources; returns what builds it in a new process."""
    root = tmp_path / 'project'
    csrc = root / 'l2vit_mm' / 'ops' / 'csrc'
    (csrc / 'cuda').mkdir(parents=True)
    shutil.copy(REPO / 'setup.py', root)
    (root / 'pyproject.toml').write_text(
        '[project]\nname = "l2vit-mm"\nversion = "0"\n[tool.setuptools]\npackages = ["l2vit_mm"]\n'
    )
    (root / 'l2vit_mm' / '__init__.py').touch()
    (csrc / 'bindings.cpp').write_text("""
#ifdef L2VIT_MM_WITH_CUDA
extern "C" int kernel();
#define BUILT (kernel(), L2VIT_MM_CUDA " for " L2VIT_MM_ARCHS)
#else
#define BUILT "cpu"
#endif
extern "C" __attribute__((visibility("default"))) const char* built() { return BUILT; }
""")
    (csrc / 'cuda' / 'kernel.cu').write_text(
        '__global__ void run() {}\nextern "C" int kernel() { run<<<1, 1>>>(); return 0; }\n'
    )

    def build(**variables):
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        # What an earlier build left must not be taken for a result of this one.
        (root / 'l2vit_mm' / '_C.abi3.so').write_text('old')
        return subprocess.run(
            [sys.executable, 'setup.py', 'build_ext', '--inplace'],
            cwd=root,
            env={**environment, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    build.file = root / 'l2vit_mm' / '_C.abi3.so'
    return build


def built(file):
    """What an extension of the tiny project says of itself, in a process of its own: the next
    build overwrites the file."""
    code = (
        'import ctypes, sys; function = ctypes.CDLL(sys.argv[1]).built; '
        'function.restype = ctypes.c_char_p; print(function().decode())'
    )
    # torch brings the CUDA runtime that a library with kernels needs.
    result = subprocess.run(
        [sys.executable, '-c', 'import torch; ' + code, str(file)], text=True, capture_output=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


needs_compiler = pytest.mark.skipif(not shutil.which('c++'), reason='needs a C++ compiler')


@pytest.mark.train
@needs_compiler
def test_kernels_for_the_cpu(project):
    result = project(L2VIT_MM_BUILD='cpu')
    assert result.returncode == 0, result.stdout
    assert built(project.file) == 'cpu'
    assert '*****' not in result.stdout


@pytest.mark.train
@needs_compiler
def test_kernels_for_cuda(project, setup):
    try:
        setup.find_cuda(torch)
    except setup.NoCuda as reason:
        pytest.skip(str(reason))
    result = project(L2VIT_MM_BUILD='cuda', TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX')
    assert result.returncode == 0, result.stdout
    assert built(project.file) == f'{torch.version.cuda} for 8.0 9.0+PTX'


@pytest.mark.train
@needs_compiler
@pytest.mark.skipif(not torch.version.cuda, reason='needs a torch with CUDA')
def test_failing_nvcc(project, toolkit):
    """Falls back to the CPU, loudly, unless CUDA was asked for."""
    result = project(CUDA_HOME=str(toolkit))
    assert result.returncode == 0, result.stdout
    assert 'NO CUDA KERNELS, only those for the CPU' in result.stdout[-800:]
    assert built(project.file) == 'cpu'
    result = project(CUDA_HOME=str(toolkit), L2VIT_MM_BUILD='cuda')
    assert result.returncode != 0
    assert not project.file.exists()


@pytest.mark.train
def test_without_compiler(project, tmp_path):
    missing = dict(CC='/missing/cc', CXX='/missing/c++', CUDA_HOME=str(tmp_path))
    result = project(**missing)
    assert result.returncode == 0, result.stdout
    assert 'NO COMPILED OPERATORS, only the slower ones' in result.stdout[-800:]
    assert not project.file.exists()
    result = project(**missing, L2VIT_MM_BUILD='cpu')
    assert result.returncode != 0
    assert not project.file.exists()


@pytest.fixture
def tree(tmp_path):
    """A copy of what the real project is built from, without what was built."""
    root = tmp_path / 'tree'
    ignore = shutil.ignore_patterns('*.so', '__pycache__')
    shutil.copytree(REPO / 'l2vit_mm', root / 'l2vit_mm', ignore=ignore)
    for name in ('setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'LICENSE'):
        shutil.copy(REPO / name, root)
    return root


@pytest.mark.train
def test_installed_without_extension(tree, tmp_path):
    """Installed without the extension it computes, is typed, and says once how to compile it."""
    site = tmp_path / 'site'
    environment = {**os.environ, 'L2VIT_MM_BUILD': 'none'}
    subprocess.run(
        [
            sys.executable,
            '-m',
            'pip',
            'install',
            '--quiet',
            '--no-deps',
            '--no-build-isolation',
            '--target',
            site,
            tree,
        ],
        env=environment,
        check=True,
    )
    assert not (site / 'l2vit_mm' / 'ops' / 'csrc').exists()
    assert (site / 'l2vit_mm' / 'py.typed').exists()
    code = """
import warnings
import torch, l2vit_mm.ops
q = torch.rand(1, 5, 2, 8)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for _ in range(2):
        out = l2vit_mm.ops.linear_attention(q, q, q)
text, = {str(warning.message) for warning in caught}
assert len(caught) == 1, caught
print(l2vit_mm.__file__, tuple(out.shape), text)
"""
    environment['PYTHONPATH'] = str(site)
    result = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f'{site}/l2vit_mm/__init__.py (1, 5, 2, 8)')
    assert 'pip install --no-build-isolation' in result.stdout


def test_source_distribution_has_every_source(tree):
    subprocess.run(
        [sys.executable, 'setup.py', '--quiet', 'sdist'],
        cwd=tree,
        check=True,
        env={**os.environ, 'L2VIT_MM_BUILD': 'none'},
    )
    (archive,) = (tree / 'dist').iterdir()
    with tarfile.open(archive) as tar:
        names = {name.partition('/')[2] for name in tar.getnames()}
    csrc = {str(path.relative_to(tree)) for path in (tree / 'l2vit_mm/ops/csrc').rglob('*.*')}
    assert csrc and csrc <= names
