"""The command line as a person and as a program meet it."""

import dataclasses
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import unicodedata
import warnings
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import processes
from rooftile import __version__, cli
from rooftile.core.kernel import OPS
from rooftile.core.record import Record, append
from rooftile.training import TrainConfig, TrainResult
from rooftile.workbench import bench, explain
from training_runs import maker


def rooftile(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return processes.run("rooftile", *words, **environment)


COMPOSED = {
    "linear_cross_entropy": "chunked",
    "linear_cross_entropy_ahead": "chunked",
    "linear_cross_entropy_frozen": "chunked",
    "adamw_measured": "composed",
    "embedding_accumulate": "composed",
    "linear_add": "vendor",
    "mlp": "composed",
    "gated_mlp": "composed",
}  # of other operators' kernels


def test_list():
    """In a process from its very beginning; all others are forked where they have imported."""
    fresh = subprocess.run([sys.executable, "-m", "rooftile", "list", "--json"], capture_output=True, text=True)
    rows = json.loads(fresh.stdout)
    assert rooftile("list", "--json").stdout == fresh.stdout and fresh.returncode == 0
    names = {r["operator"] for r in rows}
    assert {"vector_add", "softmax", "gelu", "adamw"} <= names
    for r in rows:
        kernels = [k["name"] for k in r["kernels"]]
        first = COMPOSED.get(r["operator"], "triton")
        assert kernels[-1] == "reference" and first in kernels and all(k["idea"] for k in r["kernels"])
        assert OPS[r["operator"]].spec.backward is None or first in [k["name"] for k in r["backward"]]


def test_no_bar_in_a_pipe():
    """Seen red: an empty line of each bar on stderr."""
    assert rooftile("check", "gelu", "--kernel", "reference", "--device", "cpu").stderr == ""


def test_explain_says_who_refused_and_why():
    answer = json.loads(rooftile("explain", "softmax", "--shape", "M=4,N=100001", "--dtype", "bfloat16", "--json").stdout)
    assert answer["chosen"] == "triton.online"
    assert {"kernel": "triton", "why": "N=100001 is longer than the 65536 columns a program keeps in registers"} in answer["refused"]
    assert answer["bytes"] == 2 * 2 * 4 * 100001


def test_check_counts():
    run = rooftile("check", "gelu", "--kernel", "reference", "--device", "cpu", "--json")
    answer = json.loads(run.stdout)
    assert run.returncode == 0 and answer["failed"] == 0 and answer["passed"] == len(answer["results"]) > 20


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["explain", "sotfmax", "--shape", "M=1,N=1"], "did you mean softmax?"),
        (["explain", "softmax", "--shape", "M=1"], "softmax needs N in --shape"),
        (["explain", "softmax", "--shape", "M=1,N=x"], "'x' is no size"),
        (["explain", "softmax", "--shape", "M=1,N=1", "--dtype", "bfloat61"], "did you mean bfloat16?"),
        (["check", "softmax", "--kernel", "tritan"], "did you mean triton?"),
        (["check", "--device", "tpu"], "no device is called 'tpu'"),
        (["bench", "--against", "torhc", "--device", "cpu"], "did you mean torch?"),
        (["build", "vectoradd"], "did you mean vector_add?"),
        (["build", "--arch", "sm_75"], "'sm_75' is none that CUDA C++ is compiled for here; there are sm_80"),
        (["records", "--folder", "nowhere"], "nowhere is no folder of records"),
        (["explain", "Softmax", "--shape", "M=1,N=1"], "did you mean softmax? There are"),
        (["explain", "softmax", "--shape", "M=1,M=2,N=1"], "--shape says M twice, M=1 and M=2"),
        (["explain", "softmax", "--shape", "M=1,N=²"], "'²' is no size"),
        (["explain", "softmax", "--shape", f"M={10**17},N={10**17}"], "cannot be imagined on cuda"),
        (["explain", "softmax", "--shape", "M=1,N=1", "--device", "tpu"], "no device is called 'tpu'"),
        (["explain", "softmax", "--shape", "M=1,N=1", "--dtype", "int8"], "no dtype of softmax is called 'int8'"),
        (["explain", "softmax"], "Missing option '--shape'"),
        (["explain", "attention", "--shape", "B=1,T=1,S=1,H=1,D=64,causal=yes"], "--shape causal=yes: 'yes' is not true or false"),
        (["explain", "adamw", "--shape", "P=3x"], "--shape P=: '' is no size"),
        (["explain", "adamw", "--shape", ""], "adamw needs P in --shape, as P=768x768+768 for two tensors; it got nothing"),
        (
            ["check", "softmax", "--device", "sim", "--kernel", "triton"],
            "--device sim: kernel triton is none in CUDA C++, which is what is simulated",
        ),
        (["explain", "layernorm", "--shape", "M=1,N=1,eps=NaN"], "layernorm: eps is nan, takes a finite number"),
        (["bench", "softmax", "--device", "sim"], "--device sim: what it runs has no clock"),
        (["bench", "train.gpt3"], "did you mean train.gpt2-124m?"),
        (["bench", "train.gpt2-124m", "--device", "cpu"], "train.gpt2-124m trains on a CUDA device, this is cpu"),
        (["bench", "scaling.llama-1.2b", "--device", "cpu"], "scaling.llama-1.2b trains on a CUDA device, this is cpu"),
        (["bench", "softmax", "--device", "cpu", "--case", "nosuch", "--against", "torch, compile"], "'nosuch' is in the name of none of"),
        (["build", "linear_cross_entropy"], "linear_cross_entropy has no kernel in CUDA C++ to build"),
        (["pages", "--verify", "--folder", "nowhere"], "nowhere has none of the"),
        (["lst"], "Did you mean 'list'?"),
        (
            ["bench", "softmax", "--device", "cpu", "--within", "0", "--record", "--folder", __file__],
            "test_cli.py cannot be written: File exists",
        ),
        (
            ["check", "--kernel", "cuda.v7_clutser", "--device", "cpu"],
            "no kernel is called 'cuda.v7_clutser'; did you mean cuda.v7_cluster?",
        ),
        (["explain", "gemv", "--shape", "K=4096"], "gemv needs M in --shape; it got K=4096"),  # of which no ... holds the rows
        (["explain", "concat_kv", "--shape", "B=1,T=1,G=1,D=8,S=4,N=4"], "concat_kv needs M in --shape too: cos is [M N]"),
        (["explain", "gelu", "--shape", "M=4,...=3x2"], "--shape says M=4, and of ... that it holds 6 rows"),
        (["bench", "gelu", "--device", "cpu", "--within", "-1"], "--within -1.0 is no number of seconds, which is 0 or more"),
        (["check", "gelu", "--device", "cpu", "--within", "nan"], "--within nan is no number of seconds, which is 0 or more"),
        (["tune", "softmax", "--from-records", "."], "softmax: it is for what is timed, and --from-records . times nothing"),
        (["tune", "--case", "M1", "--from-records", "."], "--case M1: it is for what is timed, and --from-records . times nothing"),
        (["tune", "--within", "9", "--from-records", "."], "--within 9: it is for what is timed, and --from-records . times nothing"),
        (["tune", "--folder", "kept", "--from-records", "."], "--folder kept: it is for what is timed, and --from-records . times nothing"),
        (["check", "gelu", "--device", "cpu", "--folder", "kept"], "--folder kept: neither --record nor --stale is said"),
        (["tune", "--from-records", "nowhere"], "nowhere is no folder of records"),
        (["bench", "gelu", "--device", "cpu", "--within", "0", "--stale", "--folder", "nowhere"], "nowhere is no folder of records"),
        (["list", "--jsn"], "No such option: --jsn"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence):
    run = rooftile(*words)
    assert run.returncode == 2 and sentence in run.stderr and run.stderr.count("\n") == 1
    assert run.stdout == ""
    run = rooftile(*words, "--json")
    assert (
        run.returncode == 2
        and sentence in json.loads(run.stdout)["error"]
        and run.stderr == f"rooftile: {json.loads(run.stdout)['error']}\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is imagined here")
