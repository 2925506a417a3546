"""No figure without a record, and none that is older than its kernel without saying so."""

import json
import math
import re
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import processes
import rooftile
from edited_sources import forget
from rooftile.cli import app
from rooftile.core import device as dev
from rooftile.core import record, timing, tune
from rooftile.core.kernel import OPS, Kernel, launched
from rooftile.core.record import Record, Status, append, digest_of, essence, read
from rooftile.core.spec import Case
from rooftile.cuda.source import Source
from rooftile.ops.attention_decode import fragments_kernels
from rooftile.workbench import bench, explain, gatekeeper, ledger, pages, scaling, training_records, tuner

ROOT = Path(__file__).resolve().parent.parent
FIGURE = re.compile(r"\d[\d,.]*\s*(?:GB/s|TFLOP/s|tokens/s|tok/s|us\b|ms\b|GiB)")


def test_every_page_tells_what_the_records_tell():
    assert pages.write(ROOT, verify=True) == []


def test_no_figure_stands_outside_the_marked_blocks():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src" / "rooftile" / "ops").glob("*/README.md")]:
        text = re.sub(r"<!-- rooftile:(\w+) -->.*?<!-- /rooftile:\1 -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert FIGURE.findall(text) == [], page


def test_committed_records_are_whole():
    for device, r in ledger.every(ROOT / "records"):
        assert device and r.op and r.kernel and r.case and r.run, r
        assert r.environment.get("gpu") and r.environment.get("torch"), r


BLOCKS = {"README.md": ("gate", "sanitizer", "summary", "training", "losses", "scaling"), "docs/speed.md": ("speed", "host")}
SPEED = "docs/speed.md"


def page(folder: Path, name: str) -> str:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"<!-- rooftile:{b} -->\n<!-- /rooftile:{b} -->\n" for b in BLOCKS[name]))
    pages.write(folder, verify=False)
    return (folder / name).read_text()


@pytest.fixture
def measured(tmp_path):
    op = OPS["softmax"]
    kernel = op.kernels[0]
    r = Record(
        "softmax",
        kernel.name,
        next(c.id for c in op.spec.cases if "bench" in c.use),
        "passed",
        us=(1.0, 2.0, 3.0),
        gbps=1234.0,
        tflops=0.1,
        of_ceiling=0.5,
        digest=kernel.digest,
        run="r1",
    )
    append(tmp_path / "records" / "gpu" / "softmax.jsonl", [r, replace(r, kernel="peer.torch", digest="", us=(2.0, 4.0, 6.0), gbps=617.0)])
    return tmp_path, r


def test_a_current_figure_is_shown_as_current(measured):
    folder, _ = measured
    text = page(folder, SPEED)
    assert "1234 GB/s" in text and "stale" not in text and "2.00" in text
    assert pages.write(folder, verify=True) == []


def test_an_operator_is_a_line_on_the_front_page(measured, monkeypatch):
    folder, r = measured
    cases = [c.id for c in OPS["softmax"].spec.cases if "bench" in c.use]
    slow = replace(r, case=cases[1], us=(3.0, 4.0, 5.0))
    append(folder / "records" / "gpu" / "softmax.jsonl", [slow, *(replace(slow, kernel=f"peer.{n}", us=(us, us, us), digest="")
                                                                   for n, us in (("torch", 9.0), ("compile", 2.0), ("copy", 3.0)))])  # fmt: skip
    wanted = "| 2 | 75% | 1.00 (0.50 to 2.00) |  |  |  |"
    assert [line for line in page(folder, "README.md").splitlines() if "softmax" in line or "| all |" in line] == [
        f"| all {wanted}",
        f"| softmax {wanted}",
    ]
    monkeypatch.setattr(Kernel, "digest", "another")
    assert "| softmax | 2 (stale) |" in page(folder, "README.md")


def test_a_ladder_is_a_line_a_case_and_says_below_what_is_no_time(measured, monkeypatch):
    folder, r = measured
    forward = OPS["softmax"]
    slower, declined = ("cuda.v9_ahead", "triton"), "cuda.v1_thread_row"
    more = [*(replace(r, kernel=n, us=(7.0, 8.0, 9.0), digest=forward.kernel(n).digest) for n in slower),
            replace(r, kernel=declined, status="refused", us=None, gbps=None, tflops=None, of_ceiling=None, message="a row of 1"),
            replace(r, kernel="peer.compile", status="error", us=None, gbps=None, tflops=None, of_ceiling=None, message="it is broken")]  # fmt: skip
    append(folder / "records" / "gpu" / "softmax.jsonl", more)
    told = pages.ladder([forward], ledger.latest(folder / "records"))
    first = told.split("### softmax_backward")[0]
    assert first.startswith("### softmax\n\n- `cuda.v1_thread_row`: ") and "Not measured yet." in told.split("### softmax_backward")[1]
    assert f"| case, us | cuda.v9_ahead | {r.kernel} | triton | torch.compile | torch | the fastest of ours | of ceiling |" in first
    assert f"| `{r.case}` | 8.0 | **2.0** | 8.0 | error | 4.0 | 1234 GB/s | 50% |" in first
    assert f"- `{declined}` refuses: a row of 1\n- `torch.compile`, `{r.case}`: error: it is broken\n" in first
    monkeypatch.setattr(Kernel, "digest", "another")
    assert "| 8.0 (stale) | **2.0** (stale) |" in pages.ladder([forward], ledger.latest(folder / "records"))


def test_of_several_devices_the_one_with_fresh_figures_is_told_openly(measured, monkeypatch):
    folder, r = measured
    append(
        folder / "records" / "an-older-gpu" / "softmax.jsonl",
        [replace(r, digest="another", gbps=55.0), replace(r, kernel="peer.torch", digest="")],
    )
    text = page(folder, SPEED)
    openly, folded = text.split("<details><summary>")
    assert openly.index("**gpu**") < openly.index("1234 GB/s") and folded.startswith(
        "an-older-gpu, 1 of its figures stale</summary>\n\n| operator |"
    )
    assert "| 55 GB/s (stale) |" in folded and folded.count("</details>") == 1


