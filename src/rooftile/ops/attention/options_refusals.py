"""What the kernels of windows and of packed sequences decline."""

WIDEST_CAP = 256.0  # beyond it tanh made of an exponential, 2^-22 off absolutely, moves scores by more than 6e-5


def too_small_in_a_window(call):
    """What `too_small` says of the plain operator, with a window, or of packed sequences, which are taken to be as long as the longest: nobody knows here."""
    q = call["q"]
    half = (call["max_seqlen_k"] if q.dim() == 3 else call["k"].shape[1]) / 2  # so many keys lie on either side of a query, on average
    operations = 4 * q.numel() * (1 + sum(half if call[n] < 0 else min(call[n], half) for n in ("left", "right")))
    return None if operations >= 4e9 else f"{operations:.1e} operations are done before its host code is; it pays from 4e9"
