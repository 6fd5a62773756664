import pytest
import torch
from torch import nn

from l2vit_mm.backbones import L2ViT
from tools.extract_backbone import main


def test_the_backbone_of_a_detector_initialises_another(tmp_path, capsys):
    detector = nn.Module()
    detector.backbone, detector.neck = L2ViT('pico'), nn.Conv2d(192, 64, 1)
    checkpoint, out = str(tmp_path / 'detector.pth'), str(tmp_path / 'backbone.pth')
    torch.save(dict(state_dict=detector.state_dict(), optimizer={}), checkpoint)
    main([checkpoint, out])
    assert out in capsys.readouterr().out

    other = L2ViT('pico', init_cfg=dict(type='Pretrained', checkpoint=out))
    other.init_weights()
    for (name, a), b in zip(other.state_dict().items(), detector.backbone.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6, msg=name)
        assert a.dtype == b.dtype


def test_a_checkpoint_without_a_backbone(tmp_path, capsys):
    path = str(tmp_path / 'neck.pth')
    torch.save(dict(state_dict=nn.Conv2d(3, 4, 1).state_dict()), path)
    with pytest.raises(SystemExit):
        main([path, str(tmp_path / 'out.pth')])
    assert f"{path} has no parameter whose name starts with 'backbone.'" in capsys.readouterr().err
