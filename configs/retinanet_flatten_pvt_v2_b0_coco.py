# RetinaNet, FLatten-PVTv2-B0, COCO, 1x. FLatten released no detectors: one scale, optimizer and
# drop path are PVTv2's own, which are PVT's.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/retinanet_flatten_pvt_v2_b0_coco.py --backbone-checkpoint FILE
_base_ = 'retinanet_flatten_pvt_t_coco.py'

model = dict(backbone=dict(type='FLattenPVTv2', arch='b0'), neck=dict(in_channels=[64, 160, 256]))
