default_scope = 'mmdet'
custom_imports = dict(imports=['l2vit_mm'], allow_failed_imports=False)

default_hooks = dict(
    # A checkpoint that doesn't fit is an error.
    loading=dict(type='StrictLoadHook'),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=1),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='DetVisualizationHook'),
)
visualizer = dict(
    type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer'
)
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
