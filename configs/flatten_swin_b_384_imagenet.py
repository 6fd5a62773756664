# FLatten-Swin-B at 384 x 384, ImageNet-1K. Trained as released, from weights of 224 x 224. To start
# from a published file: --cfg-options load_from=FILE
_base_ = [
    '_base_/models/classifier.py',
    '_base_/datasets/imagenet_384.py',
    '_base_/schedules/imagenet_finetune_30e.py',
    '_base_/mmpretrain_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenSwin', arch='base-384', drop_path_rate=0.5),
    head=dict(in_channels=1024),
)
optim_wrapper = dict(clip_grad=dict(max_norm=5.0))