def test_a_time_whose_samples_lie_far_apart_is_said_to_be_unsteady(measured):
    """Seen red: a peer's 4 us that were 109 where something else had the cores, and ours that much faster on the page."""
    folder, r = measured
    clock = {"method": "CUDA events around calls", "run": "r2"}
    steady, case = replace(r, us=(1.9, 2.0, 2.1), **clock), r.case
    slower = [replace(steady, kernel=k.name, digest=k.digest, us=(8.0, 8.0, 8.0)) for k in OPS["softmax"].kernels[1:-1]]
    file, peer = (
        folder / "records" / "gpu" / "softmax.jsonl",
        replace(steady, kernel="peer.compile", digest="", us=(5.0, 5.0, 5.0), gbps=493.0),
    )
    append(file, [steady, *slower, peer])
    assert not ledger.due(folder / "records", "gpu")("softmax", case) and ledger.overview(folder / "records", True) == []
    append(file, [replace(peer, kernel="peer.torch", us=(3.0, 40.0, 90.0), gbps=61.0)])
    due = ledger.due(folder / "records", "gpu")
    assert f"| `{case}` | {r.kernel} | 1234 GB/s | 50% |  | torch.compile 493 GB/s, torch 61 GB/s (unsteady) | 1.50 |" in page(
        folder, SPEED
    )
    assert "| 1.50 (1.50 to 1.50) |" in page(folder, "README.md")
    notes = list(bench.table([steady, replace(peer, us=(3.0, 40.0, 90.0))]).columns[-1].cells)
    assert [str(note) for note in notes] == ["", "unsteady, 3.0 to 90.0: something else had the device or its host"]
    broken = replace(peer, us=(3.0, 40.0, 90.0), status=Status.ERROR, message="it is broken")
    assert [str(note) for note in bench.table([broken]).columns[-1].cells] == ["error: it is broken"]
    assert pages.of_copy(steady, [replace(peer, kernel="peer.copy", us=(1.0, 40.0, 90.0))]) == 0.5
    assert "| 40.0 (unsteady) |" in pages.ladder([OPS["softmax"]], ledger.latest(folder / "records"))
    assert due("softmax", case) and [row["kernel"] for row in ledger.overview(folder / "records", True)] == ["peer.torch"]
    assert not ledger.is_unsteady(replace(peer, method="perf_counter, turns")) and not ledger.is_unsteady(
        replace(peer, us=(36.0, 40.0, 45.9))
    )


def test_a_training_step_has_its_time_and_its_tokens_in_the_table():
    step = Record("train.gpt2-124m", "rooftile", "B32_T1024", "passed", us=(52000.0, 52289.7, 52300.0), extra={"tokens_per_s": 626663.0})
    cells = [str(next(iter(column.cells))) for column in bench.table([step]).columns]
    assert cells == ["train.gpt2-124m", "B32_T1024", "rooftile", "52289.7", "", "", "", "626,663 tokens/s"]


def test_an_unsteady_time_says_nothing_of_who_is_fastest(tmp_path):
    op, other = OPS["softmax"], "cuda.v4_vector"
    case = next(c.id for c in op.spec.cases if "bench" in c.use)

    def fastest(of_other, run):
        told = {k.name: (8.0, 8.0, 8.0) for k in op.kernels[:-1]} | {other: of_other}
        made = [
            Record("softmax", n, case, Status.PASSED, us=us, method="CUDA events", digest=op.kernel(n).digest, run=run)
            for n, us in told.items()
        ]
        append(tmp_path / "nvidia-h200" / "softmax.jsonl", made)
        return [best.kernel for _, _, best in ledger.chosen_and_fastest(tmp_path)]

    assert other not in fastest((1.0, 2.0, 2.1), "unsteady") and fastest((1.9, 2.0, 2.1), "steady") == [other]


def test_the_list_of_what_is_stale_says_what_is_unsteady(measured):
    folder, r = measured
    append(folder / "records" / "gpu" / "softmax.jsonl", [replace(r, us=(1.0, 2.0, 9.0), method="CUDA events", run="r2")])
    told = CliRunner().invoke(app, ["records", "--stale", "--folder", str(folder / "records")], env={"COLUMNS": "200"}).output
    assert "unsteady" in told and "current" not in told


def test_a_peer_that_a_new_run_leaves_out_is_told(tmp_path):
    """Seen: a run without the best of them took its place in the tables, which said of it no more than of one that had never been asked."""
    old = Record("softmax", "triton", "M1_N2", "passed", run="a", us=(1.0, 1.0, 1.0), environment={"gpu": "G"})
    peers = [replace(old, kernel=f"peer.{n}") for n in ("torch", "fa4", "copy")] + [
        replace(old, kernel="peer.flex", status="error", us=None)
    ]
    other = [replace(old, kernel="peer.quack", case="M3_N4"), replace(old, kernel="peer.liger", environment={"gpu": "another"})]
    new = [replace(old, run="b"), *(replace(p, run="b") for p in (peers[0], peers[2]))]
    append(tmp_path / "g" / "softmax.jsonl", [old, *peers, *other, *new])
    assert ledger.left_out(tmp_path, new) == {"fa4": {"softmax M1_N2"}}
    assert ledger.left_out(tmp_path, []) == {}


def test_a_hosts_time_without_its_yardstick_is_stale(measured):
    """Seen on a page: 18 us beside 10 of a like operator, from a host that nobody knows any more."""
    folder, r = measured
    host = replace(r, case=ledger.HOST + r.case, us=None, gbps=None, extra={"host_us": 18.5})
    append(folder / "records" / "gpu" / "softmax.jsonl", [host])
    assert ledger.is_stale(host) and [row["case"] for row in ledger.overview(folder / "records", True)] == [host.case]
    append(folder / "records" / "gpu" / "softmax.jsonl", [known := replace(host, run="r2", extra={"host_us": 9.0, "layer_norm_us": 15.0})])
    assert not ledger.is_stale(known) and ledger.overview(folder / "records", True) == []


def test_a_changed_kernel_makes_its_figure_stale_and_the_page_wrong(measured, monkeypatch):
    folder, _ = measured
    page(folder, SPEED)
    monkeypatch.setattr(Kernel, "digest", "another")
    assert pages.write(folder, verify=True) == [SPEED]
    assert "1234 GB/s (stale)" in page(folder, SPEED)
    assert [row["stale"] for row in ledger.overview(folder / "records", True)] == [True]


def test_a_case_that_is_no_more_is_told_of_nowhere(measured):
    folder, r = measured
    append(folder / "records" / "gpu" / "softmax.jsonl", [replace(r, case="M1_N1", gbps=777.0, digest="another")])
    assert "777" not in page(folder, SPEED) and ledger.overview(folder / "records", True) == []


def test_a_disk_that_fills_up_leaves_the_page_whole(measured):
    """Seen red: a README.md cut off where the disk was full, and no word of which file it was."""
    folder, _ = measured
    (folder / "docs").mkdir()
    page = folder / SPEED
    page.write_text("".join(f"<!-- rooftile:{b} -->\n<!-- /rooftile:{b} -->\n" for b in BLOCKS[SPEED]) + "by hand\n" * 1000)
    before = page.read_text()
    code = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\nfrom rooftile import cli\ncli.main()"
    run = processes.run("pages", "--folder", str(folder), code=code)
    assert run.returncode == 2 and run.stderr == f"rooftile: {page} cannot be written, the old one stands: File too large\n"
    assert page.read_text() == before and [f.name for f in page.parent.iterdir()] == ["speed.md"]


