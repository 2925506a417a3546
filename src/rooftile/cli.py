"""The command line. Every command speaks to people through rich and to programs through --json; bad input is one sentence and exit code 2, with
--json an object {"error": ...} too."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import math
import os
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from rooftile.core import interrupt
from rooftile.cuda.compile import Unavailable

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
                  help="The transformer's GPU kernels, and the workbench that proves them.")  # fmt: skip
UsageError = typer.BadParameter.__base__  # click's, which typer brings along or imports, by its release
if os.environ.get("COLUMNS") == "0":  # a terminal that does not know its width: nothing would be printed
    del os.environ["COLUMNS"]
WIDE = None if sys.stdout is None or sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000  # a file or a pipe has no edge to fit in
out, err = Console(width=WIDE), Console(stderr=True)

Ops = Annotated[list[str] | None, typer.Argument(help="Operators; all of them if none is named.")]
Jobs = Annotated[int, typer.Option(help="Processes that compile and judge kernels; clocks run in one, when they have ended.")]
Folder = Annotated[Path, typer.Option(help="Where records live.")]
Keep = Annotated[bool, typer.Option("--record", help="Append what was found to records/<device>/.")]
RECORDS = Path("records")
Json = Annotated[bool, typer.Option("--json", help="One JSON document (bench, suites and tune: one Record a line) on standard output.")]


def _seconds(value: float) -> float:
    if not value >= 0:
        raise ValueError(f"--within {value} is no number of seconds, which is 0 or more")
    return value


Within = Annotated[float, typer.Option(callback=_seconds, help="Begin nothing new after so many seconds; what is left is told.")]


def main() -> None:
    """A wrong input, or a machine that cannot, is the user's to mend: a sentence, exit code 2, no traceback."""
    interrupt.heard()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: what its encoding lacks is no reason to fail
    try:
        code = app(standalone_mode=False)
        print(end="", flush=True)  # what cannot be written is told here, not when Python ends
    except UsageError as error:
        sentence = error.format_message()
        if "\n" in sentence or not sentence:  # no command at all: it is the help, and has been shown
            sys.exit(2)
        _fail(f"{sentence.rstrip('.')} ({error.ctx.command_path} --help says more)" if error.ctx else sentence)
    except (Unavailable, ValueError, OSError, MemoryError) as error:
        _fail(str(error) or type(error).__name__)
    except RuntimeError as error:  # PyTorch's for what does not fit, on a GPU and on a CPU
        if "out of memory" not in str(error) and "can't allocate memory" not in str(error):
            raise
        _fail(str(error).splitlines()[0])
    sys.exit(code)


def _fail(sentence: str) -> NoReturn:
    _aside(f"rooftile: {sentence}", "bold red")
    try:
        if "--json" in sys.argv[1:] and os.environ.get("RANK", "0") == "0":  # one process speaks for all that torchrun started
            _say({"error": sentence})
        print(end="", flush=True)
    except OSError:  # nobody takes what is still to be written: it would be tried again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(2)


def _aside(sentence: str, style: str | None = None) -> None:
    err.print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def _say(document: Any) -> None:
    print(json.dumps(document))


def _table(*names: str) -> Table:
    """Nothing in it is left out, however narrow the terminal."""
    return Table(*(Column(name, overflow="fold") for name in names))


def _line(*parts: str | tuple[str, str]) -> None:
    """Texts as they are, for a path or an index in brackets is no markup; with a style where there is one."""
    out.print(Text.assemble(*parts), soft_wrap=True)


def _version(asked: bool) -> None:
    if asked:
        from rooftile import __version__

        print(f"rooftile {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one this is.")] = False,
) -> None:
    pass


@app.command("list")
def list_operators(as_json: Json = False) -> None:
    """The operators and their kernels, fastest first."""
    from rooftile.workbench import explain

    rows = explain.operators()
    if as_json:
        return _say(rows)
    table = _table("operator", "kernel", "idea", "backward")
    for row in rows:
        for i, kernel in enumerate(row["kernels"]):
            backward = row["backward"][i]["name"] if i < len(row["backward"]) else ""
            table.add_row(
                row["operator"] if i == 0 else "", kernel["name"], kernel["idea"], backward, end_section=i == len(row["kernels"]) - 1
            )
    return out.print(table)


