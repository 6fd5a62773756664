# UPerNet, FLatten-CSwin-T, ADE20K, 512 x 512, 160k. FLatten released no segmentors: optimizer and
# drop path are CSwin's own.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/upernet_flatten_cswin_t_ade20k.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/ade20k_160k.py',
    '_base_/mmseg_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenCSWin', arch='tiny', drop_path_rate=0.3),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256),
)
# As CSwin's: norms don't decay.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.0)}))
