# UPerNet, FLatten-Swin-T, ADE20K, 512 x 512, 160k. FLatten released no segmentors: optimizer and
# drop path are Swin's own.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/upernet_flatten_swin_t_ade20k.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/ade20k_160k.py',
    '_base_/mmseg_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenSwin', arch='tiny', drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
# As Swin's: neither bias tables nor norms decay.
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={'.bias.table': dict(decay_mult=0.0), 'norm': dict(decay_mult=0.0)}
    )
)
