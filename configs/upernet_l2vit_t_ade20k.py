# UPerNet, L2ViT-T, ADE20K, 512 x 512, 160k.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/upernet_l2vit_t_ade20k.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/ade20k_160k.py',
    '_base_/mmseg_runtime.py',
]

model = dict(
    backbone=dict(type='L2ViT', arch='tiny', drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