def test_slices_are_imagined():
    """Seen red: a PyTorch without CUDA turns to the device at each x[...], and attention_varlen, geglu and swiglu_quantize could not be explained."""
    with explain.imagined("cuda"):
        x = torch.empty(4, 5, 6, device="cuda")
        views = (x[1], (5, 6)), (x[..., 2:], (4, 5, 4)), (x[:, None, -2], (4, 1, 6)), (x[1:3, ..., ::2], (2, 5, 3)), (x[..., 0, :3], (4, 3))
        assert [tuple(view.shape) for view, _ in views] == [shape for _, shape in views]
        assert x[1:, 2].storage_offset() == 42 and x[..., 1::2].stride() == (30, 6, 2)
        with pytest.raises(TypeError, match="is no view"):
            x[[0, 1]]
    for name in ("attention_varlen", "geglu", "swiglu_quantize"):
        op = OPS[name]
        for case in op.spec.cases:
            with explain.imagined("cuda"):
                assert op.choose(explain.blank(op.spec, case, "cuda")).kernel in op.kernels


def test_what_is_imagined_lies_nowhere():
    """Seen red: `rooftile pages` and `explain` printed PyTorch's warning that FakeTensor's address is a bug."""
    op = OPS["masked_softmax"]
    with warnings.catch_warnings(), explain.imagined("cuda"):
        warnings.simplefilter("error")
        for case in op.spec.cases:
            assert op.choose(explain.blank(op.spec, case, "cuda")).kernel in op.kernels


