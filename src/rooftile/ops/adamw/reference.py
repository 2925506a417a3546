from torch import Tensor

from rooftile.ops._shared.reference import wide


def adamw(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], hyper: Tensor,
          beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:  # fmt: skip
    for p, g, m, v, (lr, decay, correction1, correction2) in zip(params, grads, exp_avgs, exp_avg_sqs, hyper.unbind(0)):
        gw = wide(g)
        mw = beta1 * wide(m) + (1 - beta1) * gw
        vw = beta2 * wide(v) + (1 - beta2) * gw * gw
        pw = wide(p) * (1 - lr * decay)
        p.copy_(pw - lr / correction1 * mw / ((vw / correction2).sqrt() + eps))
        m.copy_(mw)
        v.copy_(vw)
