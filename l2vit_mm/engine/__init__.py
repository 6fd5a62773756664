"""Parts of a training run beside the model: hooks, optimizers, strategies."""
