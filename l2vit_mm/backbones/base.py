"""What the hierarchical backbones have in common."""
import inspect
from collections.abc import Iterator, Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from l2vit_mm.backbones.loading import (NameTable, backbone_part, check_and_log, looks_like,
                                        misfits, top_level, unwrap)
from l2vit_mm.layers import PackedLayout, ResizedTable, TokenLayout


def resolve_arch(arch: str | dict, arch_zoo: dict, optional: dict) -> dict:
    """Looks an architecture up, or checks one of the user's own.

    Args:
        arch (str or dict): a name in ``arch_zoo``, or a dict with the same keys.
        arch_zoo (dict): name to settings; every value has the keys that are required.
        optional (dict): keys that may be left out, with their defaults.

    Raises:
        ValueError: if the name is unknown, a key is missing or unknown, or the stages' lists
            differ in length.
        TypeError: if ``arch`` is neither a string nor a dict.
    """
    if isinstance(arch, str):
        if arch not in arch_zoo:
            raise ValueError(f'arch is {arch!r}; accepted are {", ".join(arch_zoo)} or a dict')
        return {**optional, **arch_zoo[arch]}
    if not isinstance(arch, dict):
        raise TypeError(f'arch is {arch!r}; accepted are {", ".join(arch_zoo)} or a dict')
    required = next(iter(arch_zoo.values())).keys() - optional.keys()
    if not required <= arch.keys() <= required | optional.keys():
        raise ValueError(f'arch has the keys {sorted(arch)}; needed are {sorted(required)}, '
                         f'accepted also {sorted(optional)}')
    lengths = {key: len(arch[key]) for key in sorted(required) if isinstance(arch[key], Sequence)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f'arch needs one entry a stage in each list, got lengths {lengths}')
    return {**optional, **arch}


def check_heads(channels: Sequence[int], num_heads: Sequence[int]) -> None:
    """Raises a ValueError unless each stage's channels can be split into its heads."""
    if any(c % heads for c, heads in zip(channels, num_heads)):
        raise ValueError(f'arch has channels {channels} and num_heads {num_heads}; accepted '
                         'are channels that their heads divide')


def drop_path_rates(drop_path_rate: float, depths: Sequence[int]) -> Iterator[float]:
    """Each block's probability of dropping a branch, from 0 in the first to the rate in the last.

    Raises:
        ValueError: if the rate is none.
    """
    if not 0. <= drop_path_rate < 1.:
        raise ValueError(f'drop_path_rate is {drop_path_rate}; accepted is 0 <= rate < 1')
    return iter(torch.linspace(0., drop_path_rate, sum(depths), device='cpu').tolist())


def _argument_names(cls: type) -> list[str]:
    """The arguments of a family's class, and of the base that it passes the rest on to."""
    names = {}
    for base in cls.__mro__[:cls.__mro__.index(HierarchicalBackbone)]:
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
        names.update((p.name, None) for p in parameters if p.kind is not p.VAR_KEYWORD)
    return list(names)


def families() -> list[type]:
    """The backbone classes of this package."""
    found, families = [HierarchicalBackbone], []
    for cls in found:
        found += cls.__subclasses__()
        if hasattr(cls, 'arch_zoo') and cls.__module__.startswith('l2vit_mm.'):
            families.append(cls)
    return families


