"""Published ImageNet files in mmpretrain's classifiers."""
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS

from l2vit_mm.backbones.loading import backbone_part, misfits, unwrap


@HOOKS.register_module()
class PublishedClassifierHook(Hook):
    """Lets a classifier load a published file as it is, by ``load_from`` or tools/test.py.

    Such a file is a state dict, or holds one as ``model``, with the names of the published code:
    those of the backbone without prefix, which it renames itself, and ``head.weight`` and
    ``head.bias``. Files that were trained here are left alone.

    Raises:
        RuntimeError: if the file doesn't fit the classifier; it lists what is missing,
            unknown or of another shape.
    """

    priority = 'VERY_HIGH'  # before hooks that look for checkpoint['state_dict']

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        """Puts the classifier's own names into ``checkpoint['state_dict']``."""
        published = unwrap(checkpoint)
        if backbone_part(published)[0]:
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        backbone = {key: value for key, value in published.items() if not key.startswith('head.')}
        adapted, _ = model.backbone.adapt(backbone)
        state = {f'backbone.{key}': value for key, value in adapted.items()}
        state.update((key.replace('head.', 'head.fc.', 1), value)
                     for key, value in published.items() if key.startswith('head.'))
        own = {key: value for key, value in model.state_dict().items()
               if key.startswith(('backbone.', 'head.'))}
        wrong = misfits(state, own)
        if wrong:
            raise RuntimeError('the checkpoint does not fit the classifier on '
                               f'{type(model.backbone).__name__}: {wrong}')
        checkpoint['state_dict'] = state
