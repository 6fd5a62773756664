"""Training strategies.

Not imported with l2vit_mm, as they need a private module of mmengine: a config that uses one lists
``'l2vit_mm.engine.strategies'`` in its ``custom_imports``.
"""

from l2vit_mm.engine.strategies.sharded import ShardedStrategy, backbone_blocks

__all__ = ['ShardedStrategy', 'backbone_blocks']
