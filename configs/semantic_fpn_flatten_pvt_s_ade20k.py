# Semantic FPN, FLatten-PVT-S, ADE20K, 512 x 512, 80k.
_base_ = 'semantic_fpn_flatten_pvt_t_ade20k.py'

model = dict(backbone=dict(arch='small'))