def test_a_figure_no_record_holds_is_found(measured):
    folder, _ = measured
    page(folder, SPEED)
    text = (folder / SPEED).read_text()
    (folder / SPEED).write_text(text.replace("1234", "2345"))
    assert pages.write(folder, verify=True) == [SPEED]


def test_comments_and_docstrings_do_not_count():
    a = 'def f(x):\n    """Doc."""\n    # why\n    return x + 1  # because\n'
    b = "def f(x):\n\n    return x + 1\n"
    assert essence(a) == essence(b)
    assert essence(a) != essence(a.replace("+ 1", "+ 2"))
    assert essence('s = "# no comment"\n') == 's = "# no comment"'
    assert essence('def é():\n    "ü" "ö"\n    return "ß"  # ä\n') == 'def é():\n    return "ß"'


def test_digest_reaches_what_a_kernel_is_made_of(monkeypatch):
    run = OPS["softmax"].kernels[0].run
    before = digest_of(run)
    assert digest_of(partial(run)) == before  # seen red: it was that of functools, and never changed
    forget()
    shared = Path(record._origin("rooftile.ops._shared.launch"))
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **k: real(self, **k) + ("\nX = 1\n" if self == shared else ""))
    assert digest_of(run) != before
    forget()


DOORS = (  # operator and kernel, a door that it reaches, what is written behind it, and whether its figures speak of that
    ("linear_cross_entropy", "chunked", "cross_entropy", "class Another: ...", False),
    ("linear_cross_entropy", "chunked", "cross_entropy", "def another(x):\n    return _cross_entropy(x)", False),
    ("linear_cross_entropy", "chunked", "cross_entropy", "_another = 1", True),
    ("cross_entropy", "triton", "cross_entropy", "class Another: ...", False),  # which does not reach its own
)


@pytest.mark.parametrize("name, kernel, door, more, moves", DOORS)
def test_a_door_of_other_operators_counts_by_what_is_used_of_it(name, kernel, door, more, moves, monkeypatch):
    """A module that refused more words made figures stale of operators whose kernels launch its operator and know nothing of modules."""
    run = OPS[name].kernel(kernel).run
    forget()
    before, real, edited = digest_of(run), Path.read_text, Path(record._origin(f"rooftile.ops.{door}.api"))
    forget()
    monkeypatch.setattr(Path, "read_text", lambda self, **k: real(self, **k) + (f"\n\n{more}\n" if self == edited else ""))
    try:
        assert (digest_of(run) != before) == moves
    finally:
        forget()


def test_what_a_kept_function_names_is_kept(tmp_path, monkeypatch):
    source = tmp_path / "api.py"
    source.write_text("import math\n\n@cache\ndef a():  # why\n    return b\n\ndef b(): ...\ndef c(): ...\nclass D: ...\n\nX = Op(c)\n")
    monkeypatch.setattr(record, "_origin", lambda module: str(source))
    record._needed.cache_clear()
    assert record._needed("m", frozenset()) == "import math\ndef c(): ...\nX = Op(c)"
    assert record._needed("m", frozenset({"a"})) == "import math\n@cache\ndef a():\n    return b\ndef b(): ...\ndef c(): ...\nX = Op(c)"
    record._needed.cache_clear()


def test_a_training_digest_reaches_the_cuda_files_of_its_operators(monkeypatch):
    """Seen red: a step's record stayed current whatever became of attention's backward."""
    (source,) = OPS["attention_backward"].kernel("cuda.v5_hopper").sources
    before, real = training_records.training_digest("train.gpt2-124m"), Path.read_text
    for path, moves in ((source.path, True), (OPS["rope"].kernel("cuda.v2_vector").sources[0].path, False)):
        forget()
        monkeypatch.setattr(Path, "read_text", lambda self, p=path, **k: real(self, **k) + ("\nint x;\n" if self == p else ""))
        assert (training_records.training_digest("train.gpt2-124m") != before) == moves
    forget()


def test_a_training_digest_leaves_out_operators_that_were_not_launched(monkeypatch):
    """Seen red: GPT-2's step, which has no call of few queries, went stale with every change of decoding, to which attention's split would come."""
    name, real = "train.gpt2-124m", Path.read_text
    ran = {"attention_qkvpacked", "attention_qkvpacked_backward", "mlp", "adamw"}
    decoding, (attention,) = fragments_kernels.V2.path, OPS["attention_backward"].kernel("cuda.v5_hopper").sources
    before = {with_it: training_records.training_digest(name, ran | with_it) for with_it in (frozenset(), frozenset({"attention_decode"}))}
    assert training_records.training_digest(name) == training_records.training_digest(name, OPS)
    launcher = Path(record._origin(fragments_kernels.__name__))
    for path, moves in ((decoding, [False, True]), (launcher, [False, True]), (attention.path, [True, True])):
        more = "\nX = 1\n" if path.suffix == ".py" else "\nint x;\n"
        forget()
        monkeypatch.setattr(Path, "read_text", lambda self, p=path, more=more, **k: real(self, **k) + (more if self == p else ""))
        assert [training_records.training_digest(name, ran | with_it) != held for with_it, held in before.items()] == moves
    forget()


def test_launched_names_who_was():
    OPS["gelu"].launch(torch.ones(4), "none")
    with launched() as ran:
        x = torch.ones(2, 3, requires_grad=True)
        rooftile.softmax(x).sum().backward()
    assert ran == {"softmax", "softmax_backward"}


def test_what_two_processes_share_is_in_the_digest_of_what_they_reach_together(monkeypatch):
    """Seen red: scaling stayed current whatever became of parallel.py."""
    real, edited = Path.read_text, Path(record._origin("rooftile.training.parallel"))
    before = {name: training_records.training_digest(name) for name in ("train.llama-1.2b", "scaling.llama-1.2b")}
    monkeypatch.setattr(Path, "read_text", lambda self, **k: real(self, **k) + ("\nX = 1\n" if self == edited else ""))
    forget()
    try:
        assert [training_records.training_digest(name) != held for name, held in before.items()] == [False, True]
    finally:
        forget()


def test_a_source_edited_while_the_clock_runs_is_not_what_was_timed(monkeypatch):
    """Its record is of the code that was imported."""
    op, real = OPS["gelu"], Path.read_text
    before, edited = op.kernel("triton").digest, Path(record._origin("rooftile.ops.gelu.triton_kernels"))

    def timed(session, op, case, against):
        monkeypatch.setattr(Path, "read_text", lambda self, **k: real(self, **k) + ("\nX = 1\n" if self == edited else ""))
        return [session.record(op, "triton", case.id, status=Status.PASSED)]

    monkeypatch.setattr(bench, "_case", timed)
    monkeypatch.setattr(bench.dev, "ceilings", lambda where, refresh: None)
    forget()
    assert {r.digest for r in bench.bench(["gelu"], [], "cpu", "", None, None)[0] if r.op == "gelu"} == {before}
    forget()


