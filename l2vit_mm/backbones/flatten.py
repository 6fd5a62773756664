"""What the FLatten families (arXiv 2308.00442) have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import nn

from l2vit_mm.backbones.arch import drop_path_rates, resolve_arch
from l2vit_mm.backbones.base import BaseBackbone
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.layers import TransformerBlock, build_attention


class FLattenBackbone(BaseBackbone):
    """A vision transformer in which some blocks have linear attention. Base of the families.

    A family's class says what its stem, its downsampling and its attentions are. These methods are
    called while the parts are made, when the attributes below are set.

    Args:
        arch (str | dict): a name in ``arch_zoo``, or a dict with the same keys.
        in_channels (int): channels of the image.
        attn_types (str, optional): 'L' for linear attention, 'S' for the family's own softmax
            attention: one letter for all blocks, one per stage, or one per block. None: as
            published.
        attention (str): what linear attention is: 'focused', or what the paper compares it with,
            'hydra', 'efficient', 'angular', 'enhanced', and 'relu', 'elu', 'softmax'
            (:mod:`l2vit_mm.layers.cores` has the equations).
        focusing_factor (float): the power of 'focused'.
        kernel_size (int): of the depthwise convolution of 'focused', 'angular' and 'enhanced'.
        pretrain_size (int, optional): side of the square images, in pixels, at whose maps position
            tables are learned. At other sizes they are resized, those that are loaded too. None:
            the architecture's, 224 or 384.
        drop_path_rate (float): probability of dropping a branch in the last block; it rises
            linearly from 0 in the first.
        options (dict, optional): settings of the family that take the place of the architecture's,
            where they aren't None. For the families' classes.
        kwargs: ``out_indices`` (all stages unless given), ``frozen_stages`` (-1), ``norm_eval``,
            ``with_cp`` (both False), ``output_norm`` (True), ``pretrained``, ``init_cfg`` (both
            None): see :class:`~l2vit_mm.backbones.base.BaseBackbone`.

    Attributes:
        settings (dict): the architecture's settings and the options.
        channels, depths, num_heads (Sequence[int]): one entry per stage.
        attn_types (list[str]): one letter per block, one string per stage.

    Raises:
        TypeError: for an unknown argument; it names the one that is near.
        ValueError: for a value that is out of range; it names the argument.
    """

    # Keys that an architecture may leave out.
    arch_defaults: ClassVar[dict[str, Any]] = dict(
        mlp_ratio=4.0, attn_types='LLSS', pretrain_size=224
    )
    norm_eps = 1e-5
    depthwise_mlp = False
    block_types = (TransformerBlock,)

    # What published names of blocks have in common.
    published_names = NameTable(
        ('stages.#.#.norm1.', 'stages.#.#.attn_norm.'),
        ('stages.#.#.norm2.', 'stages.#.#.mlp_norm.'),
        ('stages.#.#.attn.scale$', 'stages.#.#.attn.core.scale$', 'c -> 1 1 c'),
        ('stages.#.#.attn.dwc.', 'stages.#.#.attn.core.dwc.'),
        (
            'stages.#.#.attn.positional_encoding$',
            'stages.#.#.attn.core.position.table$',
            'h w c -> 1 (h w) c',
        ),
        ('head.', None),
    )

    def __init__(
        self,
        arch: str | dict[str, Any],
        in_channels: int = 3,
        attn_types: str | None = None,
        attention: str = 'focused',
        focusing_factor: float = 3,
        kernel_size: int = 5,
        pretrain_size: int | None = None,
        drop_path_rate: float = 0.0,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # (A module takes plain values before its own __init__.)
        given = dict(options or {}, attn_types=attn_types, pretrain_size=pretrain_size)
        self.settings = self.resolve(arch) | {k: v for k, v in given.items() if v is not None}
        self.channels, self.depths, self.num_heads = (
            self.settings[key] for key in ('channels', 'depths', 'num_heads')
        )
        self.attn_types = split_attn_types(self.settings['attn_types'], self.depths)
        self.attention = attention
        self.focusing_factor = focusing_factor
        self.kernel_size = kernel_size
        self.pretrain_size = self.settings['pretrain_size']
        if not isinstance(self.pretrain_size, int) or self.pretrain_size < 1:
            raise ValueError(f'pretrain_size must be 1 pixel or more, got {self.pretrain_size!r}')
        self.check_options()
        stages = range(len(self.depths))
        super().__init__(
            in_channels=in_channels,
            channels=self.channels,
            strides=[self.stride(stage) for stage in stages],
            stem=self.make_stem(in_channels),
            downsamples=self.make_downsamples(),
            stages=self._make_stages(drop_path_rate),
            stage_norms=self.make_stage_norms(),
            **kwargs,
        )

    @classmethod
    def resolve(cls, arch: str | dict[str, Any]) -> dict[str, Any]:
        """The settings of an architecture, with one entry per stage where there are lists."""
        return resolve_arch(arch, cls.arch_zoo, cls.arch_defaults)

    def _make_stages(self, drop_path_rate: float) -> Iterator[list[nn.Module]]:
        rates = drop_path_rates(drop_path_rate, self.depths)
        ratios = self.settings.get('mlp_ratios') or (self.settings['mlp_ratio'],) * len(self.depths)
        return (
            [
                TransformerBlock(
                    self.channels[stage],
                    self.make_attention(stage, block),
                    ratio,
                    next(rates),
                    self.norm_eps,
                    self.depthwise_mlp,
                )
                for block in range(depth)
            ]
            for stage, (depth, ratio) in enumerate(zip(self.depths, ratios, strict=True))
        )

    def check_options(self) -> None:
        """Raises a ValueError for a setting of the family that is out of range."""

    def stride(self, stage: int) -> int:
        """Stride of a stage's map, in pixels."""
        return 4 * 2**stage

    @abstractmethod
    def make_stem(self, in_channels: int) -> nn.Module:
        """From an image to the tokens of the first stage."""

    @abstractmethod
    def make_downsamples(self) -> Iterator[nn.Module]:
        """From the tokens of each stage but the last to those of the next one."""

    @abstractmethod
    def make_attention(self, stage: int, block: int) -> nn.Module:
        """The attention of a block."""

    def make_stage_norms(self) -> Iterator[nn.Module]:
        """The norms that stages end in, where these are part of the model."""
        return iter(())

    def linear_core(self, stage: int, key_size: int) -> nn.Module:
        """The linear attention of a stage.

        Args:
            stage (int): the stage.
            key_size (int): side, in tokens, of the keys' map while pretraining.
        """
        return build_attention(
            self.attention,
            self.channels[stage],
            self.num_heads[stage],
            (key_size, key_size),
            self.focusing_factor,
            self.kernel_size,
        )

    def map_size(self, stage: int) -> int:
        """Side of a stage's map while pretraining, in tokens."""
        return -(-self.pretrain_size // self.stride(stage))

    @staticmethod
    def init_parameters(module: nn.Module) -> None:
        """Linear: truncated normal of 0.02, bias 0; convolutions as torch has them."""
        if isinstance(module, nn.Linear):
            BaseBackbone.init_parameters(module)


def split_attn_types(attn_types: str, depths: Sequence[int]) -> list[str]:
    """One letter for all blocks, one per stage, or one per block, to a string per stage.

    Raises:
        ValueError: for other letters, or another number of them.
    """
    if not isinstance(attn_types, str) or not attn_types or set(attn_types) - {'L', 'S'}:
        raise ValueError(f"attn_types must be a string of 'L' and 'S', got {attn_types!r}")
    if len(attn_types) == 1:
        attn_types *= len(depths)
    if len(attn_types) == len(depths):
        attn_types = ''.join(
            letter * depth for letter, depth in zip(attn_types, depths, strict=True)
        )
    if len(attn_types) != sum(depths):
        raise ValueError(
            f'attn_types must have one letter, one per stage ({len(depths)}) or one '
            f'per block ({sum(depths)}), got {attn_types!r}'
        )
    letters = iter(attn_types)
    return [''.join(next(letters) for _ in range(depth)) for depth in depths]


def check_per_stage(
    name: str, values: Sequence[int | None], depths: Sequence[int], optional: bool
) -> None:
    """Checks an argument that has one size per stage.

    Args:
        name (str): the argument's name.
        values (Sequence): its value.
        depths (Sequence[int]): blocks of each stage.
        optional (bool): whether a size may be None.

    Raises:
        ValueError: unless there is a number from 1 for each stage.
    """
    if (
        not isinstance(values, Sequence)
        or len(values) != len(depths)
        or not all(
            (optional and value is None) or (isinstance(value, int) and value >= 1)
            for value in values
        )
    ):
        raise ValueError(
            f'{name} must be {len(depths)} numbers from 1, one per stage'
            + (', or None among them' if optional else '')
            + f', got {values!r}'
        )
