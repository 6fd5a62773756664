"""What every backbone must hold. A test runs each of these for each registered class."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn

from l2vit_mm.checkpoint.load import adapt


def make(cls, **kwargs):
    """The class's test architecture, by default with the maps of all of its stages."""
    if 'out_indices' not in kwargs:
        with torch.device('meta'):
            kwargs['out_indices'] = tuple(range(cls(cls.test_arch).num_stages))
    torch.manual_seed(0)
    return cls(cls.test_arch, **kwargs)


def randomized(model):
    """With values for what is initialized to 0."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if 'scale' in name or 'position' in name or name.endswith('bias'):
            nn.init.normal_(parameter, std=0.3)
    return model


def any_size(cls):
    model = make(cls).train()
    for size in [(1, 1), (1, 50), (31, 97), (224, 224), (200, 333)]:
        image = torch.randn(2, 3, *size, requires_grad=True)
        outs = model(image)
        for out, channels, stride in zip(outs, model.out_channels, model.out_strides, strict=True):
            assert out.shape == (2, channels, -(-size[0] // stride), -(-size[1] // stride))
            assert out.is_contiguous() and out.isfinite().all()
        model.zero_grad()
        sum(out.square().mean() for out in outs).backward()
        assert image.grad.isfinite().all() and image.grad.any()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def strided_input(cls):
    model = randomized(make(cls)).eval()
    buffer = torch.randn(2, 6, 45, 90)
    view = buffer[:, ::2, :, 10:].transpose(2, 3)
    for a, b in zip(model(view), model(view.contiguous()), strict=True):
        torch.testing.assert_close(a, b)


def images_of_a_batch_do_not_mix(cls):
    model = randomized(make(cls)).double().eval()
    images = torch.randn(3, 3, 40, 56, dtype=torch.float64)
    alone = model(images[1:2])
    for together, out in zip(model(images), alone, strict=True):
        torch.testing.assert_close(together[1:2], out)


def padding_does_not_count(cls):
    model = randomized(make(cls)).double().eval()
    sizes = [(40, 33), (17, 56)]
    images = torch.full((2, 3, 40, 56), torch.nan, dtype=torch.float64)
    for image, (h, w) in zip(images, sizes, strict=True):
        image[:, :h, :w] = torch.randn(3, h, w)
    outs = model(images, torch.tensor(sizes))
    for index, (h, w) in enumerate(sizes):
        for out, alone in zip(outs, model(images[index : index + 1, :, :h, :w]), strict=True):
            inside = out[index, :, : alone.shape[2], : alone.shape[3]]
            torch.testing.assert_close(inside, alone[0])
            assert out[index].count_nonzero() == inside.count_nonzero()


def every_parameter_gets_a_gradient(cls):
    """Whatever stages are returned: DDP stops at a parameter without one."""
    with torch.device('meta'):
        count = cls(cls.test_arch).num_stages
    image = torch.randn(2, 3, 64, 80)
    for length in range(1, count + 1):
        for indices in itertools.combinations(range(count), length):
            model = make(cls, out_indices=indices).train()
            sum(out.square().mean() for out in model(image)).backward()
            assert [
                n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()
            ] == [], indices


def order_of_out_indices(cls):
    image = torch.randn(1, 3, 48, 64)
    model = make(cls).eval()
    whole = model(image)
    assert len(whole) == model.num_stages == len(model.out_channels) == len(model.out_strides)
    backward = make(cls, out_indices=model.out_indices[::-1]).eval()
    assert backward.out_channels == model.out_channels[::-1]
    for a, b in zip(backward(image), whole[::-1], strict=True):
        assert torch.equal(a, b)
    for bad in ((), (0, model.num_stages), (-1,), (0, 0), 3):
        with pytest.raises(ValueError, match='out_indices must be a sequence of different stages'):
            make(cls, out_indices=bad)


def stages_that_are_not_built(cls):
    whole = randomized(make(cls))
    if whole.num_stages == 1:
        return
    first = make(cls, out_indices=(0,))
    assert len(first.stages) == 1 and len(first.downsamples) == 0
    first.load_state_dict(whole.state_dict(), strict=True)
    image = torch.randn(1, 3, 48, 64)
    assert torch.equal(first.eval()(image)[0], whole.eval()(image)[0])
    adapted, report = adapt(first, whole.state_dict())
    assert adapted.keys() == first.state_dict().keys() and not report.misfit
    assert {name for name in report.skipped if name.startswith('stages.1.')}
    assert len(report.skipped) == len(whole.state_dict()) - len(adapted)
    with pytest.raises(RuntimeError, match=r'Missing key.*stages\.1\.'):
        whole.load_state_dict(first.state_dict(), strict=True)


def loading_is_strict(cls):
    state = make(cls).state_dict()
    for name in list(state)[::7]:
        if not make(cls).is_output_norm(name):
            with pytest.raises(RuntimeError, match=name.replace('.', r'\.')):
                make(cls).load_state_dict({k: v for k, v in state.items() if k != name})
    with pytest.raises(RuntimeError, match='stages.0.0.rpe'):
        make(cls).load_state_dict({**state, 'stages.0.0.rpe': torch.zeros(3)})


def loads_without_memory(cls):
    """On the meta device, as where a sharded model is made."""
    state = make(cls).state_dict()
    with torch.device('meta'):
        model = make(cls)
    model.load_state_dict(model.state_dict())
    model.load_state_dict(state, assign=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


def recomputation_gives_the_same_gradients(cls):
    image = torch.randn(2, 3, 40, 40)
    grads = []
    for with_cp in (False, True):
        model = make(cls, with_cp=with_cp).train()
        sum(out.square().sum() for out in model(image)).backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def frozen_stages(cls):
    count = make(cls).num_stages
    for frozen in range(-1, count + 1):
        model = make(cls, frozen_stages=frozen)
        assert model.train() is model
        for name, parameter in model.named_parameters():
            kind, number, *_ = name.split('.')
            is_frozen = (
                frozen >= 0
                and kind == 'stem'
                or kind in ('stages', 'stage_norms')
                and int(number) < frozen
                or kind == 'downsamples'
                and int(number) + 1 < frozen
            )
            assert parameter.requires_grad != is_frozen, name
        assert model.stem.training == (frozen < 0)
        assert [stage.training for stage in model.stages] == [i >= frozen for i in range(count)]
    with pytest.raises(ValueError, match=f'frozen_stages must be from -1 to {count}, got 99'):
        make(cls, frozen_stages=99)


def layer_depths(cls):
    model = make(cls)
    depths = [len(stage) for stage in model.stages]
    total = sum(depths) + 2
    for name, _ in model.named_parameters():
        depth, count = model.get_layer_depth('backbone.' + name, 'backbone.')
        kind, number, *rest = name.split('.')
        expected = {
            'stem': lambda: 0,
            'stages': lambda: sum(depths[: int(number)]) + int(rest[0]) + 1,
            'downsamples': lambda: sum(depths[: int(number) + 1]) + 1,
            'stage_norms': lambda: sum(depths[: int(number) + 1]),
        }.get(kind, lambda: total - 1)()
        assert (depth, count) == (expected, total), name
    assert model.get_layer_depth('neck.convs.0.weight', 'backbone.') == (total - 1, total)


def block_types_are_those_of_the_blocks(cls):
    """FSDP shards by them."""
    assert {type(block) for stage in make(cls).stages for block in stage} == {*cls.block_types}


def compiles_as_one_graph(cls):
    torch.compiler.reset()
    model = randomized(make(cls)).eval()
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    with torch.no_grad():
        for size in [(40, 56), (32, 72)]:
            image = torch.randn(1, 3, *size)
            torch.testing.assert_close(compiled(image), model(image))


def copies(cls):
    model = randomized(make(cls)).eval()
    image = torch.randn(1, 3, 40, 56)
    expected = model(image)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for a, b in zip(twin(image), expected, strict=True):
            assert torch.equal(a, b)
        twin.load_state_dict(model.state_dict())  # its hooks are its own
        nn.init.zeros_(next(twin.parameters()))
    assert torch.equal(model(image)[0], expected[0])


def half_precision_weights(cls):
    model = randomized(make(cls)).eval()
    image = torch.randn(1, 3, 40, 56)
    expected = model(image)
    for out, wide in zip(model.bfloat16()(image.bfloat16()), expected, strict=True):
        assert out.dtype == torch.bfloat16
        assert (out.float() - wide).norm() / wide.norm() < 0.05


def unknown_arguments(cls):
    with pytest.raises(
        TypeError, match="unexpected keyword argument 'out_indexes'; did you mean 'out_indices'"
    ):
        cls(cls.test_arch, out_indexes=(0,))
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'xyzzy'$"):
        cls(cls.test_arch, xyzzy=1)


def bad_images(cls):
    for shape in [(1, 4, 32, 32), (3, 32, 32), (1, 3, 0, 32), (1, 3, 32, 0)]:
        with pytest.raises(ValueError, match=r'x must have shape \(B, 3, h >= 1, w >= 1\)'):
            make(cls)(torch.zeros(shape))


CHECKS = [
    check
    for name, check in list(globals().items())
    if getattr(check, '__module__', None) == __name__ and name not in ('make', 'randomized')
]
# Of a test that runs them. Graphs of symbolic sizes take up to half a minute each.
PARAMS = [
    pytest.param(
        check,
        id=check.__name__,
        marks=[pytest.mark.slow] if check is compiles_as_one_graph else [],
    )
    for check in CHECKS
]
