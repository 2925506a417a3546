"""Where text comes from and how it becomes tokens."""

import hashlib
import os
import sysconfig
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rooftile.core.record import cache_folder
from rooftile.models.atomic import atomic_file
from rooftile.training.errors import TrainError

__all__ = ["Tokenizer", "check_utf8", "read_text", "tokenizer"]

TINYSHAKESPEARE = "tinyshakespeare"
TINYSHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
LARGEST_FILE = 100_000  # bytes; what is larger in the standard library is mostly generated tables


@dataclass(frozen=True)
class Tokenizer:
    """text bytes -> ids below `vocab_size`, and back to a readable string."""

    name: str
    vocab_size: int
    encode: Callable[[bytes], np.ndarray]
    decode: Callable[[list[int]], str]


def tokenizer(name: str) -> Tokenizer:
    """`bytes` (256 ids) or `gpt2` (50257 ids, through tiktoken)."""
    if name == "bytes":
        return Tokenizer("bytes", 256, _bytes_encode, lambda ids: bytes(i for i in ids if i < 256).decode("utf-8", errors="replace"))
    try:
        import tiktoken
    except ImportError:
        raise TrainError("the gpt2 tokenizer needs tiktoken, which is not installed: pip install 'rooftile[bpe]'") from None
    try:
        bpe = tiktoken.get_encoding("gpt2")
    except Exception as error:  # whatever its download raises: there is no common base
        raise TrainError(f"tiktoken could not get the gpt2 vocabulary, which it downloads once: {_reason(error)}") from None

    def encode(text: bytes) -> np.ndarray:
        return np.array(bpe.encode_ordinary(text.decode("utf-8", errors="replace")), dtype=np.int32)

    return Tokenizer("gpt2", bpe.n_vocab, encode, lambda ids: bpe.decode([i for i in ids if i < bpe.n_vocab]))


def read_text(source: str, megabytes: float) -> bytes:
    """The bytes of `source`: a path, "tinyshakespeare", or "" for `megabytes` of the Python standard library.

    FileNotFoundError or TrainError, one sentence, when it is missing, unreadable, empty or cannot be downloaded.
    """
    if not source:
        return standard_library(int(megabytes * 1e6))
    path = Path(source)
    if source == TINYSHAKESPEARE and not path.exists():
        return _tinyshakespeare()
    if not path.exists():
        raise FileNotFoundError(f"the text {source} does not exist")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise TrainError(f"the text {source} cannot be read: {error.strerror}") from None
    if not text:
        raise TrainError(f"the text {source} is empty: 0 bytes")
    return text


def check_utf8(source: str, text: bytes) -> None:
    """TrainError where a tokenizer of letters would read replacement characters: another encoding, or a file that is compressed."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise TrainError(
            f"the text {source} is not UTF-8: byte {error.start} is 0x{text[error.start]:02x}; convert it, or take the tokenizer bytes"
        ) from None


def standard_library(most: int, folder: Path | None = None) -> bytes:
    """Up to `most` bytes of the .py sources in `folder` (the running Python's own library), tests left out.

    In the order of a digest of the file's name: the same for everyone with this Python, and any cut is a fair sample, which
    alphabetical order is not (it would validate on `xml` and `zipfile` alone).
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    names = []
    for parent, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in LEFT_OUT]
        names += [Path(parent, f).relative_to(root).as_posix() for f in files if f.endswith(".py")]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    text = bytearray()
    for name in names:
        if len(text) >= most:
            break
        source = (root / name).read_bytes()
        if len(source) <= LARGEST_FILE:
            text += source
    if not text:
        raise TrainError(f"{root} holds no Python sources to train on: name a file with text")
    return bytes(text[:most])


def _tinyshakespeare() -> bytes:
    """1.1 MB of Shakespeare: from the cache, or downloaded once; checked either way."""
    cache = cache_folder() / "tinyshakespeare.txt"
    if cache.is_file() and _is_shakespeare(text := cache.read_bytes()):
        return text
    try:
        with urllib.request.urlopen(TINYSHAKESPEARE_URL, timeout=30) as answer:
            text = answer.read()
    except OSError as error:  # URLError and timeouts are OSErrors
        raise TrainError(f"tinyshakespeare could not be downloaded from {TINYSHAKESPEARE_URL}: {_reason(error)}") from None
    if not _is_shakespeare(text):
        digest = hashlib.sha256(text).hexdigest()
        raise TrainError(f"tinyshakespeare arrived with sha256 {digest[:12]}..., expected {TINYSHAKESPEARE_SHA256[:12]}...")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(cache) as file:
            file.write(text)
    except OSError:
        pass  # a home that cannot be written costs a download next time, nothing else
    return text


def _is_shakespeare(text: bytes) -> bool:
    return hashlib.sha256(text).hexdigest() == TINYSHAKESPEARE_SHA256


def _bytes_encode(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8).astype(np.int32)


def _reason(error: BaseException) -> str:
    """The first line of an exception's message; its type when it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
