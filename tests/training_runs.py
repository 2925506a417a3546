"""Small runs of training, and the series they leave behind."""

import os
from pathlib import Path

from rooftile.training import TrainConfig, train
from rooftile.training.metrics import read_metrics

VERSE = b"the quick brown fox jumps over the lazy dog; 0123456789 (again and again).\n"
TINY = {
    "kernels": "torch", "device": "cpu", "n_layer": 1, "n_head": 2, "n_embd": 16, "context": 16, "batch_size": 4, "steps": 6,
    "decay_steps": 6, "warmup": 2, "eval_every": 3, "save_every": 3, "log_every": 2, "eval_batches": 2, "sample_tokens": 8,
}  # fmt: skip

MASTER = {"kernels": "rooftile", "dtype": "bfloat16", "weights": "master"}


def maker(folder):
    """Small runs over one text: tiny(out, **changes) -> TrainConfig."""
    mine = folder / f"text.{os.getpid()}"  # another process of the same run may be reading it
    mine.write_bytes(VERSE * 40)
    mine.replace(folder / "text")
    return lambda out, **changes: TrainConfig(**{**TINY, "text": str(folder / "text"), "out": str(folder / out), **changes})


def series(folder):
    """metrics.jsonl without what a clock or the allocator decides."""
    rows = read_metrics(Path(folder) / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in ("tokens_per_s", "memory_bytes")} for row in rows]


def run(config):
    return train(config, progress=False)
