# Mask R-CNN with narrow heads on generated shapes, from a backbone trained on shapes of another
# seed: minutes on two cores.
_base_ = 'demo_long_mask_rcnn_l2vit_pico_shapes.py'

model = dict(
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint='checkpoints/l2vit_pico_shapes.pth'))
)

data_root = 'data/shapes'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_validation.json')
test_evaluator = val_evaluator

max_iters = 1000
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=50, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=500))
