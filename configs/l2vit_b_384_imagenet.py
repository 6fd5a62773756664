# L2ViT-B at 384 x 384, ImageNet-1K. Trained as released, from weights of ImageNet-22K; 1,024 images
# an iteration (8 x 64 x 2). To start from a published file: --cfg-options load_from=FILE
_base_ = [
    '_base_/models/classifier.py',
    '_base_/datasets/imagenet_384.py',
    '_base_/schedules/imagenet_finetune_30e.py',
    '_base_/mmpretrain_runtime.py',
]

model = dict(
    backbone=dict(type='L2ViT', arch='base-384', drop_path_rate=0.2), head=dict(in_channels=1024)
)
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=4e-5), accumulative_counts=2)
auto_scale_lr = dict(base_batch_size=512)
custom_hooks = [dict(type='EMAHook', momentum=1e-4, interval=2, update_buffers=True)]
