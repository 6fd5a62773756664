"""What all backbones have in common: from parts to maps."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, ClassVar, cast

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint
from typing_extensions import Self

from l2vit_mm.checkpoint.load import adapt_before_loading, load_pretrained
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.layers import DenseLayout, Layout, PackedLayout

InitCfg = dict[str, Any] | list[dict[str, Any]] | None


class BaseBackbone(BaseModule, ABC):
    """A stem, stages of blocks with perhaps a downsampling between them, and output norms.

    A backbone's class makes the parts and hands them to this one, which builds, initializes,
    freezes and runs them. Parts are iterables, generators for example, of which only those are
    taken that the maps of ``out_indices`` need. A plain backbone has no ``downsamples``.

    Args:
        in_channels (int): channels of the image.
        channels (Sequence[int]): channels of each stage.
        strides (Sequence[int]): stride of each stage's map, in pixels.
        stem (nn.Module): called with pixels (B, H, W, in_channels) and their layout, returns tokens
            (..., C_0) and theirs.
        stages (Iterable[Iterable[nn.Module]]): each stage's blocks, called with tokens (..., C) and
            their layout, return tokens (..., C).
        downsamples (Iterable[nn.Module]): one before each stage but the first, called as the stem.
        stage_norms (Iterable[nn.Module]): one behind each stage, where stages end in norms that are
            part of the model.
        out_indices (Sequence[int], optional): stages whose maps are returned. None: all.
        frozen_stages (int): -1: nothing is frozen; 0: the stem; k: the stem, the first k stages
            and the downsampling before them. Output norms are never frozen.
        norm_eval (bool): keep BatchNorms in eval mode while training.
        with_cp (bool): recompute blocks in backward instead of keeping their activations.
        output_norm (bool): LayerNorm on each returned map.
        pretrained (str, optional): deprecated, MM's old way to say
            ``init_cfg=dict(type='Pretrained', checkpoint=pretrained)``.
        init_cfg (dict | list[dict], optional): as in MM.

    Attributes:
        num_stages (int): number of stages that the architecture has; those past the last of
            ``out_indices`` are not built.
        out_indices (tuple[int, ...]): stages whose maps are returned, in this order.
        out_channels (tuple[int, ...]): channels of the returned maps: ``in_channels`` of a neck.
        out_strides (tuple[int, ...]): their strides, in pixels.

    Raises:
        TypeError: for an unknown argument; it names the one that is near.
        ValueError: for a value that is out of range; it names the argument.
    """

    # The architectures by name; set by a class.
    arch_zoo: ClassVar[dict[str, dict[str, Any]]] = {}
    # An architecture that runs in no time; set by register_backbone.
    test_arch: ClassVar[str | dict[str, Any]]
    # Classes of its blocks: what FSDP shards by.
    block_types: ClassVar[tuple[type[nn.Module], ...]] = ()
    # Names of published state dicts.
    published_names: ClassVar[NameTable] = NameTable()

    init_cfg: InitCfg

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        _check_keywords(cls, kwargs)
        return super().__new__(cls)

    @abstractmethod
    def __init__(
        self,
        *,
        in_channels: int,
        channels: Sequence[int],
        strides: Sequence[int],
        stem: nn.Module,
        stages: Iterable[Iterable[nn.Module]],
        downsamples: Iterable[nn.Module] = (),
        stage_norms: Iterable[nn.Module] = (),
        out_indices: Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        output_norm: bool = True,
        pretrained: str | None = None,
        init_cfg: InitCfg = None,
    ) -> None:
        if pretrained is not None:
            if init_cfg is not None:
                raise ValueError(
                    f'only one of pretrained and init_cfg must be given, got '
                    f'{pretrained!r} and {init_cfg}'
                )
            init_cfg = dict(type='Pretrained', checkpoint=pretrained)
        count = len(channels)
        indices = tuple(range(count)) if out_indices is None else out_indices
        if (
            not isinstance(indices, Sequence)
            or not indices
            or len(set(indices)) < len(indices)
            or any(index not in range(count) for index in indices)
        ):
            raise ValueError(
                'out_indices must be a sequence of different stages from 0 to '
                f'{count - 1}, got {out_indices}'
            )
        if frozen_stages not in range(-1, count + 1):
            raise ValueError(f'frozen_stages must be from -1 to {count}, got {frozen_stages!r}')
        super().__init__(init_cfg=init_cfg)
        self.in_channels = in_channels
        self.num_stages = count
        self.strides = tuple(strides)
        self.out_indices = tuple(indices)
        self.out_channels = tuple(channels[index] for index in indices)
        self.out_strides = tuple(strides[index] for index in indices)
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.with_cp = with_cp
        self.output_norm = output_norm

        built = max(indices) + 1
        self.stem = stem
        self.downsamples = nn.ModuleList(islice(downsamples, built - 1))
        self.stages = nn.ModuleList(nn.ModuleList(blocks) for blocks in islice(stages, built))
        self.stage_norms = nn.ModuleList(islice(stage_norms, built))
        if output_norm:
            for index, width in zip(self.out_indices, self.out_channels, strict=True):
                self.add_module(f'norm{index}', nn.LayerNorm(width))
        self.apply(self.init_parameters)
        for module in self._frozen_modules():
            module.requires_grad_(False)
        self.train(self.training)  # puts what is frozen into eval mode
        self.register_load_state_dict_pre_hook(adapt_before_loading)

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
                if it is a :class:`~l2vit_mm.data_preprocessors.ValidRegionTensor`, else padding
                is part of the images.

        Returns:
            tuple[Tensor]: for each stage s of ``out_indices`` a contiguous
            (B, C_s, ceil(h / stride_s), ceil(w / stride_s)); channels ``out_channels``, strides
            ``out_strides``.

        Raises:
            ValueError: if the shape is another.
        """
        if x.ndim != 4 or x.shape[1] != self.in_channels or 0 in x.shape[2:]:
            raise ValueError(
                f'x must have shape (B, {self.in_channels}, h >= 1, w >= 1), got {tuple(x.shape)}'
            )
        if hasattr(x, 'valid_hw'):
            valid_hw = x.valid_hw if valid_hw is None else valid_hw
            x = x.as_subclass(Tensor)
        height, width = x.shape[2:]
        layout = self._layout(x, valid_hw)
        # Channels-last from here on: the copy is cheapest while there are three channels.
        x, layout = self.stem(layout.from_map(x), layout)
        maps = {}
        for index, (stage, stride) in enumerate(zip(self._blocks(), self.strides, strict=False)):
            if index and len(self.downsamples):
                x, layout = self.downsamples[index - 1](x, layout)
            for block in stage:
                x = self._run(block, x, layout)
            if len(self.stage_norms):
                x = self.stage_norms[index](x)
            if index in self.out_indices:
                out = getattr(self, f'norm{index}')(x) if self.output_norm else x
                feature_map = layout.to_map(out, -(-height // stride), -(-width // stride))
                maps[index] = feature_map.contiguous()
        return tuple(maps[index] for index in self.out_indices)

    @staticmethod
    def _layout(x: Tensor, valid_hw: Tensor | None) -> Layout:
        """The layout of the pixels."""
        batch, _, height, width = x.shape
        if valid_hw is None:
            return DenseLayout(batch, height, width)
        if (
            not isinstance(valid_hw, Tensor)
            or valid_hw.shape != (batch, 2)
            or valid_hw.is_floating_point()
        ):
            found = (
                f'{valid_hw.dtype} of the shape {tuple(valid_hw.shape)}'
                if isinstance(valid_hw, Tensor)
                else f'a {type(valid_hw).__name__}'
            )
            raise ValueError(f'valid_hw must be a tensor of integers, ({batch}, 2), got {found}')
        sizes = [(h, w) for h, w in valid_hw.tolist()]
        if not all(1 <= h <= height and 1 <= w <= width for h, w in sizes):
            raise ValueError(
                f'valid_hw must have heights from 1 to {height} and widths from 1 to '
                f'{width}, got {sizes}'
            )
        if all(size == (height, width) for size in sizes):
            return DenseLayout(batch, height, width)
        return PackedLayout.of_sizes(sizes)

    def _blocks(self) -> list[nn.ModuleList]:
        return cast('list[nn.ModuleList]', list(self.stages))

    def _run(self, block: nn.Module, x: Tensor, layout: Layout) -> Tensor:
        if self.with_cp and self.training and torch.is_grad_enabled():
            return checkpoint(block, x, layout, use_reentrant=False)
        return block(x, layout)

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        return [
            self.stem,
            *self.stages[: self.frozen_stages],
            *self.downsamples[: max(self.frozen_stages - 1, 0)],
            *self.stage_norms[: self.frozen_stages],
        ]

    def train(self, mode: bool = True) -> Self:
        """As torch's; frozen stages, and BatchNorms under ``norm_eval``, stay in eval mode."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def init_weights(self) -> None:
        """As MM's, with one difference: a ``Pretrained`` checkpoint has to fit.

        See :func:`~l2vit_mm.checkpoint.load_pretrained`. MM would only warn of parameters that it
        leaves unset.
        """
        init_cfg = self.init_cfg
        cfgs = [init_cfg] if isinstance(init_cfg, dict) else list(init_cfg or ())
        pretrained = [] if self.is_init else [cfg for cfg in cfgs if _is_pretrained(cfg)]
        self.init_cfg = [cfg for cfg in cfgs if not _is_pretrained(cfg)]
        super().init_weights()
        self.init_cfg = init_cfg
        for cfg in pretrained:
            load_pretrained(
                self, cfg['checkpoint'], cfg.get('map_location') or 'cpu', cfg.get('prefix')
            )

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """The depth of a parameter, for layer-wise learning rates.

        Args:
            param_name (str): the parameter's name in the whole model.
            prefix (str): what precedes the backbone's own names, for example ``'backbone.'``.

        Returns:
            tuple[int, int]: the depth (0 for the stem, then one per block; downsampling counts with
            the block after it, a stage's own norm with the block before; output norms and
            whatever is not the backbone's come last), and the number of depths.
        """
        depths = [len(blocks) for blocks in self._blocks()]
        num_layers = sum(depths) + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        kind, *rest = param_name[len(prefix) :].split('.')
        if kind == 'stem':
            return 0, num_layers
        if kind == 'downsamples':
            return sum(depths[: int(rest[0]) + 1]) + 1, num_layers
        if kind == 'stage_norms':
            return sum(depths[: int(rest[0]) + 1]), num_layers
        if kind == 'stages':
            return sum(depths[: int(rest[0])]) + int(rest[1]) + 1, num_layers
        return num_layers - 1, num_layers

    def is_output_norm(self, name: str) -> bool:
        """Whether a parameter is one of an output norm, built or not."""
        return name.split('.')[0] in {f'norm{index}' for index in range(self.num_stages)}

    def may_lack(self, name: str) -> bool:
        """Whether a parameter is one of an output norm or of a stage that may not be built."""
        part, _, rest = name.partition('.')
        number = rest.partition('.')[0]
        if part not in ('stages', 'stage_norms', 'downsamples') or not number.isdigit():
            return self.is_output_norm(name)
        stage = int(number) + (part == 'downsamples')
        return len(self.stages) <= stage < self.num_stages

    def published_only(self) -> dict[str, Tensor]:
        """What a published file holds, though it follows from the architecture or isn't used."""
        return {}


def _is_pretrained(cfg: dict[str, Any]) -> bool:
    kind = cfg['type']
    return (kind if isinstance(kind, str) else kind.__name__) in ('Pretrained', 'PretrainedInit')


def _check_keywords(cls: type, kwargs: dict[str, Any]) -> None:
    """Raises Python's own error for an unknown keyword argument, and says which one is near."""
    accepted = list(_keywords(cls))
    for name in kwargs:
        if name not in accepted:
            near = get_close_matches(name, accepted, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ''
            raise TypeError(
                f"{cls.__name__}.__init__() got an unexpected keyword argument '{name}'" + hint
            )


def _keywords(cls: type) -> Iterator[str]:
    """The arguments of a class, and of the base that it hands its ``**kwargs`` on to."""
    for base in cls.__mro__:
        if '__init__' in vars(base):
            parameters = inspect.signature(vars(base)['__init__']).parameters.values()
            yield from (p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
            if all(p.kind is not p.VAR_KEYWORD for p in parameters):
                return