class HierarchicalBackbone(BaseModule):
    """A stem, stages of blocks with downsampling between them, and an output norm a stage.

    A family's class sets ``stem`` (image to tokens and their layout), ``downsamples`` (one before
    each stage but the first) and ``stages`` (lists of blocks, each called with tokens and their
    layout), then calls :meth:`finish`. A plain backbone is one without ``downsamples``, with a
    stage a block. Where stages end in norms that are part of the model, ``stage_norms`` has one
    a stage.

    Args:
        in_channels (int): channels of the image.
        out_indices (Sequence[int]): stages whose maps are returned.
        frozen_stages (int): -1: nothing is frozen; 0: the stem; k: the stem, the first k stages
            and the downsampling before them. Output norms are never frozen.
        norm_eval (bool): keep BatchNorms in eval mode while training.
        with_cp (bool): recompute blocks in backward instead of keeping their activations.
        output_norm (bool): LayerNorm on each returned map.
        pretrained (str, optional): deprecated, MM's old way to say
            ``init_cfg=dict(type='Pretrained', checkpoint=pretrained)``.
        init_cfg (dict, optional): as in MM.
        unknown (dict): arguments that the family's class doesn't have; any is an error.
    """

    published_names = NameTable()
    stem_stride = 4

    def __init__(self, *, in_channels: int, out_indices: Sequence[int], frozen_stages: int,
                 norm_eval: bool, with_cp: bool, output_norm: bool, pretrained: str | None,
                 init_cfg: dict | list | None, unknown: dict) -> None:
        name = type(self).__name__
        if unknown:
            accepted = _argument_names(type(self))
            raise TypeError(f'{name} got unknown arguments {", ".join(sorted(unknown))}; '
                            f'accepted are {", ".join(accepted)}')
        if pretrained is not None:
            if init_cfg is not None:
                raise ValueError(f'{name} got both pretrained={pretrained!r} and init_cfg; '
                                 'accepted is one of them')
            init_cfg = dict(type='Pretrained', checkpoint=pretrained)
        super().__init__(init_cfg=init_cfg)
        self.in_channels = in_channels
        self.out_indices = out_indices
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.with_cp = with_cp
        self.output_norm = output_norm
        self.stage_norms = None
        self._initialising = False

    def finish(self, channels: Sequence[int]) -> None:
        """Adds output norms, checks stage numbers, initialises and freezes.

        Args:
            channels (Sequence[int]): channels of each stage.

        Raises:
            ValueError: if ``out_indices`` or ``frozen_stages`` name a stage that there is not.
        """
        count = len(self.stages)
        indices = tuple(self.out_indices) if isinstance(self.out_indices, Sequence) else ()
        if (not indices or len(set(indices)) < len(indices)
                or any(index not in range(count) for index in indices)):
            raise ValueError(f'out_indices is {self.out_indices}; accepted is a sequence of '
                             f'different stages from 0 to {count - 1}')
        self.out_indices = indices
        if self.frozen_stages not in range(-1, count + 1):
            raise ValueError(f'frozen_stages is {self.frozen_stages!r}; accepted is -1 to {count}')
        if self.output_norm:
            for index in self.out_indices:
                self.add_module(f'norm{index}', nn.LayerNorm(channels[index]))
        self.apply(self.init_parameters)
        for module in self._frozen_modules():
            module.requires_grad_(False)
        self.train(self.training)  # puts what is frozen into eval mode

    @staticmethod
    def init_parameters(module: nn.Module) -> None:
        """Linear: truncated normal of 0.02; convolutions: Kaiming normal, fan-out; biases 0."""
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode='fan_out', nonlinearity='relu')
        else:
            return
        if module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, valid_hw: Tensor | None = None) -> tuple[Tensor, ...]:
        """Images to feature maps.

        Args:
            x (Tensor): (B, in_channels, h, w), any h and w from 1.
            valid_hw (Tensor, optional): (B, 2), integers: height and width in pixels of each image
                of a batch that was padded right and bottom. Inside its ceil(h / stride_s) x
                ceil(w / stride_s) an image's maps are then those of the image alone, outside they
                are zero; what the padding holds makes no difference, and BatchNorms in training
                don't count it. Best on the CPU: the sizes are read there. None: those that x knows,
                if it is a :class:`~l2vit_mm.engine.valid_region.ValidRegionTensor`, else padding
                is part of the images.

        Returns:
            tuple[Tensor]: for each stage s of ``out_indices`` a contiguous
            (B, C_s, ceil(h / stride_s), ceil(w / stride_s)), strides 4, 8, 16, 32 (16 for all
            of a plain backbone).

        Raises:
            ValueError: if the shape is another.
        """
        if x.ndim != 4 or x.shape[1] != self.in_channels or 0 in x.shape[2:]:
            raise ValueError(f'x has shape {tuple(x.shape)}; accepted is '
                             f'(B, {self.in_channels}, h >= 1, w >= 1)')
        if hasattr(x, 'valid_hw'):
            valid_hw = x.valid_hw if valid_hw is None else valid_hw
            x = x.as_subclass(Tensor)
        height, width = x.shape[2:]
        layout = self._layout(x, valid_hw)
        # Channels-last from here on: the copy is cheapest while there are three channels.
        x, layout = self.stem(layout.from_map(x), layout)
        stride = self.stem_stride
        outs = {}
        for index, stage in enumerate(self.stages[:max(self.out_indices) + 1]):
            if index and len(self.downsamples):
                x, layout = self.downsamples[index - 1](x, layout)
                stride *= 2
            for block in stage:
                x = self._run(block, x, layout)
            if self.stage_norms is not None:
                x = self.stage_norms[index](x)
            if index in self.out_indices:
                out = getattr(self, f'norm{index}')(x) if self.output_norm else x
                feature_map = layout.to_map(out, -(-height // stride), -(-width // stride))
                outs[index] = feature_map.contiguous()
        return tuple(outs[index] for index in self.out_indices)

    @staticmethod
    def _layout(x: Tensor, valid_hw: Tensor | None) -> TokenLayout:
        """The layout of the pixels."""
        batch, _, height, width = x.shape
        if valid_hw is None:
            return TokenLayout(batch, height, width)
        if (not isinstance(valid_hw, Tensor) or valid_hw.shape != (batch, 2)
                or valid_hw.is_floating_point()):
            found = (f'{valid_hw.dtype} of the shape {tuple(valid_hw.shape)}'
                     if isinstance(valid_hw, Tensor) else f'a {type(valid_hw).__name__}')
            raise ValueError(f'valid_hw is {found}; accepted is a tensor of integers, ({batch}, 2)')
        sizes = [tuple(size) for size in valid_hw.tolist()]
        if not all(1 <= h <= height and 1 <= w <= width for h, w in sizes):
            raise ValueError(f'valid_hw is {sizes}; accepted are heights from 1 to {height} and '
                             f'widths from 1 to {width}')
        if all(size == (height, width) for size in sizes):
            return TokenLayout(batch, height, width)
        return PackedLayout.of_sizes(sizes)

    def _run(self, block: nn.Module, x: Tensor, layout: TokenLayout) -> Tensor:
        if self.with_cp and self.training and torch.is_grad_enabled():
            return checkpoint(block, x, layout, use_reentrant=False)
        return block(x, layout)

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        return [
            self.stem, *self.stages[:self.frozen_stages],
            *self.downsamples[:max(self.frozen_stages - 1, 0)],
            *(self.stage_norms or [])[:self.frozen_stages]
        ]

    def train(self, mode: bool = True) -> 'HierarchicalBackbone':
        """As torch's; frozen stages, and BatchNorms under ``norm_eval``, stay in eval mode."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """The depth of a parameter, for layer-wise learning rates.

        Args:
            param_name (str): the parameter's name in the whole model.
            prefix (str): what precedes the backbone's own names, ``'backbone.'`` say.

        Returns:
            tuple[int, int]: the depth (0 for the stem, then one a block; downsampling counts with
            the block after it, a stage's own norm with the block before; output norms and
            whatever is not the backbone's come last), and the number of depths.
        """
        depths = [len(stage) for stage in self.stages]
        num_layers = sum(depths) + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        kind, *rest = param_name[len(prefix):].split('.')
        if kind == 'stem':
            return 0, num_layers
        if kind == 'downsamples':
            return sum(depths[:int(rest[0]) + 1]) + 1, num_layers
        if kind == 'stage_norms':
            return sum(depths[:int(rest[0]) + 1]), num_layers
        if kind == 'stages':
            return sum(depths[:int(rest[0])]) + int(rest[1]) + 1, num_layers
        return num_layers - 1, num_layers

    def init_weights(self) -> None:
        """As MM's, with one difference: a ``Pretrained`` checkpoint has to fit.

        It is a state dict, or holds one (:func:`~l2vit_mm.backbones.loading.unwrap`), under our
        names or the published ones, of a backbone or of a detector, segmenter or classifier with
        it. What is resized, dropped, left as initialised or not finite is logged. MM would only
        warn of parameters that it leaves unset.

        Raises:
            RuntimeError: if a parameter is missing (output norms may be), unknown or of another
                shape; it lists them, and says which architecture the file looks like.
        """
        self._initialising = True
        try:
            super().init_weights()
        finally:
            self._initialising = False

    @classmethod
    def rename_published(cls, key: str) -> str | None:
        """Our name for a published file's, itself for one of ours, None for what is dropped."""
        return cls.published_names.ours(key)

    def adapt(self, state: dict) -> tuple[dict, dict[str, list[str]]]:
        """A state dict under our names or the published ones, as one of this backbone.

        A classifier has no output norms for the earlier stages: they keep what they are.

        Args:
            state (dict): name, without prefix, to tensor.

        Returns:
            tuple[dict, dict]: the state dict under our names, tables resized, without what is
            dropped; what doesn't fit is in it as it is (see
            :func:`~l2vit_mm.backbones.loading.misfits`). And the names of what was
            ``'resized'`` (ours), ``'dropped'`` (the file's) and ``'left as initialised'``.
        """
        own = self.state_dict()
        tables = {f'{name}.table': module for name, module in self.named_modules()
                  if isinstance(module, ResizedTable)}
        adapted, notes = {}, {'resized': [], 'dropped': []}
        for key, value in state.items():
            name = self.rename_published(key)
            # A file can have output norms of stages that are not returned here.
            if name is None or (self.is_output_norm(name) and name not in own):
                notes['dropped'].append(key)
                continue
            if name in tables:
                fitted = tables[name].fit(value)
                if fitted.numel() != value.numel():
                    notes['resized'].append(name)
                value = fitted
            # Published parameters can have further axes of length 1.
            elif name in own and value.squeeze().shape == own[name].squeeze().shape:
                value = value.reshape(own[name].shape)
            adapted[name] = value
        notes['left as initialised'] = [
            name for name in own if self.is_output_norm(name) and name not in adapted]
        adapted.update((name, own[name]) for name in notes['left as initialised'])
        return adapted, notes

    def check_fit(self, what: str, state: dict, adapted: dict, notes: dict) -> None:
        """Raises an error unless what :meth:`adapt` has made of a state dict fits, or logs it.

        The error says which architecture the state dict looks like; see
        :func:`~l2vit_mm.backbones.loading.check_and_log`.
        """
        own = self.state_dict()
        guess = looks_like(state, families()) if misfits(adapted, own) else ''
        check_and_log(what, adapted, own, notes, f'it looks like {guess}; ' if guess else '')

    def to_published(self, state: dict) -> dict:
        """The way back from :meth:`adapt`: names, shapes, and what published files hold besides.

        Args:
            state (dict): this backbone's, or that without output norms.
        """
        norms = {name.split('.')[0] for name in state if self.is_output_norm(name)}
        published = self.published_only()
        for name, value in state.items():
            # A classifier's one norm has another name than those of a pyramid.
            if not self.is_output_norm(name) or len(norms) == 1:
                name, value = self.published_names.published(name, value)
            published[name] = value
        return published

    def published_only(self) -> dict:
        """What a published file holds, though it follows from the architecture or isn't used."""
        return {}

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args) -> None:
        # torch's and mmengine's loaders both come through here, before they look at the children.
        rest = {}
        if self._initialising:
            # Of a trained detector, segmenter or classifier its backbone.
            whole = unwrap(state_dict)
            part, rest = backbone_part(whole)
            if not part:
                part, rest = whole, {}
            state_dict.clear()
            state_dict.update(part)
        keys = [key for key in state_dict if key.startswith(prefix)]
        state = {key[len(prefix):]: state_dict.pop(key) for key in keys}
        loaded, notes = self.adapt(state)
        if self._initialising:
            notes['dropped'] += top_level(rest)
            self.check_fit(type(self).__name__, state, loaded, notes)
        state_dict.update((prefix + name, value) for name, value in loaded.items())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def is_output_norm(self, name: str) -> bool:
        """Whether a parameter is one of an output norm, there or not."""
        return name.split('.')[0] in {f'norm{index}' for index in range(len(self.stages))}