def test_what_has_no_record_as_it_is_now_is_timed_and_nothing_else(monkeypatch, tmp_path):
    """A case that is whole, one whose kernel has changed since, one that came before a kernel, one never timed; then no time at all."""
    op = OPS["gelu"]
    whole, changed, before, *never = (c.id for c in op.spec.cases if "bench" in c.use)
    kernels = [k for k in op.kernels if k.name != "reference"]

    def held(case, kernels, digest=None, run="before"):
        return [Record("gelu", k.name, case, Status.PASSED, us=(1.0, 1.0, 1.0), digest=digest or k.digest, run=run) for k in kernels]

    rows = [*held(whole, kernels), *held(changed, kernels[1:]), *held(changed, kernels[:1], "another"), *held(before, kernels[1:])]
    append(tmp_path / "cpu" / "gelu.jsonl", rows)
    append(tmp_path / "gpu" / "gelu.jsonl", [r for case in never for r in held(case, kernels)])  # of another device
    monkeypatch.setattr(bench.dev, "ceilings", lambda where, refresh: None)
    monkeypatch.setattr(
        bench, "_case", lambda session, op, case, against: held(case.id, kernels, run="now") if op.spec.name == "gelu" else []
    )
    due = ledger.due(tmp_path, "cpu")
    assert due("train.gpt2-124m") and due("gelu") and due("gelu_backward", whole)
    ask = {"names": ["gelu"], "against": [], "device": "cpu", "only": "", "progress": None}
    made, left = bench.bench(**ask, folder=None, lacking=tmp_path, within=0.0)
    assert not made and [s for s in left if "backward" not in s] == [f"gelu {case}" for case in (changed, before, *never)]
    made, left = bench.bench(**ask, folder=tmp_path, lacking=tmp_path)
    assert {r.case for r in made} == {changed, before, *never} and not left
    assert not any(s.startswith("gelu ") for s in bench.bench(**ask, folder=None, lacking=tmp_path, within=0.0)[1])


def test_a_refusal_counts_while_that_kernel_refuses_that_case_in_the_same_words(tmp_path):
    """It is no figure: a kernel that has changed, or came after, and refuses a case has nobody timed again for it."""
    op = OPS["cross_entropy"]
    case = next(c.id for c in op.spec.cases if "bench" in c.use and c.id.startswith("M8192_V50304"))
    refused = Record(
        "cross_entropy", "triton", case, Status.REFUSED, message=ledger._refusals("cross_entropy", case)["triton"], digest="another"
    )
    timed = [Record("cross_entropy", k.name, case, Status.PASSED, digest=k.digest) for k in op.kernels[:-1] if k.name != "triton"]

    def due(name, *records):
        append(tmp_path / name / "gpu" / "cross_entropy.jsonl", records)
        return ledger.due(tmp_path / name, "gpu")("cross_entropy", case)

    assert not ledger.is_stale(refused) and not due("refuses", refused, *timed) and not due("came after", *timed)
    other = replace(refused, message="V=50304 is too long")
    assert ledger.is_stale(other) and due("in other words", other, *timed)
    takes = replace(refused, kernel="cuda.v3_online")
    assert ledger.is_stale(takes) and due("takes it now", refused, takes, *(r for r in timed if r.kernel != "cuda.v3_online"))
    assert due("came after and takes it", refused, *(r for r in timed if r.kernel != "cuda.v3_online"))
    assert ledger.is_stale(replace(refused, status=Status.PASSED))


def test_the_hosts_time_is_taken_alone_where_it_is_asked_for(tmp_path, monkeypatch):
    """Where a GPU is: here it is only said to be one."""
    op = OPS["softmax"]
    least, *small = bench.called_cases([op, op.backward], "", ["torch", "liger"])
    assert (
        least[0] is op and least[2] == ["torch"] and {"call" in c.use for _, c, _ in small} == {True} and small[0][2] == ["torch", "liger"]
    )
    assert bench.called_cases([op], "M64_N8192", [])[0][1].id.startswith("M64_N8192") and not bench.called_cases([op], "nowhere", [])
    made = []
    monkeypatch.setattr(bench.gatekeeper, "resolve", lambda device: "cuda")
    monkeypatch.setattr(bench, "Session", lambda *_: SimpleNamespace(where=torch.device("cpu"), run="now", hold=lambda ops: None))
    monkeypatch.setattr(bench, "_case", lambda session, op, case, against: [])
    monkeypatch.setattr(bench, "_calls", lambda session, op, case, peers: made.append(ledger.HOST + case.id) or [])
    ask = {"names": ["softmax"], "against": [], "device": "cuda", "progress": None, "folder": None}
    assert bench.bench(**ask, only="host-") == ([], []) and made == [ledger.HOST + c.id for _, c, _ in (least, *small)]
    left = bench.bench(**ask, only="M64_N8192", within=0.0)[1]
    assert [s.startswith(f"softmax {ledger.HOST}") for s in left].count(True) == 1 and len(left) > 1
    with pytest.raises(ValueError, match="--case 'nowhere' is in the name of none"):
        bench.bench(**ask, only="nowhere")
    chosen = op.choose(op.spec.draw(least[1])).kernel
    append(tmp_path / "cpu" / "softmax.jsonl", [Record("softmax", chosen.name, made[0], Status.PASSED, digest=chosen.digest)])
    assert not ledger.due(tmp_path, "cpu")("softmax", made[0]) and ledger.due(tmp_path, "cpu")("softmax", made[1])
    append(tmp_path / "cpu" / "softmax.jsonl", [Record("softmax", chosen.name, made[0], Status.PASSED, digest="another", run="later")])
    assert ledger.due(tmp_path, "cpu")("softmax", made[0])


@pytest.fixture
def a_gpu(monkeypatch):
    """What is judged here as a GPU's is judged on this CPU, by what a case says of two operators' kernels."""
    real = gatekeeper.gate.run_points
    monkeypatch.setattr(gatekeeper, "resolve", lambda device: "cuda")
    monkeypatch.setattr(gatekeeper, "slug_here", lambda: "gpu")
    monkeypatch.setattr(
        gatekeeper.gate, "run_points", lambda points, device, each=None: real([p for p in points if p.kernel.name == "reference"], "cpu")
    )
    monkeypatch.setattr(gatekeeper, "_here", lambda point, device: point.kernel.name == "reference")
    return ["vector_add", "array_increment"]


