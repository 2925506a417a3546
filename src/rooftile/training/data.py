"""Batches as a pure function of (seed, step), so that resuming needs no stored stream of random numbers."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rooftile.training.config import TrainConfig
from rooftile.training.errors import TrainError
from rooftile.training.text import Tokenizer, check_utf8, read_text, tokenizer

__all__ = ["Data", "evaluation_batches", "load_data", "to_device", "training_batch", "windows"]

VALIDATION_PART = 0.1


@dataclass(frozen=True)
class Data:
    """The tokens, int32 on the host, split once: the last tenth (or one window, if that is more) validates."""

    train: Tensor
    validation: Tensor
    tokenizer: Tokenizer
    digest: int  # crc32 of all tokens: a resumed run must see the same text

    def check_vocabulary(self, vocab_size: int) -> None:
        """Every id has a row in the embedding; checked here once, so that no step has to."""
        largest = int(max(self.train.max(), self.validation.max()))
        if largest >= vocab_size:
            raise TrainError(f"the text holds token {largest}, the model's vocabulary has only {vocab_size}")


def load_data(config: TrainConfig) -> Data:
    """Read, tokenize and split the text of a run."""
    tokens_of = tokenizer(config.tokenizer)
    text = read_text(config.text, config.text_mb)
    if config.text and config.tokenizer != "bytes":  # the standard library is cut anywhere, in a letter too
        check_utf8(config.text, text)
    tokens = tokens_of.encode(text)
    window = config.context + 1  # T inputs and, one to the right, T targets
    if len(tokens) < 2 * window:
        raise TrainError(
            f"the text holds {len(tokens)} tokens, context {config.context} needs at least {2 * window}: "
            f"a window of {window} to train on and one to validate on"
        )
    kept = max(int(len(tokens) * VALIDATION_PART), window)
    everything = torch.from_numpy(tokens)
    return Data(everything[:-kept], everything[-kept:], tokens_of, zlib.crc32(tokens.tobytes()))


def windows(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """tokens [N], starts [B] -> inputs and targets, both [B, T] int64; the targets are the inputs one token later."""
    rows = tokens[starts[:, None] + torch.arange(context + 1)].long()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def training_batch(tokens: Tensor, context: int, rows: int, *, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """The batch of `step`: windows at uniform starts, drawn by Philox (Salmon et al., 2011) at key = seed, counter = step.

    The raw 64-bit stream is used because numpy fixes it for ever, which it does not do for `integers`; the remainder's bias
    is below 2^-30 for any text that fits in memory.
    """
    raw = np.random.Philox(key=seed, counter=[0, 0, 0, step]).random_raw(rows)
    starts = torch.from_numpy((raw % np.uint64(len(tokens) - context)).astype(np.int64))
    return windows(tokens, starts, context)


def evaluation_batches(tokens: Tensor, context: int, rows: int, batches: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Up to `batches` of `rows` windows that do not overlap, spread evenly over `tokens`: the same ones every time."""
    room = (len(tokens) - 1) // context
    count = min(room, rows * batches)
    starts = torch.arange(count) * room // count * context
    for part in starts.split(rows):
        yield windows(tokens, part, context)


def to_device(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Copies the host does not wait for: from pinned memory, on the current stream."""
    if device.type != "cuda":
        return tensors
    return tuple(t.pin_memory().to(device, non_blocking=True) for t in tensors)
