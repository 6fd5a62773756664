"""Checkpoints: names, loading with a report, conversion, and safe unpickling."""

from l2vit_mm.checkpoint.load import adapt, load_backbone, load_pretrained
from l2vit_mm.checkpoint.names import NameTable
from l2vit_mm.checkpoint.report import LoadReport
from l2vit_mm.checkpoint.safe_load import load
from l2vit_mm.checkpoint.state import CheckpointError

__all__ = [
    'CheckpointError',
    'LoadReport',
    'NameTable',
    'adapt',
    'load',
    'load_backbone',
    'load_pretrained',
]
