"""The step and the norm of its gradients, one after the other: two reads of the gradients, for whoever cannot sum while it updates."""

from rooftile.core.kernel import OPS, Kernel


def adamw_measured(params, grads, *rest):
    norm = OPS["grad_norm"].launch(grads)
    OPS["adamw"].launch(params, grads, *rest)
    return norm


def _refuse(call):
    """What the operators it calls would: of blanks, in which all is given."""
    return "masters and a seed are both given" if call["masters"] and call["seed"] is not None else None


FORWARD = (Kernel("composed", adamw_measured, "the norm's own kernels, then the step's", _refuse),)
