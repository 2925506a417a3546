"""Loss and gradient by the operators that make one of them, whichever kernels those choose. Floor: two reads and a write."""

import torch

from rooftile.core.kernel import OPS, Kernel
from rooftile.ops._shared.launch import off_gpu


def two_passes(logits, target, ignore_index, label_smoothing, z_loss, softcap):
    settings = (ignore_index, label_smoothing, z_loss, softcap)
    loss, *saved = OPS["cross_entropy"].launch(logits, target, *settings, "none")
    OPS["cross_entropy_overwrite"].launch(loss.new_ones((), dtype=torch.float32), logits, target, *saved, *settings)
    return loss


TWO_PASSES = Kernel("two_passes", two_passes, "the loss, then the gradient over the logits", lambda call: off_gpu(call["logits"]))
