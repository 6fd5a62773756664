"""Reports on what became of the tensors of a checkpoint."""

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
        loaded (list[str]): names, in the model, of the tensors from the checkpoint.
        missing (list[str]): names in the model that the checkpoint lacks.
        unexpected (list[str]): names in the checkpoint that the model lacks.
        mismatched (list[str]): names of tensors of another shape.
        resized (list[str]): names of tables that were resized to the model's map or window size.
        skipped (list[str]): names in the checkpoint that the model does not use: heads, and output
            norms and stages whose maps are not returned.
        initialized (list[str]): names that keep the model's initial values because the checkpoint
            may lack them: output norms.
        not_finite (list[str]): names of tensors with NaN or infinity.
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
        """Sets the lists that follow from two state dicts.

        Args:
            loaded (dict): what is to be loaded, with the model's names, those of ``initialized``
                included.
            own (dict): state dict of the model.

        Returns:
            LoadReport: this report.
        """
        self.missing = sorted(own.keys() - loaded.keys())
        self.unexpected = sorted(loaded.keys() - own.keys())
        self.mismatched = sorted(
            name
            for name in own.keys() & loaded.keys()
            if getattr(loaded[name], 'shape', None) != own[name].shape
        )
        self.loaded = [name for name in loaded if name not in self.initialized]
        return self

    @property
    def misfit(self) -> str:
        """What doesn't fit, as text; empty if everything fits."""
        kinds = {
            'missing': self.missing,
            'unexpected': self.unexpected,
            'of another shape': self.mismatched,
        }
        return '; '.join(f'{kind}: {", ".join(names)}' for kind, names in kinds.items() if names)

    def check_and_log(self, model: str, loaded: Mapping[str, Any], hint: str = '') -> None:
        """Logs what became of the tensors.

        Args:
            model (str): name of the model.
            loaded (dict): as in :meth:`compare`; looked through for what is not finite.
            hint (str): text that precedes the list in the error.

        Raises:
            CheckpointError: if something is missing, unexpected or of another shape; it is listed.
        """
        if self.misfit:
            raise CheckpointError(f'the checkpoint does not fit {model}: {hint}{self.misfit}')
        self.not_finite = not_finite(loaded)
        lines = [f'{model}: {len(self.loaded)} tensors loaded']
        for kind, names in (
            ('resized', self.resized),
            ('skipped', self.skipped),
            ('left as initialized', self.initialized),
            ('not finite', self.not_finite),
        ):
            if names:
                lines.append(f'  {kind}: {", ".join(names)}')
        level = logging.WARNING if self.not_finite else logging.INFO
        print_log('\n'.join(lines), logger='current', level=level)
