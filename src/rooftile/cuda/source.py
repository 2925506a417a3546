"""A .cu file as data: the __global__ functions in it with their parameters, and the headers it pulls in."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rooftile.core.kernel import nearest
from rooftile.core.record import without_c_comments

INCLUDE = Path(__file__).parent / "include"


def read(path: Path) -> str:
    """Comments may be in any encoding, and are no matter."""
    return path.read_text(encoding="utf-8-sig", errors="replace")


@dataclass(frozen=True)
class Parameter:
    type: str  # without const, & and __restrict__: "float", "T", "long long"
    name: str
    pointer: bool

    def __str__(self) -> str:
        return f"{self.type}{'*' if self.pointer else ''} {self.name}"


@dataclass(frozen=True)
class Function:
    """One __global__ function. `instance` is what a compiler is asked for: the name, with template arguments where it has any."""

    name: str
    template: tuple[str, ...]  # parameter names, in order
    parameters: tuple[Parameter, ...]
    line: int
    instance: str
    cluster: str = "1"  # blocks a cluster: a number, or the template parameter that is one
    optional: int = 0  # of the template parameters, so many at the end have a default
    early: bool = False  # launched while the kernel before it runs: ROOFTILE_EARLY, of early.cuh

    def __str__(self) -> str:
        return f"{self.instance}({', '.join(map(str, self.parameters))})"


@dataclass(frozen=True)
class Source:
    path: Path

    @staticmethod
    def beside(module_file: str, name: str) -> Source:
        """Of an operator's rung: Source.beside(__file__, "v2_warp.cu") is the file in the folder cuda/ next to that module."""
        return Source(Path(module_file).parent / "cuda" / name)

    @functools.cached_property
    def text(self) -> str:
        try:
            return read(self.path)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error}") from error

    @functools.cached_property
    def functions(self) -> dict[str, Function]:
        text = without_c_comments(self.text)
        return {f.name: f for f in _functions(text)}

    @functools.cached_property
    def files(self) -> tuple[Path, ...]:
        """This file and every header it reaches through #include "...", in the order they are met."""
        todo, seen = [self.path], list[Path]()
        while todo:
            path = todo.pop()
            if path in seen:
                continue
            seen.append(path)
            for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', read(path), re.M):
                found = next((p for p in ((path.parent / name).resolve(), INCLUDE / name) if p.is_file()), None)
                if found is not None:  # the compiler says what is missing better than we could
                    todo.append(found)
        return tuple(seen)

    def function(self, instance: str) -> Function:
        """The function that `instance` ("add" or "softmax<__half, 256>") asks for, with template types put into its parameters."""
        name, _, rest = instance.partition("<")
        found = self.functions[nearest(name.strip().rpartition("::")[2], list(self.functions), f"kernel in {self.path.name}")]
        given = [a.strip() for a in _split(rest.rstrip().removesuffix(">"))] if rest else []
        if not len(found.template) - found.optional <= len(given) <= len(found.template):
            raise ValueError(
                f"{name} in {self.path.name} takes {len(found.template)} template arguments ({', '.join(found.template)}), got {len(given)}"
            )
        bound = dict(zip(found.template, given))
        parameters = tuple(replace(p, type=bound.get(p.type, p.type)) for p in found.parameters)
        cluster = bound.get(found.cluster, found.cluster)
        return replace(found, parameters=parameters, cluster=cluster, instance=f"{name}<{', '.join(given)}>" if found.template else name)


_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
GLOBAL = re.compile(
    r"(?:template\s*<(?P<template>[^{};]*?)>\s*)?"
    r'(?:(?:extern\s+"C"|static|inline|void|ROOFTILE_EARLY)\s+)*\b__global__\b'
    rf"(?:\s*\b(?:static|inline|void|ROOFTILE_EARLY|__maxnreg__\s*{_BRACKETS}|(?:__launch_bounds__|__cluster_dims__|ROOFTILE_CLUSTER)\s*{_BRACKETS}))*"
    rf"\s*\b(?P<name>\w+)\s*\((?P<parameters>(?:[^()]|{_BRACKETS})*)\)\s*\{{"
)


def _functions(text: str) -> Iterator[Function]:
    for match in GLOBAL.finditer(text):
        declared = [p.partition("=") for p in _split(match["template"] or "") if p.strip()]
        template, optional = tuple(p[0].split()[-1] for p in declared), sum(bool(p[1]) for p in declared)
        parameters = tuple(_parameter(p) for p in _split(match["parameters"]) if p.strip())
        line = text.count("\n", 0, match.start("name")) + 1
        cluster = re.search(r"ROOFTILE_CLUSTER\s*\(\s*(\w+)\s*\)", match[0])
        early = "ROOFTILE_EARLY" in match[0]
        yield Function(match["name"], template, parameters, line, match["name"], cluster[1] if cluster else "1", optional, early)


def _parameter(text: str) -> Parameter:
    text, array, _ = text.partition("=")[0].partition("[")
    words = [
        w
        for w in re.findall(r"\w[\w:]*(?:<[^>]*>)?|\*", text)
        if w not in {"const", "__restrict__", "__restrict", "__grid_constant__", "volatile"}
    ]
    return Parameter(" ".join(w for w in words[:-1] if w != "*"), words[-1], "*" in words or bool(array))


def _split(text: str) -> list[str]:
    """At commas that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "<([") - (c in ">)]")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]] if text.strip() else []
