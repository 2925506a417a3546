"""gelu and its gradient in the epilogues of the vendor's products: pre is written and not read back, dh is neither.

What it takes off `composed`, in bytes for each element of [M, F] and in 16 bits: forward 2 of 8, backward 4 of 16. Bias gradients stay sums of
columns: asked on an H200 at GPT-2's shape, the library's own epilogues for them cost more, DGELU_BGRAD three times the whole of DGELU.

ALGO is which of the heuristic's answers computes the first product, or backward dh: the one that cublaslt.py prefers, or by its rank. `rooftile
tune` asks for all of them, for any shape.
"""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda import cublaslt
from rooftile.ops.mlp import composed_kernels as composed
from rooftile.ops.mlp.refusals import not_whole, whole


def mlp(x, weight1, bias1, weight2, bias2, approximate, keep, *, config):
    def activated(rows, weight, bias):
        pre = rows.new_empty(rows.shape[0], weight.shape[0])
        h = torch.empty_like(pre)
        bias = None if bias is None else bias.contiguous()
        cublaslt.product(h, whole(rows), whole(weight).t(), "gelu", pre, bias, algorithm=config["ALGO"])
        return pre, h

    return composed.forward(x, weight1, bias1, weight2, bias2, activated)


def mlp_backward(dout, x, weight1, bias1, weight2, bias2, kept, h, approximate, keep, *, config):
    def sloped(g, weight, pre, bias):
        dpre = g.new_empty(pre.shape)
        cublaslt.product(dpre, whole(g), whole(weight), "gelu_backward", whole(pre), algorithm=config["ALGO"])
        return dpre, composed.dbias(dpre, bias)

    return composed.backward(dout, x, weight1, bias1, weight2, bias2, kept, h, sloped)


def _refuse(names, rows, weight):
    """For the product that reads `names`, of these rows and this weight."""

    def refuse(call):
        x = call[rows]
        if (why := cublaslt.off_gpu(x)) is not None:
            return why
        if x.dtype == torch.float32:
            return f"{rows} is float32, cuBLASLt's gelu is for float16 and bfloat16"
        if x.dtype == torch.float16 and rows == "dout":
            return "dout is float16, and cuBLASLt's gradient of gelu is up to 1.5e-5 off, near -3.5, where 16 bits can say 2e-6"
        if call["approximate"] != "tanh":
            return f"approximate is {call['approximate']!r}, cuBLASLt's gelu is the tanh form"
        if call["keep"] != "pre":
            return f"keep is {call['keep']!r}, cuBLASLt's gelu keeps what it is given, 'pre'"
        return not_whole(call, names, rows, weight)

    return refuse


CONFIGS = tuple({"ALGO": i} for i in (cublaslt.PREFERRED, *range(cublaslt.OFFERED)))


def _kernel(run, idea, refuse):
    return (Kernel("cublaslt", run, idea, refuse, CONFIGS),)


FORWARD = _kernel(mlp, "gelu in the first product's epilogue", _refuse(("x", "weight1", "bias1"), "x", "weight1"))
BACKWARD = _kernel(mlp_backward, "gelu's gradient in the epilogue of dh's product", _refuse(("dout", "weight2", "kept"), "dout", "weight2"))
