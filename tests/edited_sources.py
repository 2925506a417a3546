"""Sources that look edited: what `record` has read of them is read anew."""

from rooftile.core import record


def forget() -> None:
    """What has been read of sources: they are about to look edited, or no longer."""
    for kept in (record.digest, record._essence_of, record._needed, record._imported, record._c_essence, record.reachable):
        kept.cache_clear()
