# Semantic FPN, FLatten-PVT-S, ADE20K, 512 x 512, 80k.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/semantic_fpn_flatten_pvt_s_ade20k.py --backbone-checkpoint FILE
_base_ = 'semantic_fpn_flatten_pvt_t_ade20k.py'

model = dict(backbone=dict(arch='small'))
