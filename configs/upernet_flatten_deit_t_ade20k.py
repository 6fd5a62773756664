# UPerNet on a simple feature pyramid, FLatten-DeiT-T, ADE20K, 512 x 512, 160k. FLatten released no
# segmentors: optimizer and drop path are those of MMSegmentation's UPerNet on DeiT-S.
# No weights of FLatten-DeiT were released: it starts from random ones, or from your own file with
#   python tools/train.py configs/upernet_flatten_deit_t_ade20k.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/ade20k_160k.py',
    '_base_/mmseg_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenDeiT', arch='tiny', drop_path_rate=0.1),
    neck=dict(type='SimpleFeaturePyramid', in_channels=192, out_channels=256),
    decode_head=dict(in_channels=[256, 256, 256, 256]),
    auxiliary_head=dict(in_channels=256),
)
# As DeiT's: neither the position embedding nor norms decay.
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={'stem.position': dict(decay_mult=0.0), 'norm': dict(decay_mult=0.0)}
    )
)
