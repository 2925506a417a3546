"""Pages from records: an operator a line in README.md, every case in docs/speed.md, its ladder in every operator's README.md, roofline pictures.

What lies between two markers, `<!-- rooftile:NAME -->` and `<!-- /rooftile:NAME -->`, is written here and nowhere else. A figure whose kernel has changed
since is marked stale. Of several devices the one with the most figures that are not is told openly, the others are folded away.
"""

from __future__ import annotations

import io
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from rooftile.core.kernel import OPS, Kernel, Op
from rooftile.core.record import Record, Status
from rooftile.models.atomic import atomic_file
from rooftile.workbench import ledger, sanitizer, suites, training_records
from rooftile.workbench.check import all_ops, with_gradients

STALE, UNSTEADY = " (stale)", " (unsteady)"
APART = 0.05  # of a step's time: where its turns lie further apart, the machine had something else to do
ALL = "all"
Table = dict[tuple[str, str, str], list[Record]]


def write(repository: Path, verify: bool) -> list[str]:
    """Rewrite every marked block; the names of the pages that changed (with verify, that would)."""
    records = repository / "records"
    table = freshest_first(ledger.latest(records)) if records.is_dir() else {}
    blocks: dict[Path, dict[str, str]] = {
        repository / "README.md": {
            "gate": gate(table),
            "sanitizer": sanitized(table),
            "summary": summary(table),
            "training": training(table),
            "losses": losses(table),
            "scaling": scaling(table),
        },
        repository / "docs" / "speed.md": {"speed": speed(table), "host": host(table)},
    }
    slices: dict[str, list[Op]] = {}  # several operators may live in one folder: layernorm and add_layernorm
    for op in all_ops():
        slices.setdefault(op.spec.reference.__module__.split(".")[-2], []).append(op)
    for name, ops in slices.items():
        blocks[repository / "src" / "rooftile" / "ops" / name / "README.md"] = {"ladder": ladder(ops, table)}
    if not any(page.is_file() for page in blocks):
        raise FileNotFoundError(f"{repository} has none of the {len(blocks)} pages that records are told on: is it the repository?")
    ledger.there(records)
    changed = []
    for page, named in blocks.items():
        if not page.is_file():
            continue
        before = page.read_text(encoding="utf-8")
        text = before
        if "<!-- rooftile:counters -->" in text:
            named["counters"] = counters(page.parent.name, table)
        if "<!-- rooftile:suites -->" in text:
            named["suites"] = asked_by_others(table)
        for name, body in named.items():
            text = replace(text, name, body, page)
        if text != before:
            changed.append(str(page.relative_to(repository)))
            if not verify:
                _put(page, text.encode())
    if not verify and table:
        roofline(table, repository / "docs")
    return changed


def _put(page: Path, text: bytes) -> None:
    """The new page or, where the disk is full, the old one whole: it has more in it than is written here."""
    try:
        with atomic_file(page) as file:
            file.write(text)
    except OSError as error:
        raise ValueError(f"{page} cannot be written, the old one stands: {error.strerror}") from error


def replace(text: str, name: str, body: str, page: Path) -> str:
    pattern = re.compile(rf"(<!-- rooftile:{name} -->\n).*?(<!-- /rooftile:{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} has no block <!-- rooftile:{name} --> ... <!-- /rooftile:{name} -->")
    return pattern.sub(lambda m: m[1] + body + m[2], text)


def freshest_first(table: Table) -> Table:
    fresh: dict[str, int] = {}
    for (device, *_), records in table.items():
        fresh[device] = fresh.get(device, 0) + sum(not ledger.is_stale(r) for r in records)
    return dict(sorted(table.items(), key=lambda item: (-fresh[item[0][0]], item[0][0])))


def rows(header: list[str], lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, ["---"] * len(header), *lines])


def folded(told: Mapping[str, str]) -> str:
    """What is told of each device: of the first one openly."""
    if not told:
        return "Not measured yet.\n"
    (first, openly), *others = told.items()
    counts = {d: f", {n} of its figures stale" if (n := text.count(STALE)) else "" for d, text in others}
    return f"**{first}**\n\n{openly}" + "".join(
        f"\n<details><summary>{d}{counts[d]}</summary>\n\n{text}\n</details>\n" for d, text in others
    )


