# 300 epochs of AdamW, 1,024 images an iteration (8 x 128), 20 of them of warming up.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, begin=0, end=20, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR', eta_min_ratio=1e-2, begin=20, end=300, convert_to_iter_based=True
    ),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    # Nothing with one dimension decays; the experiment names what has more where it was published.
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)
auto_scale_lr = dict(enable=False, base_batch_size=1024)
