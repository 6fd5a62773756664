# COCO 2017 boxes, otherwise as coco_instance_single_scale.py.
_base_ = 'coco_instance_single_scale.py'

train_dataloader = _base_.train_dataloader
train_dataloader.dataset.pipeline[1].with_mask = False
val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline[2].with_mask = False
test_dataloader = val_dataloader

val_evaluator = dict(metric=['bbox'])
test_evaluator = val_evaluator
