default_scope = 'mmpretrain'
custom_imports = dict(imports=['l2vit_mm'], allow_failed_imports=False)

default_hooks = dict(
    # What doesn't fit is an error; published files load as they are.
    loading=dict(type='StrictLoadHook'),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='VisualizationHook'),
)
visualizer = dict(
    type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer'
)
log_processor = dict(type='LogProcessor', window_size=100, by_epoch=True)
# All images have one size: let cuDNN look for the fastest algorithm.
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