def test_explain_with_pytorchs_cuda_build_where_there_is_no_gpu(monkeypatch):
    """cuDNN is there, and a driver to ask what it runs on is not."""
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    op = OPS["attention"]
    case = next(c for c in op.spec.cases if "T1024" in c.id)
    with explain.imagined("cuda"):
        assert "compute capability" not in str(op.choose(explain.blank(op.spec, case, "cuda")).refused)


@pytest.mark.parametrize(
    "words, case",
    [
        ("layernorm M=4096,N=1024", "M4096_N1024-bfloat16-eps=1e-05"),  # what must be said and is not
        ("attention B=1,T=8,S=8,H=2,D=64,causal=False,scale=1", "B1_T8_S8_H2_D64-bfloat16-causal=False-scale=1"),  # as a case's name has it
        ("gelu ...=3x67,approximate=tanh", "3x67-bfloat16-approximate=tanh"),
        ("attention_mask B=2,G=1,to=bool", "B2_G1-int64-"),
        ("attention_decode B=1,T=1,H=2,G=1,D=64,S=256", "B1_T1_H2_G1_D64_S256-bfloat16-block_table=None-"),
        ("attention_decode B=1,T=1,H=2,G=1,D=64,S=256,N=2,M=5", "B1_T1_H2_G1_D64_S256_N2_M5-bfloat16-sinks=None"),
        ("attention_decode B=3,T=1,H=2,G=1,D=64,S=256", "B3_T1_H2_G1_D64_S256-bfloat16-block_table=None-"),  # a row of the cache each
        ("grad_norm P=8x8+8", "P2of72-bfloat16"),
        ("adamw P=8x8+8", "P2of72-bfloat16-masters=[]-"),  # its rates are a row a tensor
        ("dequantize M=4,N=256", "M4_N256-float8_e4m3fn-block_m=0-block_n=0-to=bfloat16"),  # one scale, no row of them
        (
            "dequantize M=256,N=256,block_m=128,block_n=128,zero=none",
            "M256_N256-float8_e4m3fn-block_m=128-block_n=128-zero=None-to=bfloat16",
        ),
        ("cross_entropy_overwrite M=8,V=100", "M8_V100-bfloat16-ignore_index=-100-"),
        ("embedding M=4,N=8,V=10", "M4_N8_V10-bfloat16-padding_idx=-1"),  # its bytes depend on numbers that are not there
    ],
)
def test_explain_takes_what_a_case_is_called(words, case):
    name, shape = words.split()
    run = rooftile("explain", name, "--shape", shape, "--json")
    assert run.returncode == 0 and json.loads(run.stdout)["case"].startswith(case)
    assert rooftile("explain", name, "--shape", shape).stdout.startswith(f"{name} {case}")


