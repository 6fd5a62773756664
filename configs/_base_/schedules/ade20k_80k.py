# 80,000 iterations of AdamW, 16 images an iteration (8 x 2), as for PVT's Semantic FPN.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=80000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='PolyLR', eta_min=0.0, power=0.9, by_epoch=False, begin=0, end=80000),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
