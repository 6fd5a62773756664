# FLatten-Swin-T, ImageNet-1K. Trained as released.
_base_ = [
    '_base_/models/classifier.py',
    '_base_/datasets/imagenet_warped.py',
    '_base_/schedules/imagenet_300e.py',
    '_base_/mmpretrain_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenSwin', arch='tiny', drop_path_rate=0.2), head=dict(in_channels=768)
)
optim_wrapper = dict(
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(
        custom_keys={'.bias.table': dict(decay_mult=0.0), '.core.scale': dict(decay_mult=1.0)}
    ),
)
