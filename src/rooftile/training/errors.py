"""What training refuses: one sentence each, with both numbers where there are two."""

__all__ = ["TrainError"]


class TrainError(ValueError):
    """A run that cannot start or go on, for a reason its owner can mend. The command line prints it and exits with 2."""
