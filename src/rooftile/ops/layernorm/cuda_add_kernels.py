"""add_layernorm in CUDA C++: a block a row with sums halved in shared memory, then rows in registers, 16 bytes an access."""

from rooftile.ops._shared.sum_norms import Norm, backward, backward_rungs, forward, forward_rungs

LAYER = Norm(layer=True)


def add_layernorm(x, residual, weight, bias, eps, *, config=None, save=True):
    return forward(x, residual, weight, bias, eps, LAYER, config, save)


def add_layernorm_backward(dout, dsum, sum, weight, bias, mean, rstd, *, config=None):
    return backward(dout, dsum, sum, weight, bias, mean, rstd, LAYER, config)


FORWARD = forward_rungs(add_layernorm)
BACKWARD = backward_rungs(add_layernorm_backward)