def test_what_the_gate_said_is_a_record(a_gpu, tmp_path, monkeypatch):
    """Of each kernel all of whose cases were judged; it counts until the kernel changes, and a wrong one does not. Of a folder that is not there everything
    was asked again, as of one with no record."""
    with pytest.raises(FileNotFoundError, match="nowhere is no folder of records"):
        gatekeeper.check(a_gpu, None, "cuda", None, lacking=tmp_path / "nowhere")
    total = gatekeeper.check(a_gpu, None, "cuda", None, folder=tmp_path / "records")
    kept = {(r.op, r.kernel): r for _, r in ledger.every(tmp_path / "records")}
    assert not total["left"] and not total["failed"] and sum(r.extra["passed"] for r in kept.values()) == total["passed"] > 20
    assert ledger.green(tmp_path / "records", "gpu") == set(kept) and not ledger.green(tmp_path / "records", "cpu")
    here = dict(next(iter(kept.values())).environment)
    assert ledger.green(tmp_path / "records", "gpu", here) == set(kept)
    assert not ledger.green(tmp_path / "records", "gpu", {**here, "torch": "9.9"})
    again = gatekeeper.check([*a_gpu, "gelu"], None, "cuda", None, folder=tmp_path / "records", lacking=tmp_path / "records")
    assert {r["op"] for r in again["results"]} == {"gelu", "gelu_backward"}
    text = page(tmp_path, "README.md")
    assert f"| {len(kept) + 2} of " in text and f"vector_add {len(OPS['vector_add'].kernels) - 1}," in text
    monkeypatch.setattr(Kernel, "digest", "another")
    assert not ledger.green(tmp_path / "records", "gpu")
    monkeypatch.undo()


def test_a_kernel_whose_cases_were_not_all_judged_or_were_wrong_is_not_green(a_gpu, tmp_path, monkeypatch):
    """No time, a device that dies on the way, and a wrong verdict."""
    total = gatekeeper.check(a_gpu, None, "cuda", None, folder=tmp_path, within=0.0)
    assert set(total["left"]) == {f"{n}{b} reference" for n in a_gpu for b in ("", "_backward")} and not list(ledger.every(tmp_path))
    whole = gatekeeper.gate.run_points
    monkeypatch.setattr(gatekeeper.gate, "run_points", lambda points, device, each=None: whole(points, device)[:-1])
    assert gatekeeper.check(a_gpu, None, "cuda", None, folder=tmp_path)["left"] and not list(ledger.every(tmp_path))
    wrong = lambda points, device, each=None: [replace(v, status=Status.FAILED, message="off") for v in whole(points, device)]  # noqa: E731
    monkeypatch.setattr(gatekeeper.gate, "run_points", wrong)
    assert gatekeeper.check(["vector_add"], None, "cuda", None, folder=tmp_path)["failed"]
    assert [r.status for _, r in ledger.every(tmp_path)] == ["failed"] * 2 and not ledger.green(tmp_path, "gpu")


def test_a_cpus_verdicts_are_no_records(tmp_path):
    with pytest.raises(ValueError, match="--record: it is for the kernels of a GPU, on cpu 1 process judges all of them"):
        gatekeeper.check(["vector_add"], None, "cpu", None, folder=tmp_path)


def test_digest_reaches_the_cuda_files_and_their_headers(tmp_path):
    run = OPS["softmax"].kernels[0].run
    (tmp_path / "k.cu").write_text('#include "part.cuh"\n// why\n__global__ void k(int n) {\n}\n')
    (tmp_path / "part.cuh").write_text("#define WIDTH 4\n")

    def now():
        forget()
        return digest_of(run, Source(tmp_path / "k.cu").files)

    before = now()
    (tmp_path / "k.cu").write_text('#include "part.cuh"\n__global__ void k(int n) {\n}  // because\n')
    assert now() == before != digest_of(run)
    (tmp_path / "part.cuh").write_text("#define WIDTH 8\n")
    assert now() != before


def test_a_record_is_of_the_commit_of_the_sources(tmp_path):
    """Seen red: it was that of whatever repository one stood in."""
    words = ("-c", "user.name=one", "-c", "user.email=one@two", "commit", "-q", "--allow-empty", "-m", "another")
    for made in (("init", "-q"), words):
        subprocess.run(["git", "-C", str(tmp_path), *made], check=True)
    code = f"import os\nos.chdir({str(tmp_path)!r})\nfrom rooftile.core.record import Environment\nprint(Environment.here().commit)"
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    mine = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    assert processes.run(code=code, ROOFTILE_COMMIT="").stdout == (mine or "\n")


def test_records_survive_the_file(tmp_path):
    r = Record("op", "k", "c", "passed", us=(1.0, 2.0, 3.0), errors={"out": float("inf")}, extra={"a": [1, 2.5]})
    append(tmp_path / "x.jsonl", [r, r])
    back = list(read(tmp_path / "x.jsonl"))
    assert len(back) == 2 and back[0].us == (1.0, 2.0, 3.0) and back[0].errors == {"out": "inf"}
    (tmp_path / "x.jsonl").write_text('{"op": 1\n')
    with pytest.raises(ValueError, match=r"x\.jsonl:1 is not a record"):
        list(read(tmp_path / "x.jsonl"))


def test_a_torn_line_takes_no_other_with_it_and_no_operator_dies_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    kept = tune.path("gpu")
    kept.parent.mkdir()
    kept.write_text('{"op": "softmax", "kern')
    append(kept, [Record("softmax", "triton", "x", "passed", us=(1.0, 1.0, 1.0))])
    assert Record.parse(kept.read_text().splitlines()[1]).kernel == "triton"
    with pytest.warns(RuntimeWarning, match=r"tuned choices are left out.*gpu\.jsonl:1 is not a record"):
        assert tune._load("gpu") == {}


@pytest.mark.parametrize(
    "line, why",
    [
        ("null", "it is a JSON NoneType, not an object"),
        ('["softmax", "triton"]', "it is a JSON list, not an object"),
        ('{"kernel": "triton", "case": "x"}', "it has no op, status"),
        ('{"op": "softmax", "kernel": "triton", "case": 5, "status": "passed"}', "case is 5, not a str"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "passed", "config": null}', "config is None, not a dict"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "passed", "us": "123"}', "us is '123', not 3 numbers"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "passed", "us": [1.0]}', r"us is \[1.0\], not 3 numbers"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "passed", "us": [1, NaN, 2]}', r"us is \[1, nan, 2\], not 3 numbers above 0"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "passed", "us": [0, 1, 2]}', r"us is \[0, 1, 2\], not 3 numbers above 0"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "passed", "gbps": Infinity}', "gbps is inf, not a number"),
        ('{"op": "softmax", "kern', "it is no JSON, at character 19 of 23: Unterminated string"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "fine"}', "status is 'fine', it is one of passed, failed, refused, error"),
        ('{"op": "softmax", "kernel": "triton", "case": "x", "status": "passed", "gbps": "9"}', "gbps is '9', not a number"),
        ('{"op": "train.gpt2-124m", "kernel": "rooftile", "case": "x", "status": "passed", "extra": {"ran": 3}}', "extra has ran 3, not a list of operators"),
    ],
)  # fmt: skip
def test_json_that_is_no_record_is_told_with_its_line_and_no_operator_dies_of_it(tmp_path, monkeypatch, line, why):
    """Seen red: an AttributeError in `rooftile records` and, of a tuned choice, in the call of the operator; us as text, too short, NaN or 0 got
    through, and `records --json` then printed NaN, which is no JSON."""
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    kept = tune.path("gpu")
    append(kept, [Record("softmax", "triton", "x", "passed", us=(1.0, 1.0, 1.0))])
    kept.write_text(f"{kept.read_text()}{line}\n")
    with pytest.raises(ValueError, match=rf"gpu\.jsonl:2 is not a record: {why}"):
        list(read(kept))
    with pytest.warns(RuntimeWarning, match=rf"tuned choices are left out.*gpu\.jsonl:2 is not a record: {why}"):
        assert tune._load("gpu") == {}


