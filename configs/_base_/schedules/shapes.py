# AdamW from 1e-3 along a cosine, for small models and minutes of training. The experiment sets the
# number of iterations: train_cfg.max_iters and the second scheduler's.
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    # One fused step: a loop over 230 small parameters costs more than the arithmetic.
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, fused=True),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
