# 30 epochs of AdamW from the weights of a smaller size, 256 images an iteration (8 x 32).
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=30, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=1e-2, begin=5, end=30, convert_to_iter_based=True),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-5, betas=(0.9, 0.999), weight_decay=1e-8),
)
auto_scale_lr = dict(enable=False, base_batch_size=256)
