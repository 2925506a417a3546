"""A .cu file and its headers as g++ can take them: __shared__ arrays become memory of the simulator's. Lines stay where they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rooftile.core.record import without_c_comments
from rooftile.cuda.simulator import host
from rooftile.cuda.source import GLOBAL, INCLUDE, Source, read

_WORD = re.compile(r"\b__shared__\b")
_ALIGN = re.compile(r"(?:__align__|alignas)\s*(\((?:[^()]|\([^()]*\))*\))")
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')


_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:(?:volatile|__volatile__)\s*)?\(")
_LAUNCH = re.compile(r"^(?![ \t]*#)(.*?)\b\w[\w:]*\s*(?:<[^<>;{}]*>)?\s*<<<[^;{}]*?>>>\s*\(", re.M)
_USED = re.compile(r"\b(?:using\s+namespace|namespace\s+\w+\s*=)\s*(?:::\s*)?(?!std\b)(\w+(?:::\w+)*)\s*;")


def rewritten(source: Source) -> dict[str, str]:
    """File name -> text. The kernel's own file comes first; includes of our files lead to their rewritten twins."""
    names = {path: f"{i}_{path.name}" for i, path in enumerate(source.files)}
    texts = host.without([without_c_comments(read(path)) for path in names])
    return {name: _rewrite(path, text, names) for (path, name), text in zip(names.items(), texts)}


def _rewrite(path: Path, text: str, names: dict[Path, str]) -> str:
    def include(match: re.Match[str]) -> str:
        found = next((p for p in ((path.parent / match[2]).resolve(), INCLUDE / match[2]) if p in names), None)
        return f'{match[1]}"{names[found] if found else match[2].replace("../", "")}"'

    text = re.sub(r'^([ \t]*#[ \t]*include[ \t]*)"([^"\n]+)"', include, text, flags=re.M)
    text = _LAUNCH.sub(lambda m: m[1] + "rooftile_launch(" + "\n" * m[0].count("\n"), _ptx(text))
    spaces = "".join(
        f"namespace {' { namespace '.join(n.split('::'))} {{{'}' * n.count('::')}}} " for n in sorted(set(_USED.findall(text)))
    )
    return f'{spaces}\n#line 1 "{path}"\n{_only_if_called(_shared(_moved(text)))}'


def _only_if_called(text: str) -> str:
    """Kernels that are no templates become inline: g++ then compiles the one that is asked for, and not each time all that a file has."""

    def inline(match: re.Match[str]) -> str:
        begin = max(text.rfind(c, 0, match.start()) for c in ";}")
        said = match["template"] is not None or re.search("inline", text[begin + 1 : match.start("name")], re.I)
        return match[0] if said else match[0].replace("__global__", "__global__ inline __noinline__", 1)

    return GLOBAL.sub(inline, text)


def _ptx(text: str) -> str:
    """Inline PTX becomes a call that says so where a thread comes to it; most files keep it beside kernels that do without."""
    parts, done = [], 0
    for match in _ASM.finditer(text):
        depth, end = 0, match.end()
        for token in re.finditer(_STRING.pattern + r"|[()]", text[match.end() - 1 :]):
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if depth == 0:
                end = match.end() - 1 + token.end()
                break
        words = re.sub(r"\\[nt]", " ", " ".join(string[1:-1] for string in _STRING.findall(text[match.end() : end])))
        instruction = re.search(r"(?<![.%\w])[a-z]\w*(?:\.[\w:]+)+", words)
        if match.start() < done or not words.strip():
            continue  # an empty one is g++'s too
        call = f'rooftile_ptx("inline PTX{f" ({instruction[0]})" if instruction else ""}")'
        parts += [text[done : match.start()], call, *re.findall(r"\\?\n", text[match.start() : end])]
        done = end
    return "".join([*parts, text[done:]])


def _declarations(text: str) -> Iterator[tuple[int, int, int, bool]]:
    """Of what is declared __shared__: where it begins, where the word stands, where its ; is, and whether it says extern."""
    strings = [m.span() for m in _STRING.finditer(text)]
    end = -1
    for match in _WORD.finditer(text):
        if any(a <= match.start() < b for a, b in strings) or match.start() < end:
            continue
        if text[text.rfind("\n", 0, match.start()) + 1 :].lstrip().startswith("#"):
            continue  # a macro that declares shared memory is not understood, and g++ says so
        depth, end = 0, len(text) - 1
        for token in re.finditer(r"[{};]", text[match.end() :]):  # a structure's members end in ; too
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            if token[0] == ";" and depth == 0:
                end = match.end() + token.start()
                break
        begin, external = _beginning(text, match.start())
        yield begin, match.start(), end, external


