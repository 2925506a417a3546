"""Data, loop, checkpoints: from a text to a trained model that survives being killed."""

from rooftile.training.config import TrainConfig
from rooftile.training.errors import TrainError
from rooftile.training.loop import TrainResult, train
from rooftile.training.signals import Interrupted, Terminated

__all__ = ["Interrupted", "Terminated", "TrainConfig", "TrainError", "TrainResult", "train"]
