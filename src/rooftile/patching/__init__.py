"""The operators put into models that people already have."""

from rooftile.patching.patch import patch
from rooftile.patching.report import Entry, Report

__all__ = ["Entry", "Report", "patch"]
