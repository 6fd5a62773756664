"""Published ImageNet files in mmpretrain's classifiers."""
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS


@HOOKS.register_module()
class PublishedClassifierHook(Hook):
    """Lets a classifier load a published file as it is, by ``load_from`` or tools/test.py.

    Such a file is a state dict, or holds one as ``model``, with the names of the published code:
    those of the backbone without prefix, which it renames itself, and ``head.weight`` and
    ``head.bias``. Files that were trained here are left alone.

    Raises:
        RuntimeError: if the file doesn't fit the classifier; it lists what is missing or unknown.
    """

    priority = 'VERY_HIGH'  # before hooks that look for checkpoint['state_dict']

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        """Puts the classifier's own names into ``checkpoint['state_dict']``."""
        published = checkpoint.get('state_dict', checkpoint.get('model', checkpoint))
        published = {key.removeprefix('module.'): value for key, value in published.items()}
        if any(key.startswith('backbone.') for key in published):
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        state, found = {}, set()
        for key, value in published.items():
            if key.startswith('head.'):
                state[f'head.fc.{key.removeprefix("head.")}'] = value
            else:
                state[f'backbone.{key}'] = value
                name = model.backbone.rename_published(key)
                if name is not None:
                    found.add(f'backbone.{name}')
        found.update(key for key in state if key.startswith('head.fc.'))
        own = {key for key in model.state_dict() if key.startswith(('backbone.', 'head.'))}
        if found != own:
            raise RuntimeError(f'the checkpoint does not fit the classifier on '
                               f'{type(model.backbone).__name__}: missing: {_list(own - found)}; '
                               f'unknown: {_list(found - own)}')
        checkpoint['state_dict'] = state


def _list(names: set[str]) -> str:
    return ', '.join(sorted(names)) or 'none'
