# L2ViT-B, ImageNet-1K. Also for the published file that comes from ImageNet-22K.
_base_ = 'l2vit_t_imagenet.py'

model = dict(backbone=dict(arch='base', drop_path_rate=0.3), head=dict(in_channels=1024))
