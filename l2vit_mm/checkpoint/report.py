"""What became of the tensors of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmengine.logging import print_log

from l2vit_mm.checkpoint.state import CheckpointError, not_finite


@dataclass
class LoadReport:
    """What became of the tensors of a checkpoint that was loaded into a model.

    Attributes:
        loaded (list[str]): names, the model's, of what the checkpoint has for it.
        missing (list[str]): the model's names that the checkpoint lacks.
        unexpected (list[str]): the checkpoint's names that the model lacks.
        mismatched (list[str]): names of tensors of another shape.
        resized (list[str]): names of tables that were resized to the model's map or window sizes.
        skipped (list[str]): the checkpoint's names that such a model has no use for: heads, output
            norms and stages that are not returned.
        initialized (list[str]): names that keep the model's own values, as the checkpoint may lack
            them: output norms.
        not_finite (list[str]): names of tensors that hold NaN or infinity.
    """

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    initialized: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)

    def compare(self, loaded: Mapping[str, Any], own: Mapping[str, Any]) -> LoadReport:
        """Fills in all that follows from two state dicts.

        Args:
            loaded (dict): name, the model's, to tensor; with those of ``initialized``.
            own (dict): the model's state dict.

        Returns:
            LoadReport: itself.
        """
        self.missing = sorted(own.keys() - loaded.keys())
        self.unexpected = sorted(loaded.keys() - own.keys())
        self.mismatched = sorted(name for name in own.keys() & loaded.keys()
                                 if getattr(loaded[name], 'shape', None) != own[name].shape)
        self.loaded = [name for name in loaded if name not in self.initialized]
        self.not_finite = not_finite(loaded)
        return self

    @property
    def misfit(self) -> str:
        """What doesn't fit, as text; empty if all does."""
        kinds = {'missing': self.missing, 'unexpected': self.unexpected,
                 'of another shape': self.mismatched}
        return '; '.join(f'{kind}: {", ".join(names)}' for kind, names in kinds.items() if names)

    def check_and_log(self, model: str, hint: str = '') -> None:
        """Logs what became of the tensors.

        Args:
            model (str): the model's name.
            hint (str): what the error says first.

        Raises:
            CheckpointError: if something is missing, unexpected or of another shape; it lists it.
        """
        if self.misfit:
            raise CheckpointError(f'the checkpoint does not fit {model}: {hint}{self.misfit}')
        lines = [f'{model}: {len(self.loaded)} tensors loaded']
        for kind, names in (('resized', self.resized), ('skipped', self.skipped),
                            ('left as initialized', self.initialized),
                            ('not finite', self.not_finite)):
            if names:
                lines.append(f'  {kind}: {", ".join(names)}')
        level = logging.WARNING if self.not_finite else logging.INFO
        print_log('\n'.join(lines), logger='current', level=level)
