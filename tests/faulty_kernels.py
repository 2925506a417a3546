"""Kernels with a line changed, which a test must find out."""

import re

import pytest

from rooftile.cuda.source import Source, read

# What orders threads, copies and products.
ORDERING = re.compile(
    r"__sync(threads|warp)\(\);|mbarrier_(wait|arrive|arrive_expect)\(.*?\);|fence_async\(\);|(bulk|copy)_(commit|wait|wait_read)(<[^(]*>)?\(\);|"
    r"barrier_sync\(.*?\);|(producer|consumer)_\w+\(.*\);|wgmma_(commit|wait<.>)\(.*?\);|(?<= )(wgmma_)?fence\(d.*\);"
)


def some(faults, *now):
    """For parametrize: those that are seen in every run of the tests; the others take their time in the thorough one."""
    assert {*now} <= {*faults}
    return [pytest.param(f, marks=() if f in now else pytest.mark.thorough) for f in faults]


def saved(source, text, folder, path=None):
    """The kernel with another text of this one of its files: its own, or a header's."""
    own = folder / source.path.name
    own.write_text(source.text)
    place = own if path in (None, source.path) else folder / "rooftile" / path.name
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    return Source(own)


def rewritten(source, stands, instead, folder):
    """The kernel with other words where `stands` stands, which is once: in its own file, or in a header if not there."""
    texts = {path: read(path) for path in source.files}
    found = [source.path] if stands in source.text else [path for path, text in texts.items() if stands in text]
    assert len(found) == 1 and texts[found[0]].count(stands) == 1, found
    return saved(source, texts[found[0]].replace(stands, instead), folder, found[0])


def orders(text, *free):
    """The indices of the lines that order something, but for those with any of these words."""
    known = ("ROOFTILE_DEVICE", *free)
    return [
        i
        for i, line in enumerate(text.splitlines())
        if ORDERING.search(line) and not line.startswith("//") and not any(words in line for words in known)
    ]


def without(source, line, folder, path=None):
    """The kernel with one line that orders something, the index of which is given, taken away: of its own file, or of a header."""
    lines = read(path or source.path).splitlines()
    lines[line] = ORDERING.sub(";", lines[line], count=1)
    return saved(source, "\n".join(lines) + "\n", folder, path)
