import pytest
import torch
from torch import nn

from l2vit_mm.backbones import L2ViT
from l2vit_mm.engine import launch
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


@pytest.mark.parametrize('content', [dict(state_dict=nn.Conv2d(3, 4, 1).state_dict()),
                                     nn.Conv2d(3, 4, 1).state_dict()])
def test_a_checkpoint_without_a_backbone(content, tmp_path, capsys):
    path, out = tmp_path / 'neck.pth', tmp_path / 'out.pth'
    torch.save(content, path)
    with pytest.raises(SystemExit) as exit_:
        launch.run(lambda: main([str(path), str(out)]))
    assert exit_.value.code == 2 and not out.exists()
    assert f"{path} has no parameter whose name starts with 'backbone.'" in capsys.readouterr().err


def test_a_checkpoint_that_does_not_exist(tmp_path, capsys):
    path = tmp_path / 'none.pth'
    with pytest.raises(SystemExit) as exit_:
        launch.run(lambda: main([str(path), str(tmp_path / 'out.pth')]))
    error, = capsys.readouterr().err.splitlines()
    assert exit_.value.code == 2 and str(path) in error