@app.command("explain")
def explain_call(
    operator: Annotated[str, typer.Argument(help="An operator, or its backward (softmax_backward).")],
    shape: Annotated[str, typer.Option(help="Letters of the operator, e.g. M=4096,N=1024; parameters too, e.g. causal=true.")],
    dtype: Annotated[
        str, typer.Option(help=escape("One that it takes, mostly float32, bfloat16 or float16. [bfloat16, or its first]"))
    ] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda; cuda is imagined where there is none.")] = "cuda",
    as_json: Json = False,
) -> None:
    """Who is chosen for a call, who refused, and the sentence why."""
    from rooftile.workbench import explain

    answer = explain.explain(operator, shape, dtype, device)
    if as_json:
        return _say(answer)
    chosen, how = (answer["chosen"], "bold green"), f" ({answer['source']}) {answer['config'] or ''}"
    _line((answer["operator"], "bold"), f" {answer['case']} on {answer['device']}: ", chosen, how.rstrip())
    for refusal in answer["refused"]:
        _line((f"  {refusal['kernel']}", "yellow"), f" refused: {refusal['why']}")
    if answer["bytes"] is None:
        return _line("  the bytes and operations depend on the tensors' values")
    return _line(f"  {answer['bytes']:,} bytes and {answer['operations']:,.0f} operations at least")


def _written_and_read(folder: Path, record: bool, stale: bool) -> tuple[Path | None, Path | None]:
    if folder != RECORDS and not record and not stale:
        raise ValueError(f"--folder {folder}: neither --record nor --stale is said, and without them no record is written or read")
    return folder if record else None, folder if stale else None