def _moved(text: str) -> str:
    """Shared memory that is declared outside a function is declared in each that mentions it: where it lies is a block's, and g++ would ask before
    there is one. All of them find one array, by a key that stays where it was declared."""
    edits: list[tuple[int, int, str]] = []
    bodies = host.bodies(text) if _WORD.search(text) else []
    for begin, at, end, external in _declarations(text):
        if any(opened < begin < closed for _, opened, closed in bodies):
            continue
        said = text[begin:at] + text[at + len("__shared__") : end]
        names = [m[1] for part in _declarators(_ALIGN.sub(" ", said)) if (m := re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part))]
        keys = "" if external else " ".join(f"static char rooftile_{name}_key;" for name in names)
        edits.append((begin, end + 1, keys + "\n" * text.count("\n", begin, end)))
        inside = " ".join(
            f"{text[begin:at]}__shared__ {'' if external else 'rooftile_outer '}{text[at + len('__shared__') : end]};".split()
        )
        for head, opened, closed in bodies:
            mentioned = [name for name in names if re.search(rf"\b{name}\b", text[opened:closed])]
            hidden = any(re.search(rf"\b{name}\b", text[head:opened]) for name in names)
            if opened > end and mentioned and not hidden:
                edits.append((opened + 1, opened + 1, f" {inside} "))
    parts, done = [], 0
    for begin, end, new in sorted(edits, key=lambda edit: edit[:2]):
        parts += [text[done:begin], new]
        done = end
    return "".join([*parts, text[done:]])


def _shared(text: str) -> str:
    parts, done = [], 0
    for begin, at, end, external in _declarations(text):
        declaration = text[begin:at] + text[at + len("__shared__") : end]
        parts += [text[done:begin], _declared(declaration, external)]
        done = end + 1
    return "".join([*parts, text[done:]])


def _beginning(text: str, at: int) -> tuple[int, bool]:
    """Where the declaration that has __shared__ at `at` begins: after the last ; { or }, and whether it says extern."""
    begin = max(text.rfind(c, 0, at) for c in ";{}") + 1
    head = text[begin:at]
    words = re.search(r"(?:\b(?:extern|static|volatile|const)\b\s*|(?:__align__|alignas)\s*\([^()]*(?:\([^()]*\))*[^()]*\)\s*)*$", head)
    assert words is not None
    return begin + words.start(), "extern" in words[0]


def _declared(declaration: str, external: bool) -> str:
    lines = declaration.count("\n")
    aligns = _ALIGN.findall(declaration)
    outer = re.search(r"\brooftile_outer\b", declaration) is not None
    plain = " ".join(re.sub(r"\b(?:extern|static|rooftile_outer)\b", " ", _ALIGN.sub(" ", declaration)).split())
    first, *others = _declarators(plain)
    match = re.match(r"(.*?)(\w+)\s*((?:\[[^\]]*\]\s*)*)$", first)
    if match is None:
        return f"__shared__ {declaration};"
    type_, name, extents = match[1].strip(), match[2], match[3]
    out = [_one(type_, name, extents, aligns, external, outer)]
    for other in others:
        n = re.match(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)$", other)
        if n is None:
            return f"__shared__ {declaration};"
        out.append(_one(type_, n[1], n[2], aligns, external, outer))
    return " ".join(out) + "\n" * lines


def _one(type_: str, name: str, extents: str, aligns: list[str], external: bool, outer: bool) -> str:
    if external:
        return f"{type_}* const {name} = static_cast<{type_}*>(rooftile_sim_dynamic());"
    align = "".join(f"; if (rooftile_{name}_align < {a}) rooftile_{name}_align = {a}" for a in aligns)
    key = "" if outer else f"static char rooftile_{name}_key; "
    return (
        f"using rooftile_{name}_type = {type_}{extents}; {key}size_t rooftile_{name}_align = alignof(rooftile_{name}_type){align}; "
        f"rooftile_{name}_type& {name} = *static_cast<rooftile_{name}_type*>"
        f'(rooftile_sim_shared(&rooftile_{name}_key, "{name}", sizeof(rooftile_{name}_type), rooftile_{name}_align));'
    )


def _declarators(text: str) -> list[str]:
    """At commas that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]
