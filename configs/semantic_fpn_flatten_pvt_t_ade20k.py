# Semantic FPN, FLatten-PVT-T, ADE20K, 512 x 512, 80k. FLatten released no segmentors: schedule,
# optimizer, drop path and test sizes are PVT's own.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/semantic_fpn_flatten_pvt_t_ade20k.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/semantic_fpn.py',
    '_base_/datasets/ade20k_aligned.py',
    '_base_/schedules/ade20k_80k.py',
    '_base_/mmseg_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenPVT', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
