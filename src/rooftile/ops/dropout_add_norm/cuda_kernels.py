"""Dropout, residual and norm in CUDA C++: a block a row with sums halved in shared memory, then rows in registers, 16 bytes an access."""

from rooftile.ops._shared.sum_norms import Norm, backward, backward_rungs, forward, forward_rungs


def dropout_add_norm(x, residual, weight, bias, seed, p, eps, norm, *, config=None, save=True):
    return forward(x, residual, weight, bias, eps, Norm(norm == "layer", seed=seed, p=p), config, save)


def dropout_add_norm_backward(dout, dsum, sum, weight, bias, mean, rstd, seed, p, norm, *, config=None):
    return backward(dout, dsum, sum, weight, bias, mean, rstd, Norm(norm == "layer", seed=seed, p=p), config)


FORWARD = forward_rungs(dropout_add_norm)
BACKWARD = backward_rungs(dropout_add_norm_backward)