@app.command()
def check(
    ops: Ops = None,
    kernel: Annotated[str | None, typer.Option(help="Only this kernel.")] = None,
    device: Annotated[
        str, typer.Option(help="cpu (references natively, Triton through the interpreter), cuda, or sim (CUDA C++ in the simulator).")
    ] = "",
    record: Keep = False,
    folder: Folder = RECORDS,
    stale: Annotated[bool, typer.Option("--stale", help="Only kernels that no record says have passed as they are now.")] = False,
    within: Within = math.inf,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """The gate: every operator, kernel, case, input family and layout against the float64 truth."""
    from rooftile.workbench import gatekeeper

    kept, lacking = _written_and_read(folder, record, stale)
    with _printed_beside(as_json):
        total = gatekeeper.check(ops or [], kernel, device, None if as_json else err, jobs, kept, lacking, within)
    _tell_verdicts(total, as_json, stale, " {op} {kernel} {case} {variant}: {message}", " {op} {kernel} {case}: {message}")


def _tell_verdicts(total: dict[str, Any], as_json: bool, stale: bool, wrong: str, refused: str) -> None:
    """Each that is wrong, the counts, what is left; exit code 1 unless all that was asked for was right. Where everything is refused, the first one's words."""
    if as_json:
        _say(total)
    else:
        for v in total["results"]:
            if v["status"] in ("failed", "error"):
                _line((v["status"], "red"), wrong.format(**v))
        out.print(f"{total['passed']} passed, {total['failed']} failed, {total['refused']} refused", highlight=False)
        if total["results"] and total["refused"] == len(total["results"]):
            _line(("refused", "yellow"), refused.format(**total["results"][0]))
    for name in total["left"]:
        _aside(f"left: {name}")
    if total["failed"] or total["left"] or (not total["passed"] and not stale):
        raise typer.Exit(1)


@app.command()
def sanitize(
    ops: Ops = None,
    record: Keep = False,
    folder: Folder = RECORDS,
    stale: Annotated[bool, typer.Option("--stale", help="Only operators with a kernel of which no record says so as it is now.")] = False,
    within: Within = math.inf,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """compute-sanitizer's memcheck, racecheck and initcheck over every kernel of an operator and of its gradient, on a GPU."""
    from rooftile.workbench import sanitizer

    kept, lacking = _written_and_read(folder, record, stale)
    with _printed_beside(as_json):
        total = sanitizer.sanitize(ops or [], None if as_json else err, jobs, kept, lacking, within)
    _tell_verdicts(total, as_json, stale, *[" {op} {kernel}: {message}"] * 2)


@app.command()
def bench(
    ops: Ops = None,
    against: Annotated[
        str, typer.Option(help="Peers to time beside us, comma separated: torch, compile, liger, quack, fa4, flex, fa2.")
    ] = "torch,compile",
    record: Keep = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "",
    folder: Folder = RECORDS,
    case: Annotated[str, typer.Option(help="Only cases whose name contains this; host- begins those of the host's time.")] = "",
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Only what has no record as it is now: kernels and training runs changed since, never timed, or with samples far apart.",
        ),
    ] = False,
    within: Within = math.inf,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Time kernels that passed the gate, side by side with peers in one process, cold L2, interleaved."""
    from rooftile.workbench import bench as b
    from rooftile.workbench import ledger

    peers, progress = [p for p in against.split(",") if p], None if as_json else err
    lacking = folder if stale else None
    with _printed_beside(as_json):
        records, left = b.bench(ops or [], peers, device, case, progress, folder if record else None, jobs, lacking, within, folder)
    if as_json:
        for r in records:
            print(r.json())
    else:
        out.print(b.table(records) if records else "nothing was timed" if left else "nothing is stale")
    for name in left:
        _aside(f"left: {name}")
    for peer, cases in sorted(ledger.left_out(folder, records).items() if record else ()):
        _aside(
            f"left out: {peer}, which stood beside {len(cases)} of these cases in {folder} ({min(cases)}): what pages tell of them is without it now"
        )


@app.command()
def tune(
    ops: Ops = None,
    case: Annotated[str, typer.Option(help="Only cases whose name contains this.")] = "",
    every: Annotated[str, typer.Option(help="Try every config only of kernels whose name begins so; of others the heuristic's.")] = "",
    ship: Annotated[bool, typer.Option("--ship", help="Write the choices into the package instead of this machine's cache.")] = False,
    records: Annotated[
        Path | None,
        typer.Option(
            "--from-records",
            help="Time nothing: ship, device by device, what the records in this folder say of whom others were faster than.",
        ),
    ] = None,
    folder: Folder = RECORDS,
    within: Within = math.inf,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Time every kernel and config on the bench cases and remember the fastest that passed."""
    from rooftile.workbench import tuner

    asked = {
        " ".join(ops or []): ops,
        f"--case {case}": case,
        f"--every {every}": every,
        f"--jobs {jobs}": jobs != 1,
        f"--folder {folder}": folder != RECORDS,
        f"--within {within:g}": within != math.inf,
    }
    ignored = next((option for option, said in asked.items() if said), None)
    if records is not None and ignored is not None:
        raise ValueError(f"{ignored}: it is for what is timed, and --from-records {records} times nothing: every record in it counts")
    with _printed_beside(as_json):
        made, left = (
            tuner.tune_ops(ops or [], case, ship, None if as_json else err, every, jobs, folder, within)
            if records is None
            else (tuner.from_records(records), [])
        )
    if as_json:
        for r in made:
            print(r.json())
    else:
        for r in made:
            _line(f"{r.op} {r.case}: ", (r.kernel, "green"), f" {r.config or ''} {r.us[1] if r.us else 0:.1f} us")
        if not made:
            of = f"record in {records} says of another kernel that it is faster than who is chosen"
            _line("no kernel was timed" if records is None else f"no {of}")
    for name in left:
        _aside(f"left: {name}")


@app.command()
def build(
    ops: Ops = None,
    arch: Annotated[str, typer.Option(help="sm_80, sm_90a, sm_100a, ...; this machine's device, or sm_90a where there is none.")] = "",
    every: Annotated[bool, typer.Option(help="Every config that tuning may choose too, not only those that are chosen untuned.")] = False,
    as_json: Json = False,
) -> None:
    """Compile every CUDA C++ kernel ahead of time into the cache and hold it to its limits. Needs neither a GPU nor a compiler."""
    from rooftile.workbench import build as b

    with _printed_beside(as_json):
        rows = b.build(ops or [], arch, every)
    if as_json:
        _say([dataclasses.asdict(r) for r in rows])
    else:
        table = _table("operator", "kernel", "instance", "registers", "spills", "shared", "seconds", "")
        for r in rows:
            took = "kept" if r.cached else f"{r.seconds:.3f}"
            table.add_row(
                r.op,
                r.kernel,
                f"{r.file} {r.instance}",
                *map(str, (r.registers, r.spill_bytes, r.shared_bytes)),
                took,
                Text(r.fault, "red"),
            )
        out.print(table)
        new = [r.seconds for r in rows if not r.cached and not r.fault]
        mean = f", {sum(new) / len(new):.3f} s each" if new else ""
        out.print(f"{len(rows)} instances, {len(new)} compiled now{mean}", highlight=False)
        for r in rows:
            for colour, kind, why in (("red", "fault", r.fault), ("yellow", "note", r.note)):
                if why:
                    _line((kind, colour), f" {r.op} {r.kernel} {r.file} {r.instance}: {why}")
    if any(r.fault for r in rows):
        raise typer.Exit(1)


@app.command()
def suites(
    names: Annotated[list[str] | None, typer.Argument(help="Suites; all of them if none is named.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "",
    record: Keep = False,
    folder: Folder = RECORDS,
    stale: Annotated[
        bool,
        typer.Option(
            "--stale", help="Only points that no record says were judged, of attention as it is now; the record goes on from there."
        ),
    ] = False,
    within: Within = math.inf,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Attention asked what the tests of FlashAttention and of PyTorch ask of theirs, by their arguments and bounds."""
    from rooftile.workbench import gatekeeper
    from rooftile.workbench import suites as s

    where = gatekeeper.resolve(device)
    if where not in ("cpu", "cuda"):
        raise ValueError(f"--device {where}: the suites run on cpu and on cuda")
    kept, lacking = _written_and_read(folder, record, stale)
    gatekeeper.can_keep(kept)
    made = s.run(names or list(s.SUITES), where, jobs, within, None if as_json else err, kept, lacking)
    for r in made:
        if as_json:
            print(r.json())
        else:
            apart = ", ".join(f"{n} {r.extra['apart'][n]:.2f}" for n in s.RESULTS)
            out.print(
                "{passed} right, {failed} wrong, {refused} refused".format(**r.extra) + f"; the furthest off, of what it may be: {apart}",
                highlight=False,
            )
            if r.message:
                _line(("failed", "red"), f" {r.op.removeprefix(s.PREFIX)}: {r.message}")
    if any(r.status != "passed" for r in made):
        raise typer.Exit(1)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine can do and what is missing, in sentences."""
    from rooftile.workbench import doctor as d

    findings = d.examine()
    if as_json:
        return _say(findings)
    for f in findings:
        _line(("yes", "green") if f["ok"] else ("no ", "yellow"), f" {f['sentence']}")
    return None


@app.command()
def pages(
    folder: Annotated[Path, typer.Option(help="The repository.")] = Path(),
    verify: Annotated[bool, typer.Option("--verify", help="Write nothing; exit 1 where a page differs from its records.")] = False,
    as_json: Json = False,
) -> None:
    """Write README tables, ladder tables and roofline pictures from the records."""
    from rooftile.workbench import pages as p

    changed = p.write(folder, verify)
    if as_json:
        _say({"changed": changed})
    else:
        out.print("\n".join(changed) or "every page tells what its records tell", highlight=False)
    if verify and changed:
        raise typer.Exit(1)


@app.command()
def records(
    stale: Annotated[
        bool, typer.Option("--stale", help="Only those whose kernel has changed since, or whose samples lie far apart.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Take out what a later run has measured again, or no case asks for any more.")
    ] = False,
    folder: Folder = RECORDS,
    as_json: Json = False,
) -> None:
    """What has been measured, and what must be measured again."""
    from rooftile.workbench import ledger

    if prune:
        if stale:
            raise ValueError("--stale: it is for what is listed, and --prune keeps the last record of each case, stale or not")
        kept, gone = ledger.prune(folder)
        if as_json:
            return _say({"kept": kept, "gone": gone})
        return _line(f"{kept} records are the last of their kind; {gone} were not, and are gone")
    rows = ledger.overview(folder, stale)
    if as_json:
        return _say(rows)
    table = _table("device", "operator", "kernel", "case", "us", "state")
    for r in rows:
        table.add_row(
            r["device"],
            r["op"],
            r["kernel"],
            r["case"],
            f"{r['us']:.1f}" if r["us"] else "",
            "[yellow]stale[/]" if r["stale"] else "[yellow]unsteady[/]" if r["unsteady"] else "current",
        )
    return out.print(table) if rows else _line(ledger.nothing(folder))


@app.command()
def sim(
    file: Annotated[Path, typer.Argument(help="A .cu file.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="In the kernel's order: f32[65536] (random), f32[65536]:zeros, :arange, :file.npy, i32:65536. Types: f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool."
        ),
    ] = None,
    kernel: Annotated[
        str,
        typer.Option(
            help="Its __global__ function, with template arguments where it has any: 'add<float, 4>'. Not needed where there is one."
        ),
    ] = "",
    grid: Annotated[str, typer.Option(help="Blocks: 8 or 8,1,1.")] = "1",
    block: Annotated[str, typer.Option(help="Threads a block: 256 or 16,16,1.")] = "256",
    shared: Annotated[int, typer.Option(help="Bytes of dynamic shared memory.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Draws the order in which threads run; without one it is always the same.")] = None,
    symbol: Annotated[
        list[str] | None,
        typer.Option(
            help="What a __constant__ or __device__ variable holds that host code would fill: mask=f32[25]:mask.npy, scale=f32:0.5."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a CUDA C++ kernel on this CPU and name the lines that race, miss, misalign, diverge or hang; and what its memory accesses cost."""
    from rooftile.workbench import sim as s

    with _printed_beside(as_json):
        report = s.simulate(file, kernel, grid, block, shared, arguments or [], seed, symbol or [])
    if as_json:
        _say(report.json())
    else:
        for f in report.findings:
            _line((f.kind, "red"), f" {f.file}:{f.line}: {f.sentence}")
        table = _table("line", "access", "bytes a lane", "requests", "a request")
        for a in report.accesses:
            unit = "wavefronts" if a.space == "shared" else "sectors"
            what = f"{a.space} {'store' if a.store else 'load'}"
            table.add_row(f"{Path(a.file).name}:{a.line}", what, str(a.bytes), str(a.requests), f"{a.per_request:.2f} {unit}")
        if report.accesses:
            out.print(table)
        out.print(f"{len(report.findings)} findings", highlight=False)
    if report.findings:
        raise typer.Exit(1)


@contextlib.contextmanager
def _printed_beside(as_json: bool) -> Iterator[None]:
    """What kernels and launchers print goes to stderr, so that JSON stands alone."""
    if not as_json:
        return (yield)
    print(end="", flush=True)
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        print(end="", flush=True)
        os.dup2(kept, 1)
        os.close(kept)


def _without_controls(text: str) -> str:
    """A young model draws any bytes: an escape among them would move a terminal's cursor, or empty it. sample.txt has them as they are."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _train(as_json: bool, **knobs: Any) -> None:
    """Train a GPT-2 or a Llama built from the operators: loss curve, sample and a Hugging Face folder at the end; --resume goes on after a kill."""
    from rooftile.training import Terminated, TrainConfig, train

    silent = knobs["parallel"] != "none" and os.environ.get("RANK", "0") != "0"  # as in _fail
    try:
        result = train(TrainConfig(**knobs), progress=not as_json)
    except Terminated as ended:
        if not silent:
            _aside(f"rooftile: {ended.sentence}", "bold yellow")
            if as_json:
                _say({"error": ended.sentence})
        raise SystemExit(ended.code) from ended  # one that is no KeyboardInterrupt, of which typer knows nothing but to abort
    if silent:
        return None
    if as_json:
        return _say(result.to_dict())
    out.print(_without_controls(result.sample), highlight=False, markup=False)
    speed = f", {result.tokens_per_s:,.0f} tokens/s" if result.tokens_per_s else ""
    out.print(
        f"validation loss {result.val_loss:.3f} nats a token after {result.steps} steps ({result.seconds:.0f} s{speed})", highlight=False
    )
    return out.print(f"{result.curve}  {result.metrics}  {result.model}", highlight=False, markup=False, soft_wrap=True)


def _knobs() -> inspect.Signature:
    """The options of `train`, read off TrainConfig: a knob is declared once, with its line of help."""
    from rooftile.training import TrainConfig

    hints = get_type_hints(TrainConfig)
    options = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=f.default,
            annotation=Annotated[hints[f.name], typer.Option(help=escape(f.metadata["help"]))],  # rich takes [steps] for a style
        )
        for f in dataclasses.fields(TrainConfig)
    ]
    return inspect.Signature([inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json), *options])


def _profile_train(as_json: bool, **knobs: Any) -> None:
    """A training step's operators by what they lose to their floors, and the picture of it in OUT. Takes the knobs of `rooftile train` that say what a step is."""
    from rooftile.core.record import unwritable
    from rooftile.training import TrainConfig
    from rooftile.workbench import profile as p

    config = TrainConfig(**knobs).resolved()
    picture = Path(config.out) / "profile.png"
    if why := unwritable(picture.parent):
        raise ValueError(f"the output folder {picture.parent} cannot be written: {why}")
    found = p.profile_training(config)
    p.draw(found, picture)
    if as_json:
        return _say({**found, "rows": [dataclasses.asdict(row) for row in found["rows"]], "picture": str(picture)})
    out.print(p.table(found))
    busy = sum(row.us for row in found["rows"]) / 1e3
    return out.print(
        f"a step takes {found['step_ms']:.2f} ms, the operators above {busy:.2f} ms; {picture}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


profiles = typer.Typer(help="Where the time of a whole step goes.", no_args_is_help=True)
app.add_typer(profiles, name="profile")
for name, command, home in (("train", _train, app), ("train", _profile_train, profiles)):
    command.__signature__ = _knobs()  # type: ignore[attr-defined]
    home.command(name)(command)
