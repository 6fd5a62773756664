"""The house rules: which room may import which, sizes, depth of inheritance, docstrings."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import l2vit_mm

PACKAGE = Path(l2vit_mm.__file__).parent
# From the ground up; a room imports those before it. (docs/architecture.md)
ROOMS = [
    'ops',
    'layers',
    'registry',
    'checkpoint',
    'backbones',
    'necks',
    'data_preprocessors',
    'datasets',
    'compat',
    'engine',
    'apis',
]
TOOLBOXES = {'mmcv', 'mmdet', 'mmseg', 'mmpretrain'}
# Where a toolbox may be imported.
OF_TOOLBOXES = re.compile(
    r'l2vit_mm\.(data_preprocessors\.(det|seg|cls)|datasets\.shapes_(det|seg))'
)
FILES = sorted(PACKAGE.rglob('*.py'))
# Imported only where another package is, or for its effect.
OPTIONAL = re.compile(rf'{OF_TOOLBOXES.pattern}|l2vit_mm\.(_C|(.*\.)?__main__)$')


def module_of(file):
    return '.'.join(file.relative_to(PACKAGE.parent).with_suffix('').parts).removesuffix(
        '.__init__'
    )


def imports_of(file):
    """Modules that a file imports when it is imported, or for types."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def imports_for_types(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.If) and getattr(node.test, 'id', '') == 'TYPE_CHECKING':
            yield from (inner.module for inner in node.body if isinstance(inner, ast.ImportFrom))


@pytest.mark.parametrize('file', FILES, ids=module_of)
def test_arrows_point_down(file):
    module = module_of(file)
    room = module.split('.')[1] if '.' in module else ''
    for name in {*imports_of(file)} - {*imports_for_types(file)}:
        parts = name.split('.')
        if parts[0] in TOOLBOXES:
            assert OF_TOOLBOXES.match(module), f'{module} imports {name}'
        if parts[0] == 'mmengine':
            assert (
                room not in ('ops', 'layers')
                and parts[1:2] != ['_strategy']
                or (module.startswith('l2vit_mm.engine.strategies'))
            )
        if room in ROOMS and parts[0] == 'l2vit_mm' and len(parts) > 1 and parts[1] in ROOMS:
            assert ROOMS.index(parts[1]) <= ROOMS.index(room), f'{module} imports {name}'


def test_no_file_is_long():
    lengths = {module_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > 350} == {}


def public_objects():
    """Classes and functions, methods too, that are defined in the package: name, object."""
    for info in pkgutil.walk_packages([str(PACKAGE)], 'l2vit_mm.'):
        if OPTIONAL.match(info.name):
            continue
        module = importlib.import_module(info.name)
        for name, thing in vars(module).items():
            if name.startswith('_') or getattr(thing, '__module__', None) != info.name:
                continue
            if inspect.isfunction(thing) or inspect.isclass(thing):
                yield f'{info.name}.{name}', thing
            if inspect.isclass(thing):
                for attribute in vars(thing):
                    member = getattr(thing, attribute)
                    if not attribute.startswith('_') and callable(member):
                        yield f'{info.name}.{name}.{attribute}', member


def test_inheritance_is_shallow():
    deep = {}
    for name, thing in public_objects():
        if inspect.isclass(thing):
            ours = [base for base in thing.__mro__[1:] if base.__module__.startswith('l2vit_mm.')]
            if len(ours) > 2:
                deep[name] = ours
    assert deep == {}


SHAPE = re.compile(r"\((\.\.\.|[\w' *]+)(, |\))|[Ss]hape|broadcast|B \+ 1|\d\)\^2, H")
# Any shape, or state dicts.
SHAPELESS = re.compile(r'l2vit_mm\.(compat|ops\.(checks|precision))\.|.*\.published_only$')


def test_docstrings():
    """Everything public has one, and one that tells shapes where tensors go in or out."""
    missing, shapeless = [], []
    for name, thing in public_objects():
        doc = inspect.getdoc(thing)
        if not doc or doc.startswith('Define the computation performed'):  # torch's
            missing.append(name)
        elif inspect.isfunction(thing) and not SHAPELESS.match(name):
            takes = any('Tensor' in str(value) for value in thing.__annotations__.values())
            if takes and not SHAPE.search(doc):
                shapeless.append(name)
    assert missing == [] and shapeless == []