def test_what_is_printed_is_whole(monkeypatch):
    """Where nobody says how wide, and in a terminal of 40 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    wide, narrow = rooftile("list").stdout, rooftile("list", COLUMNS="40").stdout
    assert "cuda.v8_exchange" in wide and "…" not in wide + narrow
    said = rooftile("explain", "softmax", "--shape", "M=4,N=100001", COLUMNS="40").stdout
    assert all(line[:2] in ("so", "  ") for line in said.splitlines())


def test_output_that_cannot_be_written():
    if not os.path.exists("/dev/full"):
        pytest.skip("a system without /dev/full")
    for words in (["doctor"], ["list", "--json"]):
        run = processes.run(*words, code="import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nfrom rooftile import cli\ncli.main()")
        assert run.returncode == 2 and run.stderr.splitlines()[0] == "rooftile: [Errno 28] No space left on device"


def test_what_an_encoding_lacks(tmp_path):
    """Seen red: where stdout is ASCII, or a path is no UTF-8, a run that had trained to its end said so in no word and exited with 2."""
    maker(tmp_path)
    words = "--device cpu --n-layer 1 --n-head 2 --n-embd 16 --context 16 --batch-size 2 --steps 1 --eval-batches 1 --sample-tokens 1"
    code = "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'ascii')\nfrom rooftile import cli\ncli.main()"
    run = processes.run("train", *words.split(), "--text", f"{tmp_path}/text", "--prompt", "é", "--out", f"{tmp_path}/\udcff", code=code)
    assert run.returncode == 0 and run.stdout.startswith("\\xe9") and run.stdout.endswith("/\\udcff/model\n")


@pytest.mark.parametrize("command", ["-m rooftile", "rooftile", "-c 'import rooftile'"])
def test_ctrl_c_while_pytorch_is_imported(command, tmp_path):
    """The command ends as a shell expects, 130, with no traceback; a program of somebody's that imports the package hears what Python tells it."""
    (tmp_path / "rooftile").write_text("from rooftile.cli import main\nmain()\n")  # what pip installs
    (tmp_path / "torch.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        f"cd {tmp_path} && {sys.executable} {command}; echo $?",
        shell=True, capture_output=True, text=True, timeout=50, env={**os.environ, "PYTHONPATH": paths},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background of a shell it is ignored, by children too
    )  # fmt: skip
    assert ended.stdout == "130\n" and ("KeyboardInterrupt" in ended.stderr) == (command[:2] == "-c"), ended.stderr