def test_a_cache_that_may_not_be_read_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "read", lambda path: (_ for _ in ()).throw(PermissionError(13, "Permission denied", str(path))))
    with pytest.warns(RuntimeWarning, match="Permission denied"):
        assert tune._load("gpu") == {}


def test_who_has_no_home_has_a_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("ROOFTILE_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory.")))
    monkeypatch.setattr(record.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    record._of_this_process.cache_clear()
    assert record.cache_folder() == record.cache_folder() == tmp_path / "rooftile-"
    record._of_this_process.cache_clear()


def test_a_band_of_losses():
    """A series inside the others is 0 outside; one that leaves them is as far outside as its mean over 20 steps."""
    others = [[1.0] * 50, [1.5] * 50, [1.2] * 50]
    assert training_records.band([1.3] * 50, others) == pytest.approx({"band": 0.5, "outside_band": 0.0})
    assert training_records.band([1.3] * 30 + [1.7] * 20, others)["outside_band"] == pytest.approx(0.2)
    assert training_records.band([0.9] * 50, others)["outside_band"] == pytest.approx(0.1)


def test_losses_that_are_none_lie_nowhere():
    """Seen red: a run that diverged was as far from the others as it had been before."""
    one, diverged = [1.0] * 50, [1.0] * 40 + [math.nan] * 10
    assert math.isnan(training_records.distances(diverged, one)) and math.isnan(training_records.distances(one, diverged))
    assert math.isnan(training_records.band(diverged, [one, one])["outside_band"])
    assert math.isnan(training_records.band(one, [diverged, one])["band"])


def test_losses_are_records(monkeypatch, tmp_path):
    asked = []

    def compare(kernels, setup, *, steps):
        asked.append((kernels[0], setup.weights, setup.seed, setup.context, steps))
        return [{"kernels": kernels[0], "losses": [2.0 + 0.1 * setup.seed] * steps}]

    monkeypatch.setattr("rooftile.training.benchmark.compare_losses", compare)
    ours, theirs = training_records.bench("losses.llama-1.2b", [], torch.device("cpu"), "r", None, tmp_path)
    assert asked == [("rooftile", "bfloat16", 0, 1024, 500), *(("torch", "float32", seed, 1024, 500) for seed in range(3))]
    assert ours.extra["band"] == pytest.approx(0.2) and ours.extra["outside_band"] == 0 and len(theirs.extra["losses"]) == 3
    assert "| 2.000 | 0.200 | 0.000 | 0.000, 0.000, 0.100 |" in pages.losses({("cpu", ours.op, ours.case): [ours, theirs]})
    assert len(list(tmp_path.glob("*/losses.llama-1.2b.jsonl"))) == 1


@pytest.mark.parametrize(
    "page, op, kernel, case, lacks",
    [
        (pages.asked_by_others, "suite.pytorch", "rooftile", "all", "judged"),
        (pages.losses, "losses.gpt2-124m", "rooftile", "c", "loss"),
        (pages.gate, "residual_add", "triton", "gate-triton", "passed"),
        (lambda table: pages.counters("softmax", table), "softmax", "cuda.v4_vector", "counters-c", "hardware"),
    ],
    ids=["suite", "losses", "gate", "counters"],
)
def test_a_record_that_lacks_what_its_page_tells_is_named(page, op, kernel, case, lacks, monkeypatch):
    """Seen red: KeyError('judged')."""
    monkeypatch.setattr(ledger, "is_stale", lambda r: False)
    r = Record(op, kernel, case, Status.PASSED, run="cafe", extra={"odd": 1})
    with pytest.raises(ValueError, match=f"{op} {kernel} {case}, run cafe, does not say '{lacks}'; it says odd"):
        page({("cpu", op, case): [r]})


def test_who_reads_records_is_told_where_there_are_none(tmp_path):
    """Seen red: pages were rewritten to say that nothing was measured, and of a device's own folder no record was found."""
    (tmp_path / "README.md").write_text("here it is")
    with pytest.raises(FileNotFoundError, match="records is no folder of records"):
        pages.write(tmp_path, verify=True)
    own = tmp_path / "records" / "nvidia-h200"
    own.mkdir(parents=True)
    (own / "softmax.jsonl").touch()
    for words in (["records", "--prune"], ["bench", "softmax", "--device", "cpu", "--stale"], ["tune", "--from-records"]):
        said = CliRunner().invoke(app, [*words, *([] if words[0] == "tune" else ["--folder"]), str(own)])
        assert said.exit_code and "is a device's folder, 1 files as softmax.jsonl lie in it" in f"{said.exception} {said.output}"


def test_first_in_line_is_who_was_measured_to_be_fastest(tmp_path, monkeypatch):
    """But for a twentieth, by which two runs may differ, or 5 us, which a launch costs. Seen red: with `quantize`'s kernels in the order of their files, among others."""
    pairs = list(ledger.chosen_and_fastest(ROOT / "records"))
    slow = [f"{d} {a.op} {a.case}: {a.kernel} {a.us[1]} us, {b.kernel} {b.us[1]}" for d, a, b in pairs if ledger.apart(a, b)]
    assert slow == [] and len(pairs) > 150
    op = OPS["softmax"]
    case = next(c for c in op.spec.cases if "bench" in c.use)
    with explain.imagined("cuda"):
        first = op.choose(explain.blank(op.spec, case, "cuda")).kernel
    other = next(k for k in op.kernels[:-1] if k is not first)
    append(tmp_path / "gpu" / "softmax.jsonl", [
        Record("softmax", k.name, case.id, Status.PASSED, us=(us, us, us), digest=k.digest, run="r") for k, us in ((first, 20.0), (other, 18.0))])  # fmt: skip
    assert [(d, a.kernel, b.kernel) for d, a, b in ledger.chosen_and_fastest(tmp_path)] == [("gpu", first.name, other.name)]
    append(tmp_path / "far" / "gpu" / "softmax.jsonl", [
        Record("softmax", k.name, case.id, Status.PASSED, us=(us, us, us), digest=k.digest, run="r") for k, us in ((first, 90.0), (other, 18.0))])  # fmt: skip
    monkeypatch.setattr(tune, "shipped", lambda name: tmp_path / f"{name}.jsonl")
    monkeypatch.setattr(tune, "_entries", {})
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path / "cache"))
    assert tuner.from_records(tmp_path) == []  # within what two runs may differ by
    (shipped,) = tuner.from_records(tmp_path / "far")
    tune._entries.clear()
    with explain.imagined("cuda"):
        assert op.choose(explain.blank(op.spec, case, "cuda")).kernel is first  # of another device
    with explain.imagined("cuda", "gpu"):
        chosen = op.choose(explain.blank(op.spec, case, "cuda"))
    assert (shipped.kernel, shipped.us) == (other.name, (18.0, 18.0, 18.0)) and (chosen.kernel, chosen.source) == (other, "tuned")
    monkeypatch.setattr(Kernel, "digest", "another")
    with explain.imagined("cuda", "gpu"):
        assert op.choose(explain.blank(op.spec, case, "cuda")).kernel is first


