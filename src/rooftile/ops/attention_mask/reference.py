import torch
from torch import Tensor


def check_lengths(lengths: Tensor, keys: int) -> None:
    """A CPU can afford to look. On a GPU a length is taken for the nearest that there is."""
    if lengths.device.type == "cpu" and lengths.numel():
        low, high = (int(i) for i in lengths.aminmax())
        if low < 0 or high > keys:
            raise ValueError(f"attention_mask: a length is {low if low < 0 else high}, but there are {keys} keys")


def attention_mask(lengths: Tensor, queries: int, keys: int, causal: bool, repeats: int, to: str) -> Tensor:
    check_lengths(lengths, keys)
    i_s = torch.arange(keys, device=lengths.device)
    allowed = (i_s < lengths.repeat_interleave(repeats, 1)[:, :, None, None]).expand(-1, -1, queries, -1)
    if causal:
        allowed = allowed & (i_s <= torch.arange(queries, device=lengths.device)[:, None] + (keys - queries))
    if to == "bool":
        return allowed.contiguous()
    return torch.zeros(allowed.shape, dtype=getattr(torch, to), device=lengths.device).masked_fill_(~allowed, float("-inf"))
