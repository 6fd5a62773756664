"""What runs a training beside the model: hooks, optimizers, strategies."""
