# L2ViT-S, ImageNet-1K.
_base_ = 'l2vit_t_imagenet.py'

model = dict(backbone=dict(arch='small', drop_path_rate=0.2))
