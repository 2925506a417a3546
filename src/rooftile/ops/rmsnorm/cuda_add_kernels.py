"""add_rmsnorm in CUDA C++: a block a row with sums halved in shared memory, then rows in registers, 16 bytes an access."""

from rooftile.ops._shared.sum_norms import Norm, backward, backward_rungs, forward, forward_rungs


def add_rmsnorm(x, residual, weight, eps, offset, *, config=None, save=True):
    return forward(x, residual, weight, None, eps, Norm(layer=False, offset=offset), config, save)


def add_rmsnorm_backward(dout, dsum, sum, weight, rstd, offset, *, config=None):
    return backward(dout, dsum, sum, weight, None, None, rstd, Norm(layer=False, offset=offset), config)[:2]


FORWARD = forward_rungs(add_rmsnorm)
BACKWARD = backward_rungs(add_rmsnorm_backward)
