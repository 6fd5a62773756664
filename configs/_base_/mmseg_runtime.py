default_scope = 'mmseg'
custom_imports = dict(imports=['l2vit_mm'], allow_failed_imports=False)

default_hooks = dict(
    # A checkpoint that doesn't fit is an error.
    loading=dict(type='StrictLoadHook'),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=16000),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
visualizer = dict(
    type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer'
)
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=False)
# All training crops have one size: let cuDNN look for the fastest algorithm.
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
