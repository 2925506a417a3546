"""Every kernel of the perceptron's forward pass, also for a branch that goes into a stream: then its second layer is linear_add's product.

It stands beside the kernels and not in their files, so that what was measured of their gradients, and of the gate, still speaks of them.
"""

from dataclasses import replace

import rooftile.ops.linear_add.api  # noqa: F401  fills OPS
from rooftile.core.kernel import OPS
from rooftile.ops.mlp import composed_kernels, cublaslt_kernels, cuda_kernels


def streamed(kernel):
    """The same kernel. With a residual it makes the first layer, and nothing by a second one of no rows."""

    def run(x, weight1, bias1, weight2, bias2, approximate, keep, residual=None, **config):
        if residual is None:
            return kernel.run(x, weight1, bias1, weight2, bias2, approximate, keep, **config)
        _, kept, h = kernel.run(x, weight1, bias1, weight2[:0], None, approximate, keep, **config)
        return OPS["linear_add"].launch(h, weight2, residual, bias2), kept, h

    return replace(kernel, run=run)


FORWARD = tuple(map(streamed, (*cuda_kernels.FORWARD, *cublaslt_kernels.FORWARD, *composed_kernels.FORWARD)))
