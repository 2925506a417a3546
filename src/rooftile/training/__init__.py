"""Data, loop, checkpoints: from a text to a trained model that survives being killed."""

from .config import TrainConfig
from .errors import TrainError
from .loop import TrainResult, train

__all__ = ["TrainConfig", "TrainError", "TrainResult", "train"]
