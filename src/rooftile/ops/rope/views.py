"""How the kernels see heads: neighbouring elements along the last axis, any other strides."""


def dense(x):
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def scattered(call):
    """Why q or k cannot be written where they lie, or None."""
    for name in ("q", "k"):
        x = call[name]
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            return f"the last axis of {name} has stride {x.stride(-1)}, and it writes in place where that is 1"
    return None