@pytest.mark.parametrize("found, heard", [(signal.SIG_DFL, signal.default_int_handler), (signal.SIG_IGN, signal.SIG_IGN)])
def test_what_runs_hears_ctrl_c_as_python_does(found, heard, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rooftile", "--version"])
    before = signal.signal(signal.SIGINT, found)
    try:
        with pytest.raises(SystemExit):
            cli.main()
        assert signal.getsignal(signal.SIGINT) is heard
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_sample_gives_a_terminal_no_orders(monkeypatch):
    """Seen: after three steps a model of bytes draws escapes as well as letters."""
    words = dict.fromkeys(("out", "checkpoint", "metrics", "curve", "model"), "out")
    numbers = dict.fromkeys(("steps", "loss", "val_loss", "parameters", "seconds", "tokens_per_s", "memory_bytes"), 1)
    result = TrainResult(**words, **numbers, sample="a\tb\x1b[2J\x07\x9b1m\né")
    monkeypatch.setattr("rooftile.training.train", lambda *_, **__: result)
    written = io.StringIO()
    monkeypatch.setattr(cli, "out", Console(file=written, width=80))
    cli._train(False, parallel="none")
    shown = written.getvalue()
    assert {c for c in shown if unicodedata.category(c) == "Cc"} <= {"\n", "\t"} and "[2J" in shown and "é" in shown


def test_a_terminal_without_a_width():
    """Seen red: nothing at all was printed."""
    assert (
        "torch"
        in subprocess.run(
            [sys.executable, "-m", "rooftile", "doctor"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "0"}
        ).stdout
    )


def test_records_that_do_not_count_are_not_current(tmp_path):
    """Seen red: "nothing is stale", of a folder of cases that are no more, and of one a floor too deep."""
    softmax = OPS["softmax"]
    old = Record("softmax", softmax.kernels[0].name, "M1_N1", "passed", digest="another", run="r")
    folder = tmp_path / "records"
    append(folder / "gpu" / "softmax.jsonl", [old, old])
    (empty := tmp_path / "empty").mkdir()
    for asked in ([], ["--stale"]):
        run = rooftile("records", "--folder", str(folder), *asked)
        assert (
            run.returncode == 0 and run.stdout == f"no record that counts: of 2 in {folder} 0 are of a case that their operator has now\n"
        )
        run = rooftile("records", "--folder", str(folder / "gpu"), *asked)
        assert run.returncode == 2 and run.stderr.endswith(
            f"is a device's folder, 1 files as softmax.jsonl lie in it: that of records is {folder}\n"
        )
        run = rooftile("records", "--folder", str(empty), *asked)
        assert run.returncode == 0 and run.stdout.startswith(f"no records: {empty} has 0 in a device's folders")
    now = replace(old, case=softmax.spec.cases[0].id, digest=softmax.kernels[0].digest)
    append(folder / "gpu" / "softmax.jsonl", [now])
    assert rooftile("records", "--folder", str(folder), "--stale").stdout == "nothing is stale\n"


def test_bench_tells_whatever_was_raised():
    """Seen red: brackets in a message were left out as markup, and a path in them was an error of rich's at the end of the whole run."""
    console = Console(width=200, file=io.StringIO())
    console.print(bench.table([Record("softmax", "triton", "x", "error", message="ptxas failed on x[i] [/tmp/x.ptx]")]))
    assert "ptxas failed on x[i] [/tmp/x.ptx]" in console.file.getvalue()


def test_bench_without_time_says_so():
    """Seen red: a table of nothing."""
    run = rooftile("bench", "gelu", "--device", "cpu", "--case", "1x8192", "--within", "0")
    assert run.returncode == 0 and run.stdout == "nothing was timed\n" and run.stderr.startswith("left: gelu 1x8192-")


def test_bench_tells_what_its_time_went_to():
    """A device's minutes are counted, and most of them are not the clock's."""
    console = Console(width=200, file=io.StringIO())
    bench.bench(["rmsnorm"], ["torch"], "cpu", "M1_N1024", console, None)
    first, *_, last = console.file.getvalue().splitlines()
    assert first == "2 cases of a GPU's sizes on a CPU take long: --case chooses, --within ends it"
    for on in ("inputs", "kernels' first calls", "peers' first calls", "clocks"):
        assert re.search(rf"(seconds:|,) {on} \d+\.\d", last), last


def test_records_that_choose_nobody_anew(tmp_path):
    """Seen red: not a word."""
    run = rooftile("tune", "--from-records", str(tmp_path))
    assert run.returncode == 0 and run.stdout == f"no record in {tmp_path} says of another kernel that it is faster than who is chosen\n"
    assert rooftile("tune", "--from-records", str(tmp_path), "--json").stdout == ""


def test_help_tells_what_stands_in_brackets():
    """Seen red: rich took what stands in for a knob that is not said, as [steps], for a style, and left it out."""
    assert "[bfloat16, or its first]" in rooftile("explain", "--help", COLUMNS="200").stdout
    told = rooftile("train", "--help", COLUMNS="200").stdout
    for knob in dataclasses.fields(TrainConfig):
        for standing_in in re.findall(r"\[.*?\]", knob.metadata["help"]):
            assert standing_in in told, knob.name


def test_version():
    run = rooftile("--version")
    assert run.returncode == 0 and run.stdout == f"rooftile {__version__}\n"


def test_check_says_what_the_interpreter_lacks():
    """Seen red: the torn end of a child's traceback where only what rooftile depends on is installed, and an AssertionError."""
    hidden = (
        "import importlib.util as u\nfind = u.find_spec\nu.find_spec = lambda name, *a: find(name, *a) if name != 'ml_dtypes' else None\n"
    )
    run = processes.run("check", "gelu", "--device", "cpu", code=f"{hidden}from rooftile import cli\ncli.main()")
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "interpreter needs ml_dtypes, which is not installed" in run.stderr
    run = rooftile("check", "gelu", "--device", "interpret")
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "--device interpret: it needs TRITON_INTERPRET=1" in run.stderr


def test_check_says_once_that_the_cache_cannot_be_made():
    """Seen red: 79 errors of the gate, one a verdict."""
    run = rooftile("check", "vector_add", "--device", "sim", ROOFTILE_CACHE=__file__)
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "point ROOFTILE_CACHE at one that can be written" in run.stderr


def test_check_in_a_folder_with_modules_of_somebody(tmp_path, monkeypatch):
    """Seen red: the child began with -m, and took typing_extensions.py from there, as the command `rooftile` does not."""
    (tmp_path / "typing_extensions.py").write_text("raise RuntimeError('not me')")
    monkeypatch.chdir(tmp_path)
    code = "import sys\nsys.path = [p for p in sys.path if p]\nfrom rooftile import cli\ncli.main()"
    run = processes.run("check", "vector_add", "--kernel", "triton", "--device", "cpu", "--json", code=code)
    assert run.returncode == 0 and json.loads(run.stdout)["failed"] == 0


ENDED = """
import os, signal, subprocess, sys, threading
from rooftile.workbench import gatekeeper
run = subprocess.run
def slow(command, **how):
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return run([sys.executable, "-c", "import os, time; print(os.getpid(), file=open('pid', 'w')); time.sleep(60)"], **how)
subprocess.run = slow
gatekeeper.check(["gelu"], "triton", "cpu", None)
"""


def test_check_that_is_ended_takes_the_interpreter_along(tmp_path, monkeypatch):
    """Seen red: after SIGTERM, as `timeout` sends it, the child went on for minutes."""
    monkeypatch.chdir(tmp_path)
    run = processes.run(code=ENDED)
    child = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    assert run.returncode == 143


TALKATIVE = """
import dataclasses, sys
import rooftile
from rooftile.cli import main
from rooftile.core.kernel import OPS

op = OPS["vector_add"]
quiet = op.kernel("triton")
run = lambda *args: print("a word from the launcher") or quiet.run(*args)
op.kernels = tuple(dataclasses.replace(k, run=run) if k is quiet else k for k in op.kernels)
sys.argv = ["rooftile", *sys.argv[1:]]
main()
"""


def test_what_a_kernel_prints_stands_beside_the_verdicts():
    """Seen red: `Expecting value: line 1 column 1 (char 0)` was all that was said of a kernel with a print in it."""
    words = ("check", "vector_add", "--kernel", "triton", "--device", "interpret", "--json")
    run = processes.run(*words, code=TALKATIVE, TRITON_INTERPRET="1")
    assert json.loads(run.stdout)["passed"] > 5 and "a word from the launcher" in run.stderr


def test_check_says_why_nothing_was_checked():
    run = rooftile("check", "gelu", "--kernel", "cuda.v1_naive", "--device", "cpu")
    assert run.returncode == 1 and "0 passed, 0 failed" in run.stdout and "it needs a CUDA device or the simulator" in run.stdout


def test_force_by_environment():
    run = rooftile("explain", "softmax", "--shape", "M=1,N=1", ROOFTILE_FORCE="softmax:tritn")
    assert run.returncode == 2 and "did you mean triton?" in run.stderr


@pytest.fixture
def one_gpu(monkeypatch):
    """What the doctor says of a machine with a GPU of this compute capability."""
    from rooftile.workbench import doctor

    properties = type("P", (), {"name": "a GPU", "multi_processor_count": 132, "total_memory": 2**30})

    def examined(*capability):
        for module, name, value in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "get_device_capability", lambda *_: capability),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (doctor.dev, "slug", lambda _: "gpu"),
        ):
            monkeypatch.setattr(module, name, value)
        said = []
        doctor._gpu(lambda good, sentence: said.append((good, sentence)))
        return said

    return examined


