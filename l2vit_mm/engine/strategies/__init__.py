"""Training strategies. Not imported with l2vit_mm, as mmengine's are in a private module of it: a
config that has one names this package among its ``custom_imports``."""

from l2vit_mm.engine.strategies.sharded import ShardedStrategy, backbone_blocks

__all__ = ['ShardedStrategy', 'backbone_blocks']
