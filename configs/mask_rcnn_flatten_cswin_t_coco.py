# Mask R-CNN, FLatten-CSwin-T, COCO, 1x. Neither FLatten nor CSwin released detectors: scales,
# optimizer and drop path are those of Swin's release.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/mask_rcnn_flatten_cswin_t_coco.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/mask_rcnn_fpn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/coco_1x.py',
    '_base_/mmdet_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenCSWin', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
# As CSwin's segmentors: norms don't decay.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.0)}))
