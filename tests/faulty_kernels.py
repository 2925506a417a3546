"""Kernels with a line changed, which a test must find out."""

from rooftile.cuda.source import Source


def saved(source, text, folder):
    path = folder / source.path.name
    path.write_text(text)
    return Source(path)


def rewritten(source, stands, instead, folder):
    """The kernel with other words where `stands` stands, which is once."""
    assert source.text.count(stands) == 1
    return saved(source, source.text.replace(stands, instead), folder)


def without(source, line, ordering, folder):
    """The kernel with one line that orders something, the index of which is given, taken away."""
    lines = source.text.splitlines()
    lines[line] = ordering.sub(";", lines[line], count=1)
    return saved(source, "\n".join(lines) + "\n", folder)
