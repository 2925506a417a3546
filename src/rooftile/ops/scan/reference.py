import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def scan(x: Tensor, exclusive: bool = False, reverse: bool = False) -> Tensor:
    a = wide(x) if x.is_floating_point() else x.long()
    a = a.flip(-1) if reverse else a
    s = a.cumsum(-1)
    if exclusive:
        s = torch.cat([torch.zeros_like(a[..., :1]), s[..., :-1]], -1)
    return (s.flip(-1) if reverse else s).to(x.dtype)


def scan_backward(dout: Tensor, exclusive: bool = False, reverse: bool = False) -> Tensor:
    return scan(dout, exclusive, not reverse)
