"""add_layernorm in CUDA C++: a block a row with sums halved in shared memory, then rows in registers, 16 bytes an access."""

from dataclasses import replace

from rooftile.ops._shared.sum_norms import Norm, backward, backward_rungs, forward, forward_rungs

LAYER = Norm(layer=True)


def add_layernorm(x, residual, weight, bias, eps, x_bias, *, config=None, save=True):
    return forward(x, residual, weight, bias, eps, LAYER, config, save)


def add_layernorm_backward(dout, dsum, sum, weight, bias, mean, rstd, x_bias, *, config=None):
    return (*backward(dout, dsum, sum, weight, bias, mean, rstd, LAYER, config), dout.new_empty(0))


def complete(kernel):
    """The same kernel, for an x that lacks nothing: the sums of a third gradient would take registers that rows live in here."""

    def refuse(call):
        return kernel.refuse(call) if call["x_bias"] is None else "x_bias is given, which Triton's kernels add, and none of these"

    return replace(kernel, refuse=refuse)


FORWARD = tuple(map(complete, forward_rungs(add_layernorm)))
BACKWARD = tuple(map(complete, backward_rungs(add_layernorm_backward)))
