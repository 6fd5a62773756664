"""What the FLatten families (arXiv 2308.00442) have in common."""
from collections.abc import Sequence

from torch import nn

from l2vit_mm.backbones.base import (HierarchicalBackbone, check_heads, drop_path_rates,
                                     resolve_arch)
from l2vit_mm.backbones.loading import NameTable
from l2vit_mm.layers import TransformerBlock, build_attention


class FLattenBackbone(HierarchicalBackbone):
    """A vision transformer in which some blocks have linear attention. Base of the families.

    A family's class says what its stem, its downsampling and its attentions are, sets what these
    need, and calls :meth:`build`.

    Args:
        arch (str or dict): a name in ``arch_zoo``, or a dict with the same keys.
        in_channels (int): channels of the image.
        attn_types (str, optional): 'L' for linear attention, 'S' for the family's own softmax
            attention: one letter for all, one a stage, or one a block. None: as published.
        attention (str): what linear attention is: 'focused', or what the paper compares it with,
            'hydra', 'efficient', 'angular', 'enhanced', and 'relu', 'elu', 'softmax'
            (:mod:`l2vit_mm.layers.cores` has the equations).
        focusing_factor (float): the power of 'focused'.
        kernel_size (int): of the depthwise convolution of 'focused', 'angular' and 'enhanced'.
        pretrain_size (int, optional): side of the square images, in pixels, at whose maps position
            tables are learnt. At other sizes they are resized, those that are loaded too. None:
            the architecture's, 224 or 384.
        drop_path_rate (float): probability of dropping a branch in the last block; it rises
            linearly from 0 in the first.
        out_indices (Sequence[int]): stages whose maps are returned.
        frozen_stages (int): -1: nothing is frozen; 0: the stem; k: the stem, the first k stages
            and the downsampling before them. Output norms are never frozen.
        norm_eval (bool): keep BatchNorms in eval mode while training; these families have none.
        with_cp (bool): recompute blocks in backward instead of keeping their activations.
        output_norm (bool): LayerNorm on each returned map.
        pretrained (str, optional): deprecated; use ``init_cfg``.
        init_cfg (dict, optional): as in MM.

    Raises:
        TypeError: for an unknown argument; it names those there are.
        ValueError: for a value that is not accepted; it names the argument.
    """

    # Keys that an architecture may leave out.
    arch_defaults = dict(mlp_ratio=4., attn_types='LLSS', pretrain_size=224)
    norm_eps = 1e-5
    depthwise_mlp = False
    plain = False  # without downsampling

    # What published names of blocks have in common.
    published_names = NameTable(
        ('stages.#.#.norm1.', 'stages.#.#.attn_norm.'),
        ('stages.#.#.norm2.', 'stages.#.#.mlp_norm.'),
        ('stages.#.#.attn.scale$', 'stages.#.#.attn.core.scale$', 'c -> 1 1 c'),
        ('stages.#.#.attn.dwc.', 'stages.#.#.attn.core.dwc.'),
        ('stages.#.#.attn.positional_encoding$', 'stages.#.#.attn.core.position.table$',
         'h w c -> 1 (h w) c'),
        ('head.', None),
    )

    def __init__(self, arch: str | dict = 'tiny', in_channels: int = 3,
                 attn_types: str | None = None, attention: str = 'focused',
                 focusing_factor: float = 3, kernel_size: int = 5,
                 pretrain_size: int | None = None, drop_path_rate: float = 0.,
                 out_indices: Sequence[int] = (0, 1, 2, 3), frozen_stages: int = -1,
                 norm_eval: bool = False, with_cp: bool = False, output_norm: bool = True,
                 pretrained: str | None = None, init_cfg: dict | list | None = None,
                 **unknown) -> None:
        super().__init__(in_channels=in_channels, out_indices=out_indices,
                         frozen_stages=frozen_stages, norm_eval=norm_eval, with_cp=with_cp,
                         output_norm=output_norm, pretrained=pretrained, init_cfg=init_cfg,
                         unknown=unknown)
        self.settings = self.resolve(arch)
        self.channels, self.depths, self.num_heads = (
            self.settings[key] for key in ('channels', 'depths', 'num_heads'))
        check_heads(self.channels, self.num_heads)
        self.attn_types = split_attn_types(
            self.settings['attn_types'] if attn_types is None else attn_types, self.depths)
        self.attention = attention
        self.focusing_factor = focusing_factor
        self.kernel_size = kernel_size
        if pretrain_size is None:
            pretrain_size = self.settings['pretrain_size']
        if not isinstance(pretrain_size, int) or pretrain_size < 1:
            raise ValueError(f'pretrain_size is {pretrain_size!r}; accepted are 1 pixel or more')
        self.pretrain_size = pretrain_size
        self.drop_path_rate = drop_path_rate

    @classmethod
    def resolve(cls, arch: str | dict) -> dict:
        """The settings of an architecture, with one entry a stage where there are lists."""
        return resolve_arch(arch, cls.arch_zoo, cls.arch_defaults)

    def build(self) -> None:
        """Makes the modules."""
        rates = drop_path_rates(self.drop_path_rate, self.depths)
        ratios = self.settings.get('mlp_ratios') or (self.settings['mlp_ratio'],) * len(self.depths)
        self.stem = self.make_stem()
        self.downsamples = nn.ModuleList(
            self.make_downsample(stage) for stage in range(1, len(self.depths)) if not self.plain)
        self.stages = nn.ModuleList(
            nn.ModuleList(
                TransformerBlock(self.channels[stage], self.make_attention(stage, block), ratio,
                                 next(rates), self.norm_eps, self.depthwise_mlp)
                for block in range(depth))
            for stage, (depth, ratio) in enumerate(zip(self.depths, ratios)))
        self.finish(self.channels)

    def make_stem(self) -> nn.Module:
        """From an image to the tokens of the first stage."""
        raise NotImplementedError

    def make_downsample(self, stage: int) -> nn.Module:
        """From the tokens of the stage before to those of a stage."""
        raise NotImplementedError

    def make_attention(self, stage: int, block: int) -> nn.Module:
        """The attention of a block."""
        raise NotImplementedError

    def linear_core(self, stage: int, key_size: int) -> nn.Module:
        """The linear attention of a stage, with keys from maps of a side, when pretraining."""
        return build_attention(self.attention, self.channels[stage], self.num_heads[stage],
                               (key_size, key_size), self.focusing_factor, self.kernel_size)

    def map_size(self, stage: int) -> int:
        """Side of a stage's map when pretraining, in tokens."""
        stride = self.stem_stride * (1 if self.plain else 2**stage)
        return -(-self.pretrain_size // stride)

    @staticmethod
    def init_parameters(module: nn.Module) -> None:
        """Linear: truncated normal of 0.02, bias 0; convolutions as torch has them."""
        if isinstance(module, nn.Linear):
            HierarchicalBackbone.init_parameters(module)


def split_attn_types(attn_types: str, depths: Sequence[int]) -> list[str]:
    """One letter for all blocks, one a stage, or one a block, to a string a stage.

    Raises:
        ValueError: for other letters, or another number of them.
    """
    if not isinstance(attn_types, str) or not attn_types or set(attn_types) - {'L', 'S'}:
        raise ValueError(f"attn_types is {attn_types!r}; accepted are strings of 'L' and 'S'")
    if len(attn_types) == 1:
        attn_types *= len(depths)
    if len(attn_types) == len(depths):
        attn_types = ''.join(letter * depth for letter, depth in zip(attn_types, depths))
    if len(attn_types) != sum(depths):
        raise ValueError(f'attn_types is {attn_types!r}; accepted are one letter, one a stage '
                         f'({len(depths)}) or one a block ({sum(depths)})')
    letters = iter(attn_types)
    return [''.join(next(letters) for _ in range(depth)) for depth in depths]


def check_per_stage(name: str, values: Sequence, depths: Sequence[int], optional: bool) -> None:
    """Checks an argument of one size a stage.

    Args:
        name (str): the argument's name.
        values (Sequence): what it is.
        depths (Sequence[int]): of the stages.
        optional (bool): whether a size may be None.

    Raises:
        ValueError: unless there is a number from 1 for each stage.
    """
    if (not isinstance(values, Sequence) or len(values) != len(depths)
            or not all((optional and value is None) or (isinstance(value, int) and value >= 1)
                       for value in values)):
        raise ValueError(f'{name} is {values!r}; accepted are {len(depths)} numbers from 1, one a '
                         'stage' + (', or None among them' if optional else ''))
