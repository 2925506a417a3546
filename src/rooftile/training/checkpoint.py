"""Checkpoints that are whole or absent, and refuse to be misread.

A checkpoint is one file, `checkpoint-00000250.pt`, that `torch.load(weights_only=True)` opens. It is written beside its name,
synced to the disk and renamed; the two newest are kept, so there is always an older one while the newest is being replaced.
"""

import contextlib
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from rooftile.models.atomic import TEMPORARY, atomic_file
from rooftile.training.errors import TrainError

__all__ = ["checkpoints", "load_checkpoint", "newest", "restore", "save_checkpoint"]

KEPT = 2
NAME = re.compile(r"checkpoint-(\d{8})\.pt")
FORMAT = "rooftile-checkpoint-1"
# What decides a model's results and shows in the shape of no tensor.
SHAPELESS = (
    "n_head", "layer_norm_epsilon", "activation_function", "num_attention_heads", "rms_norm_eps", "rope_theta", "rope_scaling",
)  # fmt: skip


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first; read from their names alone."""
    if not folder.is_dir():
        return []
    return sorted((f for f in folder.iterdir() if NAME.fullmatch(f.name)), reverse=True)


def newest(folder: Path) -> Path:
    """The newest checkpoint of `folder`, or FileNotFoundError."""
    found = checkpoints(folder)
    if not found:
        raise FileNotFoundError(f"{folder} holds no checkpoint to resume from")
    return found[0]


def save_checkpoint(folder: Path, weights: dict, states: dict, *, step: int, **facts: object) -> Path:
    """Write the checkpoint of `step`, a model's state dict and its optimizer's, and drop all but the last two. `facts` are plain values stored
    beside them."""
    path = folder / f"checkpoint-{step:08d}.pt"
    state = {
        "format": FORMAT,
        "step": step,
        "model": weights,
        "optimizer": states,
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        **facts,
    }
    try:
        with atomic_file(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # torch's zip writer raises one of its own over that of a full disk
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        stands = "the checkpoint before it stands" if checkpoints(folder) else "and there is none before it"
        raise TrainError(f"{path} could not be written, {stands}: {reason}") from error
    found = checkpoints(folder)
    rewound = [f for f in found if f.name > path.name]  # the run was taken back to before them: they are no part of it now
    past = [f for f in found if f.name <= path.name][KEPT:]
    for old in rewound + past + list(folder.glob(f"{TEMPORARY}*")):  # the last: what a killed writer left
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def load_checkpoint(path: Path) -> dict:
    """Read a checkpoint to the host. TrainError when it is truncated or damaged, naming an older one that is whole."""
    if not path.is_file():
        raise FileNotFoundError(f"the checkpoint {path} does not exist")
    fault = _fault(path)
    if fault:
        raise TrainError(f"{path} {fault}{_offer(path)}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling raises whatever it likes
        raise TrainError(f"{path} is no checkpoint torch can read: {str(error).splitlines()[0]}{_offer(path)}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise TrainError(f"{path} was not written by rooftile train: it lacks the mark {FORMAT}")
    return state


def restore(path: Path, state: dict, model: nn.Module, optimizer: torch.optim.Optimizer, load: Callable[..., None]) -> None:
    """Put a loaded checkpoint into model and optimizer, by `load`, and into random states. TrainError naming both shapes when they differ. Of the optimizer
    its states alone: decay, betas and how it runs are knobs of this run."""
    stored, here = state["model"], model.state_dict()
    for name in sorted(stored.keys() | here.keys()):
        there, mine = (f"has shape {tuple(d[name].shape)}" if name in d else "is not" for d in (stored, here))
        if there != mine:
            raise TrainError(f"{path} is of another model: {name} {there} there and {mine} here")
    for name in SHAPELESS:
        there, mine = state["model_config"].get(name), getattr(model.config, name, None)
        if there != mine:
            raise TrainError(f"{path} is of another model: {name} is {there} there and {mine} here")
    theirs = state["optimizer"]
    groups = [{**own, "params": there["params"]} for own, there in zip(optimizer.param_groups, theirs["param_groups"])]
    load(model, optimizer, stored, {**theirs, "param_groups": groups})
    torch.set_rng_state(state["random"])
    if torch.cuda.is_available() and len(state["random_cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["random_cuda"])


def _fault(path: Path) -> str:
    """What is wrong with the file as a file, or "". A torch file is a zip with a checksum for every tensor: all are tested."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        return f"is damaged: the checksum of its part {broken} is wrong" if broken else ""
    except (zipfile.BadZipFile, EOFError):
        return f"is truncated or damaged: its {path.stat().st_size} bytes end before the index does"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _offer(path: Path) -> str:
    """The newest whole checkpoint older than `path`, as the end of a sentence."""
    for older in checkpoints(path.parent):
        if older.name < path.name and not _fault(older):
            step = int(NAME.fullmatch(older.name)[1])
            return f"; {older.name} of step {step} is whole: resume from it with resume_from={older}"
    return "; no older checkpoint stands beside it"
