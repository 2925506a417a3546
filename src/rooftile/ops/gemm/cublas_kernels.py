"""The vendor's product, through torch.mm and torch.addmm: the figure every other kernel of this ladder stands beside."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.column_sum import column_sum
from rooftile.ops.gemm.reference import flat


def gemm(a, b, bias=None):
    if a.dim() == 2:
        return torch.mm(a, b) if bias is None else torch.addmm(bias.contiguous(), a, b)
    out = torch.mm(flat(a), b) if bias is None else torch.addmm(bias.contiguous(), flat(a), b)
    return out.view(*a.shape[:-1], b.shape[1])


def gemm_backward(dout, a, b, bias):
    g = flat(dout)
    return torch.mm(g, b.t()).view(a.shape), torch.mm(flat(a).t(), g), _dbias(g, bias)


def linear(x, weight, bias=None):
    # One addmm; of other inputs, and of a bias that is not dense, PyTorch rounds the sum before the bias.
    if (x.dim() == 2 or (x.dim() == 3 and x.is_contiguous())) and (bias is None or bias.is_contiguous()):
        return torch._C._nn.linear(x, weight, bias)
    return gemm(x, weight.t(), bias)


def linear_backward(dout, x, weight, bias):
    g = flat(dout)
    return torch.mm(g, weight).view(x.shape), torch.mm(g.t(), flat(x)), _dbias(g, bias)


def _dbias(g, bias):
    return g.new_empty(0) if bias is None else column_sum(g)  # a third faster than torch.sum at N = 768


def _refuse(call):
    first = next(iter(call.values()))
    return None if first.is_cuda else f"cuBLAS needs a CUDA device, the tensor is on {first.device}"


def _kernel(run):
    return Kernel("cublas", run, "the vendor's library, through torch.mm and torch.addmm", _refuse)


GEMM, GEMM_BACKWARD, LINEAR, LINEAR_BACKWARD = map(_kernel, (gemm, gemm_backward, linear, linear_backward))