def test_doctor_tells_of_a_damaged_cache(one_gpu, monkeypatch, tmp_path):
    """Seen red: it ended there, with the sentence as a user's error, and said nothing of the rest."""
    from rooftile.workbench import doctor

    damaged = tmp_path / "gpu.jsonl"
    damaged.write_text("[]\n")
    monkeypatch.setattr(doctor.tune, "path", lambda _: damaged)
    (good, _), second = one_gpu(9, 0)
    assert good and second == (
        False,
        f"tuned choices are left out, heuristics choose: {damaged}:1 is not a record: it is a JSON list, not an object",
    )


def test_doctor_tells_of_blocks_with_less_shared_memory(one_gpu):
    room = "cuda:0 gives a block 99 KiB of shared memory: where a kernel's config wants up to 163, another config or kernel runs"
    assert (True, room) in one_gpu(8, 9) and (True, room) in one_gpu(12, 0)
    assert not any("shared memory" in sentence for _, sentence in (*one_gpu(8, 0), *one_gpu(9, 0)))


def test_doctor():
    findings = json.loads(rooftile("doctor", "--json").stdout)
    assert len(findings) > 5 and all(set(f) == {"ok", "sentence"} for f in findings)


def test_doctor_tells_where_nothing_can_be_kept(tmp_path, monkeypatch):
    """Seen red: "no  tuning results and ceilings are kept in" one that may not be written, and yes of a disk that is full."""
    from rooftile.workbench import doctor

    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        said = doctor.examine()[-1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    why = f"nothing can be kept in the cache folder {tmp_path} (File too large); set ROOFTILE_CACHE to one that can be written"
    assert said == {"ok": False, "sentence": why}


CUDA = os.path.join(os.path.dirname(__file__), "cuda")
GOOD, BAD = os.path.join(CUDA, "correct.cu"), os.path.join(CUDA, "planted.cu")


def test_sim_reports_accesses_and_is_silent_about_a_good_kernel():
    run = rooftile(
        "sim",
        GOOD,
        "--kernel",
        "transpose<0, false>",
        "--grid",
        "2,2,1",
        "--block",
        "32,32",
        "--json",
        "f32[4096]:zeros",
        "f32[4096]",
        "i32:64",
    )
    answer = json.loads(run.stdout)
    assert run.returncode == 0 and answer["findings"] == []
    assert {a.get("wavefronts_per_request") for a in answer["accesses"]} == {None, 1.0, 32.0}
    assert {a["space"] for a in answer["accesses"]} == {"shared", "global"} and all(a["line"] > 0 for a in answer["accesses"])


def test_sim_names_the_line():
    run = rooftile("sim", BAD, "--kernel", "tail_not_masked<float>", "--block", "64", "--json", "f32[50]:zeros", "f32[50]:arange", "i32:50")
    (finding,) = json.loads(run.stdout)["findings"]
    assert run.returncode == 1 and finding["kind"] == "out_of_bounds" and finding["file"] == BAD and finding["line"] > 0
    run = rooftile("sim", BAD, "--kernel", "tail_not_masked<float>", "--block", "64", "f32[50]:zeros", "f32[50]", "i32:50")
    assert run.returncode == 1 and f"planted.cu:{finding['line']}" in run.stdout and "offset 200 of gX, which has 200 bytes" in run.stdout


def test_sim_reads_a_file(tmp_path):
    numpy = pytest.importorskip("numpy")
    numpy.save(tmp_path / "x.npy", numpy.arange(96, dtype="float32"))
    run = rooftile("sim", GOOD, "--kernel", "strided", "--block", "32", "f32[32]:zeros", f"f32[96]:{tmp_path / 'x.npy'}", "i32:3")
    assert run.returncode == 0 and "0 findings" in run.stdout
    run = rooftile("sim", GOOD, "--kernel", "strided", "--block", "32", "f32[32]:zeros", f"f32[95]:{tmp_path / 'x.npy'}", "i32:3")
    assert run.returncode == 2 and "holds 96 elements, the argument says 95" in run.stderr


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["nowhere.cu", "--kernel", "k"], "nowhere.cu cannot be read"),
        ([GOOD, "--kernel", "stridet", "i32:1"], "did you mean strided?"),
        ([GOOD, "--kernel", "strided", "f32[4]"], "takes 3 arguments, got 1"),
        ([GOOD, "--kernel", "strided", "f32[4]", "f23[4]", "i32:1"], "did you mean f32?"),
        ([GOOD, "--kernel", "strided", "f32[4]", "f32[4", "i32:1"], "is neither TYPE[COUNT] nor TYPE:VALUE"),
        ([GOOD, "--kernel", "strided", "f32[4]", "f32[4]:ones", "i32:1"], "zeros, arange or a file.npy"),
        ([GOOD, "--kernel", "strided", "f32[4]", "f32[4]", "i32:x"], "'x' is not a whole number"),
        ([GOOD, "--kernel", "strided", "f32[4]", "i32[4]", "i32:1"], "gX points to float, got int32"),
        ([GOOD, "--kernel", "strided", "--block", "8,x", "f32[4]", "f32[4]", "i32:1"], "--block is one to three whole numbers"),
        ([GOOD, "--kernel", "strided", "--grid", "1,99999", "f32[4]", "f32[4]", "i32:1"], "grid.y is 99999, it must be from 1 to 65535"),
        ([GOOD, "--kernel", "strided", "--shared", "999999", "f32[4]", "f32[4]", "i32:1"], "must be from 0 to 232448"),
    ],
)
def test_sim_bad_input(words, sentence):
    run = rooftile("sim", *words)
    assert run.returncode == 2 and sentence in " ".join(run.stderr.split()) and "Traceback" not in run.stderr and run.stdout == ""


@pytest.mark.parametrize(
    "raised, sentence",
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried\nC++ trace"), "can't allocate memory: you tried"),
        (RuntimeError("a fault of ours"), None),
    ],
)
def test_no_memory_is_a_sentence(monkeypatch, capsys, raised, sentence):
    def fails(**_):
        raise raised

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit if sentence else RuntimeError):
        cli.main()
    assert sentence is None or sentence in capsys.readouterr().err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_several_processes_one_says_the_error_in_json(monkeypatch, capsys, rank):
    """Seen red: a document of each process, on the standard output that torchrun gives all of them."""
    monkeypatch.setattr(sys, "argv", ["rooftile", "train", "--json", "--parallel", "ddp", "--steps", "0"])
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr()
    assert "steps is 0, must be at least 1" in said.err and len(said.out.splitlines()) == (rank == "0")