def by_device(header: list[str], lines: list[list[str]]) -> str:
    """A table a device, which a line begins with."""
    return folded({d: rows(header, [line[1:] for line in lines if line[0] == d]) for d in dict.fromkeys(line[0] for line in lines)})


def peer_name(kernel: str) -> str:
    return "torch.compile" if kernel == "peer.compile" else kernel.removeprefix("peer.")


def by_arithmetic(r: Record) -> bool:
    """Whether operations decide, and not bytes."""
    return bool(r.tflops and r.gbps and r.tflops * 1e3 / r.gbps > 100)  # operations a byte


def figure(r: Record) -> str:
    """GB/s where bytes decide, TFLOP/s where arithmetic does."""
    if r.us is None:
        return r.status if r.status != Status.PASSED else ""
    if by_arithmetic(r):
        return f"{r.tflops:.0f} TFLOP/s{marks(r)}"
    return f"{r.gbps:.0f} GB/s{marks(r)}"


def marks(r: Record) -> str:
    return (STALE if ledger.is_stale(r) else "") + (UNSTEADY if ledger.is_unsteady(r) else "")


def timed(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Our kernels and the peers of one case, fastest first. A copy computes nothing and is no peer."""
    good = sorted((r for r in records if r.us and r.status == Status.PASSED), key=lambda r: r.us[1] if r.us else 0.0)
    return [r for r in good if not r.kernel.startswith("peer.")], [
        r for r in good if r.kernel.startswith("peer.") and r.kernel != "peer.copy"
    ]


def of_copy(best: Record, records: list[Record]) -> float | None:
    """The time of a copy of the same bytes, in the same run, over ours."""
    copy = next((r for r in records if r.kernel == "peer.copy" and r.run == best.run and r.us), None)
    return _granted(copy) / best.us[1] if copy and best.us else None


def of_peers(best: Record, peers: list[Record]) -> float | None:
    """The best peer's time over ours."""
    return min(map(_granted, peers)) / best.us[1] if peers and best.us else None


def _granted(r: Record) -> float:
    """Of an unsteady time, beside ours, what a fifth of its samples were at most."""
    assert r.us is not None
    return r.us[0] if ledger.is_unsteady(r) else r.us[1]


def summary(table: Table) -> str:
    """An operator a line, below one for all: how many cases, where bytes decide the median of a copy's time over ours, and of the best peer's time over
    ours the geometric mean and the extremes; then those of the gradient."""
    found: dict[
        tuple[str, str], dict[bool, list[tuple[bool, float | None, float | None]]]
    ] = {}  # by device and operator, and whether it is the gradient
    for (device, name, _), records in table.items():
        ours, peers = timed(records)
        if name not in OPS or not ours or not ours[0].us:
            continue
        best, forward = ours[0], name.removesuffix("_backward")
        copied = None if by_arithmetic(best) else of_copy(best, records)
        beside = of_peers(best, peers)
        for of in (forward, ALL):
            ways = found.setdefault((device, of), {False: [], True: []})
            ways[name != forward].append((ledger.is_stale(best), copied, beside))

    def told(cases: list[tuple[bool, float | None, float | None]]) -> list[str]:
        copies = [copied for _, copied, _ in cases if copied is not None]
        peers = [beside for *_, beside in cases if beside is not None]
        mean = f"{statistics.geometric_mean(peers):.2f} ({min(peers):.2f} to {max(peers):.2f})" if peers else ""
        stale = STALE if any(stale for stale, _, _ in cases) else ""
        return [f"{len(cases) or ''}{stale}", f"{statistics.median(copies):.0%}" if copies else "", mean]

    lines = [
        [device, name, *told(ways[False]), *told(ways[True])]
        for (device, name), ways in sorted(found.items(), key=lambda item: (item[0][1] != ALL, item[0][1]))
    ]
    columns = ("cases", "of a copy", "times the best peer")
    return by_device(["operator", *columns, *(f"gradient: {c}" for c in columns)], lines)


def speed(table: Table) -> str:
    """The fastest of ours beside each peer, case by case."""
    lines = []
    for (device, name, case), records in table.items():
        ours, peers = timed(records)
        if name not in OPS or not ours:
            continue
        best = ours[0]
        theirs = [f"{peer_name(p.kernel)} {figure(p)}" for p in peers]
        beside = of_peers(best, peers)
        copied = of_copy(best, records)
        lines.append(
            [
                device,
                name,
                f"`{case}`",
                best.kernel,
                figure(best),
                f"{best.of_ceiling:.0%}" if best.of_ceiling else "",
                f"{copied:.0%}" if copied else "",
                ", ".join(theirs),
                f"{beside:.2f}" if beside else "",
            ]
        )
    return by_device(["operator", "case", "kernel", "ours", "of ceiling", "of a copy", "peers", "times the best peer"], lines)


def gate(table: Table) -> str:
    """How many kernels have passed on a device as they are now, and whose have not."""
    here = [(op, k) for op in with_gradients(all_ops()) for k in op.kernels]

    def calls(passed: list[Record]) -> str:
        return f"{sum(r.fact('passed') for r in passed):,} / {sum(r.fact('refused') for r in passed):,}"

    lines = _verdicts(table, ledger.GATE, here, calls)
    return by_device(["kernels that passed as they are now", "right / refused calls", "changed since, failed or not judged"], lines)


def sanitized(table: Table) -> str:
    """The same of what compute-sanitizer said."""
    here = [pair for op in all_ops() for pair in sanitizer.looked_at(op)]

    def launches(passed: list[Record]) -> str:
        return ", ".join(f"{tool} {sum(r.extra.get(tool, 0) for r in passed):,}" for tool in sanitizer.TOOLS)

    lines = _verdicts(table, ledger.SANITIZED, here, launches)
    return by_device(
        ["kernels in which nothing was found as they are now", "launches", "changed since, not looked at, or something found"], lines
    )


def _verdicts(table: Table, of: str, here: list[tuple[Op, Kernel]], count: Callable[[list[Record]], str]) -> list[list[str]]:
    lines = []
    for device in dict.fromkeys(d for d, _, case in table if case.startswith(of)):
        said = {(o, r.kernel): r for (d, o, case), records in table.items() for r in records if d == device and case.startswith(of)}
        passed, open_ = list[Record](), dict[str, int]()
        for op, kernel in here:
            r = said.get((op.spec.name, kernel.name))
            if r is not None and r.status in (Status.PASSED, Status.REFUSED) and not ledger.is_stale(r):
                passed.append(r)
            else:
                open_[op.spec.name] = open_.get(op.spec.name, 0) + 1
        lines.append([device, f"{len(passed)} of {len(here)}", count(passed), ", ".join(f"{name} {n}" for name, n in open_.items())])
    return lines


def host(table: Table) -> str:
    lines = []
    for (device, name, case), records in table.items():
        if case.startswith(ledger.HOST):
            timed = [r for r in records if "host_us" in r.extra]
            ours = next((r for r in timed if not r.kernel.startswith("peer.")), None)
            peers = sorted((r.fact("host_us"), r.kernel.removeprefix("peer.")) for r in timed if r.kernel.startswith("peer."))
            if ours is not None:
                mark = STALE if ledger.is_stale(ours) else ""
                theirs = ", ".join(f"{peer} {us:.1f}" for us, peer in peers)
                yard = f"{ours.fact('layer_norm_us'):.1f}" if "layer_norm_us" in ours.extra else ""
                lines.append([device, name, f"`{case.removeprefix(ledger.HOST)}`", f"{ours.fact('host_us'):.1f}{mark}", theirs, yard])
    return by_device(["operator", "case", "ours, us a call", "peers, us a call", "`F.layer_norm` in turn"], lines)


def training(table: Table) -> str:
    lines = []
    for (device, name, case), records in table.items():
        if name.startswith("train."):
            for r in records:
                mark = STALE if ledger.is_stale(r) else ""
                ms = f"{r.us[1] / 1e3:.1f}" if r.us else ""
                if r.us and r.us[2] - r.us[0] > APART * r.us[1]:
                    mark = f" (unsteady, {r.us[0] / 1e3:.1f} to {r.us[2] / 1e3:.1f}){mark}"
                loss = f"{r.fact('loss'):.3f}" if "loss" in r.extra else ""
                lines.append([device, name.removeprefix("train."), f"`{case}`", peer_name(r.kernel), ms + mark,
                              f"{r.extra.get('tokens_per_s', 0):,.0f}", f"{r.extra.get('peak_bytes', 0) / 2**30:.2f}", loss])  # fmt: skip
    return by_device(["model", "case", "kernels", "ms a step", "tokens/s", "peak GiB", "final loss"], lines)


def losses(table: Table) -> str:
    lines = []
    for (device, name, case), records in table.items():
        ours = next((r for r in records if not r.kernel.startswith("peer.")), None)
        if name.startswith("losses.") and ours is not None:
            mark = STALE if ledger.is_stale(ours) else ""
            facts = [f"{ours.fact(n):.3f}" for n in ("loss", "band", "outside_band")]
            seeds = [x for r in records if r.run == ours.run and r.kernel == "peer.torch" for x in r.fact("losses")]
            runs = [ours.fact("losses"), *seeds]
            theirs = (training_records.outside(seed, [x for x in runs if x is not seed]) for seed in seeds)
            lines.append(
                [device, name.removeprefix("losses."), f"`{case}`", facts[0] + mark, *facts[1:], ", ".join(f"{x:.3f}" for x in theirs)]
            )
    return by_device(
        ["model", "case", "final loss", "three seeds of PyTorch lie apart, at most", "ours outside them, at most",
         "each seed outside the others and ours, at most"], lines)  # fmt: skip


def asked_by_others(table: Table) -> str:
    lines = []
    for (device, name, _), records in table.items():
        for r in records if name.startswith(suites.PREFIX) else ():
            judged = f"{r.fact('judged')} of {r.fact('points')}" + (STALE if ledger.is_stale(r) else "")
            furthest = r.fact("apart")
            apart = ", ".join(f"{n} {furthest[n]:.2f}" for n in suites.RESULTS if n in furthest)
            lines.append(
                [device, name.removeprefix(suites.PREFIX), judged, *(str(r.fact(n)) for n in ("passed", "failed", "refused")), apart]
            )
    return by_device(["suite", "points", "right", "wrong", "refused", "the furthest off, of what it may be"], lines)


def scaling(table: Table) -> str:
    lines = []
    for (device, name, case), records in table.items():
        for r in records if name.startswith("scaling.") else ():
            facts = [
                f"{r.extra[n]:{form}}" if n in r.extra else ""
                for n, form in (("processes", ""), ("tokens_per_s", ",.0f"), ("of_one", ".2f"))
            ]
            apart = r.extra.get("largest_smoothed_loss_difference_to", {}).get("whole")
            lines.append([device, name.removeprefix("scaling."), f"`{case}`", r.kernel.removeprefix("rooftile.") + (STALE if ledger.is_stale(r) else ""),
                          *facts, f"{r.extra.get('peak_bytes', 0) / 2**30:.2f}", "" if apart is None else f"{apart:.4f}"])  # fmt: skip
    return by_device(
        ["model", "each process", "run", "processes", "tokens/s", "of one", "peak GiB of one", "loss from `whole`, at most"],
        lines,
    )


def ladder(ops: list[Op], table: Table) -> str:
    """Of each of a folder's operators, and of its gradient, what each rung adds and a line a case: every rung's time beside the peers'."""
    return "\n".join(f"### {o.spec.name}\n\n{_ladder(o, table)}" for op in ops for o in (op, op.backward) if o is not None)


def _ladder(op: Op, table: Table) -> str:
    found: dict[str, dict[str, dict[str, Record]]] = {}  # by device, case and kernel
    for (device, name, case), records in table.items():
        told = {r.kernel: r for r in records if r.us or r.status != Status.PASSED}
        if name == op.spec.name and told and not case.startswith((ledger.GATE, ledger.SANITIZED)):
            found.setdefault(device, {})[case] = told
    ideas = "".join(f"- `{k.name}`: {k.idea}\n" for k in sorted(op.kernels, key=lambda k: _rung(k.name)) if k.idea)
    return f"{ideas}\n{folded({device: _times(cases) for device, cases in found.items()})}"


def _rung(kernel: str) -> tuple[int, list[str | int]]:
    """CUDA C++ from the first rung to the last, other kernels of ours, peers, a copy."""
    kind = 3 if kernel == "peer.copy" else 2 if kernel.startswith("peer.") else 0 if kernel.startswith("cuda.") else 1
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", kernel)]


def _times(cases: Mapping[str, Mapping[str, Record]]) -> str:
    """Microseconds, the fastest of ours in bold with its rate, and below them in words what is no time."""
    columns = sorted({k for told in cases.values() for k, r in told.items() if r.status != Status.REFUSED}, key=_rung)
    lines, refused, other = [], dict[str, list[Record]](), list[str]()
    for case, told in cases.items():
        ours, _ = timed([*told.values()])
        best = ours[0] if ours else None
        cells = [_time(told[kernel], best) if kernel in told else "" for kernel in columns]
        share = f"{best.of_ceiling:.0%}" if best and best.of_ceiling else ""
        lines.append([f"`{case}`", *cells, figure(best) if best else "", share])
        for kernel, r in told.items():
            if r.status == Status.REFUSED:
                refused.setdefault(kernel, []).append(r)
            elif r.status != Status.PASSED:
                other.append(f"- `{peer_name(kernel)}`, `{case}`: {r.status}: {r.message}\n")
    notes = [f"- `{peer_name(kernel)}` refuses: {_reasons(refused[kernel])}\n" for kernel in sorted(refused, key=_rung)]
    below = "".join([*notes, *other])
    return rows(["case, us", *map(peer_name, columns), "the fastest of ours", "of ceiling"], lines) + (f"\n{below}" if below else "")


def _time(r: Record, best: Record | None) -> str:
    if r.status != Status.PASSED or not r.us:
        return "–" if r.status == Status.REFUSED else r.status
    return (f"**{r.us[1]:.1f}**" if r is best else f"{r.us[1]:.1f}") + marks(r)


def _reasons(records: list[Record]) -> str:
    """And in how many cases, where in several; the reason of most first."""
    counted = Counter(r.message for r in records).most_common()
    return "; ".join(message if n == 1 else f"{message} ({n} cases)" for message, n in counted)


def counters(name: str, table: Table) -> str:
    """What an operator's rungs ask of the memories: the hardware's counters, and in brackets the simulator's where they differ."""
    lines = []
    for (device, op, case), records in table.items():
        if op != name or not case.startswith("counters-"):
            continue
        for r in records:
            hardware, simulated = r.fact("hardware"), r.fact("simulator")
            mark = STALE if ledger.is_stale(r) else ""
            shown = [
                "-" if what not in hardware and what not in simulated
                else f"{hardware[what]:g}" if hardware.get(what) == simulated.get(what)
                else f"{hardware.get(what, 0):g} ({simulated.get(what, 0):g})"
                for what in ("global_load", "global_store", "shared_store", "shared_load")
            ]  # fmt: skip
            lines.append([device, f"`{case.removeprefix('counters-')}`", r.kernel + mark, *shown])
    return by_device(["case", "kernel", "sectors, read", "sectors, written", "wavefronts, stored", "wavefronts, loaded"], lines)


def roofline(table: Table, folder: Path) -> None:
    """One picture a device: each case at its intensity, ours and the best peer, under the two measured ceilings."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "rooftile"
    from matplotlib import pyplot as plt

    for device in sorted({d for d, *_ in table}):
        timed_here = [r for (d, name, _), rs in table.items() if d == device and name in OPS for r in rs if r.us and r.of_ceiling]
        if not timed_here:
            continue
        # of_ceiling is the floor over the time, and the floor the larger of bytes over copy and operations over matmul: so the largest
        # quotients give back the ceilings that were measured in the run
        copy = max(r.gbps / r.of_ceiling for r in timed_here if r.gbps and r.of_ceiling)
        matmul = max(r.tflops / r.of_ceiling for r in timed_here if r.tflops and r.of_ceiling)
        fig, ax = plt.subplots(figsize=(8, 5))
        x = [2.0**e for e in range(-5, 14)]
        ax.plot(x, [min(i * copy / 1e3, matmul) for i in x], color="black", lw=1, label="measured ceilings: copy, bf16 matmul")
        for label, marker, pick in (("ours", "o", 0), ("best peer", "x", 1)):
            points = []
            for (d, name, _), rs in table.items():
                group = timed(rs)[pick] if d == device and name in OPS else []
                if group and group[0].tflops and group[0].gbps:
                    points.append((group[0].tflops * 1e3 / group[0].gbps, group[0].tflops))
            ax.scatter([p[0] for p in points], [p[1] for p in points], marker=marker, s=24, label=label, alpha=0.8)
        ax.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="TFLOP/s", title=f"{device}: cold L2, medians from records/")
        ax.legend()
        ax.grid(alpha=0.3, which="both", lw=0.4)
        folder.mkdir(exist_ok=True)
        picture = io.BytesIO()
        fig.savefig(picture, format="svg", metadata={"Date": None})
        plt.close(fig)
        _put(folder / f"roofline-{device}.svg", picture.getvalue())
