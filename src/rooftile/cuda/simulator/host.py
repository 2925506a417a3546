"""A .cu file without its host code: a kernel needs none of it, and so no library that it calls need be here. Lines stay where they were."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r'^[ \t]*#(?:\\\n|[^\n])*|R"(\w*)\([\s\S]*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[(){};]',
    re.M,
)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)", re.M)
_DEVICE = ["__global__", "__device__", "__constant__", "__managed__", "__shared__", "constexpr"]
_LABELS = re.compile(r"\s*(?:(?:public|private|protected)\s*:(?!:)\s*)*")
_BRACKETS = re.compile(r"(?:\b(?:__align__|__builtin_align__|alignas|__attribute__)\s*)?\([^()]*\)|<[^<>]*>")
_KEPT = re.compile(r"\b(?:using|typedef|static_assert|struct|class|union|enum|const|friend|concept|namespace)\b")
_NAMED = re.compile(r"(?:\b(?:struct|class|union)\b(?:\s*(?:__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\))?|\})\s*(\w+)")
OUTER, TYPE, HOST, DEVICE, INSIDE = range(5)  # what braces hold: namespaces, members, functions, and the rest


def without(texts: list[str]) -> list[str]:
    """Functions, variables and declarations that no kernel may use are left out, and types that then nobody mentions. Directives stay: a
    macro may be meant for a kernel."""
    device, types = _words(texts), list[_Type]()
    rest = [_without(i, text, device, types) for i, text in enumerate(texts)]

    def used(t: _Type) -> bool:
        others = [_blank(text, [t.span] if i == t.file else [], []) for i, text in enumerate(rest)]
        return any(re.search(rf"\b{name}\b", text) for name in t.names for text in others)

    while unused := [t for t in types if not used(t)]:
        types = [t for t in types if t not in unused]
        for t in unused:
            rest[t.file] = _blank(rest[t.file], [t.span], t.directives)
    return rest


@dataclass(frozen=True)
class _Type:
    file: int
    span: tuple[int, int]
    names: list[str]
    directives: list[tuple[int, int]]


def _words(texts: list[str]) -> re.Pattern[str]:
    """What says of a declaration that kernels may use it: CUDA's words, and macros that stand for them."""
    macros = [m for text in texts for m in _DEFINE.findall(text)]
    known = list(_DEVICE)
    while True:
        found = re.compile(rf"\b(?:{'|'.join(known)})\b")
        more = {name for name, body in macros if name not in known and found.search(body)}
        if not more:
            return found
        known += sorted(more)


def _without(file: int, text: str, device: re.Pattern[str], types: list[_Type]) -> str:
    directives: list[tuple[int, int]] = []
    dropped: list[tuple[int, int]] = []
    frames: list[tuple[int, int]] = []  # what it holds, where its head begins
    branches: list[tuple[list[tuple[int, int]], int, int]] = []  # each #else goes on from where its #if did
    start = parens = 0
    for match in _TOKEN.finditer(text):
        token, top = match[0], frames[-1][0] if frames else OUTER
        if token.lstrip().startswith("#"):
            directives.append(match.span())
            if branch := re.match(r"\s*#\s*(if|el|endif)", token):
                if branch[1] == "if":
                    branches.append((list(frames), start if _plain(text, start, match.start(), directives) else -1, parens))
                elif branches and branch[1] == "el":
                    dropped += [(begin, match.start()) for kind, begin in frames[len(branches[-1][0]) :] if kind == HOST]
                    frames, start, parens = list(branches[-1][0]), branches[-1][1], branches[-1][2]
                    start = match.end() if start < 0 else start
                elif branches:
                    branches.pop()
        elif token in "()":
            parens += 1 if token == "(" else -1
        elif token == "{":
            kind = INSIDE if parens or top > TYPE else _kind(_plain(text, start, match.start(), directives), device)
            frames.append((kind, start))
            start = match.end() if kind <= TYPE else start
        elif token == "}":
            if not frames:
                return text  # g++ says so better
            kind, begin = frames.pop()
            if kind == HOST:
                labels = _LABELS.match(text, begin)
                dropped.append((labels.end() if labels else begin, match.end()))
            start = begin if kind in (TYPE, INSIDE) else match.end()
        elif token == ";" and not parens and top <= TYPE:
            said = _plain(text, start, match.start(), directives)
            if top == OUTER and not device.search(said):
                if not _KEPT.search(_flat(said.partition("{")[0])):
                    dropped.append((start, match.end()))
                elif names := _NAMED.findall(said):
                    types.append(_Type(file, (start, match.end()), names, directives))
            start = match.end()
    return _blank(text, dropped, directives)


def bodies(text: str) -> list[tuple[int, int, int]]:
    """Of each function: where its head begins, and its outer braces."""
    found: list[tuple[int, int, int]] = []
    device = re.compile(rf"\b(?:{'|'.join(_DEVICE)})\b")
    frames: list[tuple[int, int, int]] = []
    start = parens = 0
    for match in _TOKEN.finditer(text):
        token, top = match[0], frames[-1][0] if frames else OUTER
        if token in "()":
            parens += 1 if token == "(" else -1
        elif token == "{":
            kind = INSIDE if parens or top > TYPE else _kind(_plain(text, start, match.start(), []), device)
            frames.append((kind, start, match.start()))
            start = match.end() if kind <= TYPE else start
        elif token == "}" and frames:
            kind, head, opened = frames.pop()
            if kind in (HOST, DEVICE):
                found.append((head, opened, match.start()))
            start = head if kind in (TYPE, INSIDE) else match.end()
        elif token == ";" and not parens and top <= TYPE:
            start = match.end()
    return found


def _kind(head: str, device: re.Pattern[str]) -> int:
    if re.search(r'\bnamespace\b[^()]*$|\bextern\s*""$', head):
        return OUTER
    flat = _flat(head)
    if re.match(r"(?:(?:template|typedef|static|const|extern)\s+)*(?:struct|class|union)\b", flat) and not re.search(
        r"\w\s*\([^()]*\)$", head
    ):
        return TYPE
    if "=" in re.sub(r"\boperator\W+", "", flat) or not re.search(r"\)[\s\w:&*,<>-]*$|\)\s*:[^:][^;]*[)}]$", head):
        return INSIDE
    if re.search(r"\)\s*(?:noexcept\s*)?:[^:].*\w$", head, re.S):
        return INSIDE  # a member's initialiser; the function's body is yet to come
    return DEVICE if device.search(head) else HOST


def _flat(head: str) -> str:
    """Without what stands in brackets."""
    while (less := _BRACKETS.sub(" ", head)) != head:
        head = less
    return head.strip()


def _plain(text: str, begin: int, end: int, directives: list[tuple[int, int]]) -> str:
    inside = [(a, b) for a, b in directives if begin <= a < end]
    said = _blank(text[begin:end], [(a - begin, b - begin) for a, b in inside], [])
    return _LABELS.sub("", re.sub(r'"[^"\n]*"', '""', said), count=1).strip()


def _blank(text: str, spans: list[tuple[int, int]], kept: list[tuple[int, int]]) -> str:
    """Spaces in their place, so that every position stays what it was."""
    for begin, end in spans:
        stays = [*((a, b) for a, b in kept if begin <= a < end), (end, end)]
        for a, b in stays:
            text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:a]) + text[a:]
            begin = b
    return text