@pytest.mark.parametrize(
    "name",
    ["adamw", "attention_decode", "attention_varlen", "cross_entropy_overwrite", "dequantize", "dropout_add_norm_backward", "masked_softmax",
     "residual_add", "rope"],
)  # fmt: skip
def test_a_choice_is_kept_under_the_call_that_was_timed(name):
    """Seen red: under one with every tensor that may be left out, all in the case's dtype. No call found the choice, or another one did: a float32 stream's
    was plain bfloat16's. And where numbers decide how a call looks: a loss's gradient of a number for each row, longest sequences of all rows."""
    spec = OPS[name].spec
    for case in (c for c in spec.cases if "bench" not in c.use):
        with explain.imagined("cuda"):
            kept = tune.key(explain.drawn(spec, case, "cuda"))
        assert kept == tune.key(spec.draw(case)), case.id
    benched = [c for c in spec.cases if "bench" in c.use]
    assert len(tuner._alike([(OPS[name], c) for c in benched])) == len(benched)


def test_cases_that_a_choice_cannot_tell_apart_are_tuned_together():
    """Rows of even segments, and one segment that is half of all rows: the same shapes, so one choice. Each was remembered for itself, and of the two
    choices the one with less time counted for both, whatever it takes on the other case."""
    op = OPS["segment_sum"]
    benched = [c for c in op.spec.cases if "bench" in c.use]
    alike = [[c.params.get("cover", "") for c in cases] for _, _, cases in tuner._alike([(op, c) for c in benched])]
    assert ["", "half"] in alike and sum(map(len, alike)) == len(benched)

    def trial(**us):
        timings = {n: timing.Timing(t, t, t, 1) for n, t in us.items()}
        return tuner._Trial(timings, {n: (n, {}) for n in us})

    even, half = trial(warp=98.0, balanced=100.0, triton=120.0, wide=90.0), trial(warp=2000.0, balanced=100.0, triton=95.0)
    assert tuner._together([even])[0] == "wide"
    assert tuner._together([even, half]) == ("balanced", even)  # `wide` does not take both
    assert tuner._together([even, trial(other=1.0)]) is None


def right(x, y):
    return x + y


def wrong(x, y, *, config):
    return x + y * config["by"]


def ends(x, y):
    raise RuntimeError("no room\nat all")


@pytest.fixture
def stranger(monkeypatch):
    """vector_add with kernels of which one is right, one in one of two configs, one ends in an error and one is refused by the gate; and a session on this CPU."""
    op = OPS["vector_add"]
    kernels = (
        Kernel("right", right),
        Kernel("wrong", wrong, configs=({"by": 1.5}, {"by": 1})),
        Kernel("ends", ends),
        Kernel("ungreen", right),
    )
    monkeypatch.setattr(op, "kernels", (*kernels, op.kernels[-1]))
    session = bench.Session("cpu")
    monkeypatch.setattr(session, "green", lambda op, kernel: "it is off" if kernel.name == "ungreen" else "")
    monkeypatch.setattr(tuner, "Session", lambda device, verdicts: session)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    small = Case({"...": (64,)}, use=("bench",))
    monkeypatch.setattr(tuner, "timed_cases", lambda ops, only: [(op, small)])
    return small


def test_who_is_not_tuned_is_told_and_why(stranger, monkeypatch, capsys):
    """Seen red: a config that was wrong, or ended in an error, was left out without a word."""
    kept = []
    monkeypatch.setattr(tune, "remember", lambda device, records: kept.extend(records))
    made, left = tuner.tune_ops(["vector_add"], "", False, Console(width=200))
    assert (made, left) == (kept, []) and made[0].kernel in ("right", "wrong")
    (out,) = made[0].extra["left_out"].values()
    assert out.keys() == {"wrong {'by': 1.5}", "ends {}", "ungreen"}
    assert out["ends {}"] == "RuntimeError: no room" and out["ungreen"] == "the gate says: it is off"
    assert re.fullmatch(r"it is 0\.\d+ off, 0\.0001 is allowed", out["wrong {'by': 1.5}"])
    said = capsys.readouterr().out
    assert all(f"vector_add {stranger.id}: {name} is not timed: {why}" in said for name, why in out.items())


def test_tuning_begins_nothing_when_time_is_over_and_tells_what_is_left(stranger, monkeypatch):
    monkeypatch.setattr(tune, "remember", lambda device, records: None)
    made, left = tuner.tune_ops(["vector_add"], "", False, None, within=0.0)
    assert (made, left) == ([], [f"vector_add {stranger.id}"])


def test_lists_of_tensors_are_tuned_for_their_dtype():
    """Choices for bfloat16 were taken for float32 lists of as many elements."""
    lists = [[torch.empty(3, dtype=d)] for d in (torch.float32, torch.bfloat16)]
    assert [tune.key({"params": p}) for p in lists] == ["params=1 tensors of 3:float32", "params=1 tensors of 3:bfloat16"]


def test_two_processes_beside_one_are_records(monkeypatch, tmp_path):
    """The runs are started as a user starts them; here each leaves metrics behind, and the last fails."""
    words, gpus = [], []

    def start(command, *, stderr, env, **how):
        words.append(command[1:])
        gpus.append(env and env["CUDA_VISIBLE_DEVICES"])
        out = Path(command[command.index("--out") + 1])
        processes, rate = (
            (2, 1950.0) if "torch.distributed.run" in command else (1, 1010.0 if gpus[-1] == "5" else 990.0 if env else 1000.0)
        )
        rows = [{"step": i + 1, "loss": 2.0 + 0.001 * processes, "tokens_per_s": rate, "memory_bytes": 5} for i in range(scaling.STEPS)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*rows, {"step": 40, "val_loss": 2.0}]))
        stderr.write("[rank1]: Traceback\n[rank1]: RuntimeError: no room\ntorchrun: FAILED")
        return SimpleNamespace(wait=lambda: int("fsdp" in command))

    monkeypatch.setattr(scaling, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    one, whole, ddp, fsdp = scaling.bench(torch.device("cpu"), "r", None, tmp_path)
    assert words[0][:3] == ["-m", "rooftile", "train"] == words[1][:3] and words[3][:5] == [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    assert [w[w.index("--batch-size") + 1] for w in words] == ["4", "4", "8", "4", "4"] and "--parallel ddp" in " ".join(words[3])
    assert gpus == ["3", "5", None, None, None] and one.extra["tokens_per_s_of_each"] == [990, 1010]
    assert one.extra["of_one"] == 1 and ddp.extra["of_one"] == pytest.approx(1.95) and whole.us[1] == pytest.approx(8 * 4096 * 1e3)
    assert ddp.extra["largest_smoothed_loss_difference_to"]["whole"] == pytest.approx(0.001)
    assert (fsdp.status, fsdp.message) == ("error", "[rank1]: RuntimeError: no room")
    assert "| ddp | 2 | 1,950 | 1.95 |" in pages.scaling({("cpu", ddp.op, ddp.case): [one, whole, ddp, fsdp]})
    (file,) = tmp_path.glob("*/scaling.llama-1.2b.jsonl")
    assert not ledger.is_stale(ddp) and [r.kernel for r in read(file)] == [one.kernel, whole.kernel, ddp.kernel, fsdp.kernel]


def test_a_run_that_has_ended_is_kept_whatever_comes_of_the_next(monkeypatch, tmp_path):
    def trained(processes, parallel, rows, alone):
        if parallel == "ddp":
            raise KeyboardInterrupt
        return [[{"step": scaling.STEPS, "loss": 2.0, "tokens_per_s": 1000.0, "memory_bytes": 5}]] * alone, None

    monkeypatch.setattr(scaling, "_train", trained)
    with pytest.raises(KeyboardInterrupt):
        scaling.bench(torch.device("cpu"), "r", None, tmp_path)
    (file,) = tmp_path.glob("*/scaling.llama-1.2b.jsonl")
    assert [r.kernel for r in read(file)] == ["rooftile.one", "rooftile.whole"]


def test_a_run_that_was_cut_off_hides_no_whole_one(tmp_path):
    """Seen red: one of two GPUs, whose lease ended, took the others' lines from the page, and nothing was to be measured again."""
    digest, case = training_records.training_digest(scaling.NAME), "B4_T4096-bfloat16"
    made = [Record(scaling.NAME, f"rooftile.{n}", case, Status.PASSED, digest=digest, run="whole") for n in scaling.RUNS]
    cut = [replace(r, run="cut") for r in made[:2]]
    (tmp_path / "gpu").mkdir()
    file = tmp_path / "gpu" / f"{scaling.NAME}.jsonl"
    append(file, cut)
    assert ledger.latest(tmp_path)["gpu", scaling.NAME, case] == cut and ledger.due(tmp_path, "gpu")(scaling.NAME)
    append(file, [*made, *cut])
    assert ledger.latest(tmp_path)["gpu", scaling.NAME, case] == made and not ledger.due(tmp_path, "gpu")(scaling.NAME)


def test_what_was_measured_again_is_pruned_and_no_page_changes(tmp_path):
    case, other_case, *_ = (c.id for c in OPS["gelu"].spec.cases if "bench" in c.use)
    first, second = (
        [Record("gelu", k.name, case, Status.PASSED, us=(1.0, t, 9.0), digest=k.digest, run=f"run {t}") for k in OPS["gelu"].kernels]
        for t in (2.0, 3.0)
    )
    gone = replace(first[0], case="a case that is no more")
    verdict = replace(first[0], case=f"gate-{first[0].kernel}", run="gate", us=None)
    later = replace(first[0], case=other_case)  # of the operator's cases, and written before the first
    file, other = (tmp_path / device / "gelu.jsonl" for device in ("gpu", "another"))
    append(file, [*first, gone, later, verdict, *second])
    append(other, first)
    before, whole = ledger.latest(tmp_path), other.stat()
    kept = 2 + 2 * len(first)
    assert [c for d, _, c in before if d == "gpu"] == [verdict.case, case, other_case]
    assert ledger.prune(tmp_path) == (kept, len(first) + 1)
    assert file.read_text() == "".join(r.json() + "\n" for r in (later, verdict, *second))
    assert [*ledger.latest(tmp_path).items()] == [*before.items()] and other.stat() == whole
    assert ledger.prune(tmp_path) == (kept, 0)
    asked = CliRunner().invoke(app, ["records", "--prune", "--folder", str(tmp_path)])
    assert f"{kept} records are the last of their kind; 0 were not" in asked.output
    refused = CliRunner().invoke(app, ["records", "--prune", "--stale", "--folder", str(tmp_path)])
    assert refused.exit_code and "--prune keeps the last record of each case, stale or not" in str(refused.exception or refused.output)


def test_a_step_whose_turns_lie_apart_is_said_to_be_unsteady():
    """As the peers' are that launch one by one, where something else keeps the host busy."""
    facts = {"extra": {"tokens_per_s": 1000.0, "peak_bytes": 2**30, "loss": 2.0}, "run": "r"}
    turns = {"rooftile": (51.0e3, 52.0e3, 53.0e3), "peer.compile": (65.3e3, 71.1e3, 73.8e3)}
    table = {
        ("gpu", "train.gpt2-124m", "case"): [Record("train.gpt2-124m", n, "case", Status.PASSED, us=us, **facts) for n, us in turns.items()]
    }
    ours, theirs = pages.training(table).splitlines()[4:]
    assert "| rooftile | 52.0" in ours and "unsteady" not in ours and "| torch.compile | 71.1 (unsteady, 65.3 to 73.8) |" in theirs


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"x\.jsonl holds no records: 'utf-8' codec can't decode byte 0xff"):
        list(read(tmp_path / "x.jsonl"))


def test_ceilings_where_the_cache_is_damaged_or_cannot_be_written(tmp_path, monkeypatch):
    """Seen red: `rooftile profile train` ran its steps and ended with [Errno 2], or with the line that is no record."""
    cpu, made = torch.device("cpu"), []
    facts = {"copy_gbps": 1.0, "matmul_float32": 1.0, "launch_us": 1.0}
    monkeypatch.setattr(
        dev, "measure", lambda where: made.append(where) or Record("device.ceilings", "measured", "cpu", Status.PASSED, extra=facts)
    )
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    (tmp_path / "ceilings").mkdir()
    for damaged in ('{"op": "device.ceil', "{}\n"):
        (tmp_path / "ceilings" / "cpu.jsonl").write_text(damaged)
        assert dev.ceilings(cpu) == dev.ceilings(cpu)
    assert len(made) == 2
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path / "ceilings" / "cpu.jsonl"))
    with pytest.warns(RuntimeWarning, match=r"cannot be kept in .* \(Not a directory\): they are measured every time; set ROOFTILE_CACHE"):
        assert dev.ceilings(cpu).copy_gbps == 1.0
