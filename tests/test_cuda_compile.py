"""CUDA C++ through NVRTC, the cache it is kept in, and `rooftile build`. Without NVRTC these fail with the sentence that says what to install."""

import json
import multiprocessing
import re
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import processes
from rooftile.core.kernel import OPS, Kernel, Limits, Op
from rooftile.cuda import compile as compiler
from rooftile.cuda import launch as launcher
from rooftile.cuda.source import Source
from rooftile.workbench import build

TEXT = """#include <cuda_fp16.h>
#include "part.cuh"
constexpr int twice(int n) { return 2 * n; }
template <typename T>
__global__ void add(T* gOut, const T* gX, long long N) {
  __shared__ T sX[twice(64)];
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  sX[threadIdx.x] = i < N ? gX[i] : T(0.0f);
  __syncthreads();
  if (i < N) gOut[i] = sX[127 - threadIdx.x] + T(ONE);
}
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "my kernel.cu").write_text(TEXT)
    (tmp_path / "part.cuh").write_text("#pragma once\n#define ONE 1.0f\n")
    return Source(tmp_path / "my kernel.cu")


def entries():
    return sorted(compiler.folder().iterdir()) if compiler.folder().is_dir() else []


def again(source):
    return Source(source.path)  # a source remembers its text


def test_compiled_once_then_kept(source):
    first = compiler.compiled(source, "add<__half>", "sm_90a")
    assert first.cubin[:4] == b"\x7fELF" and first.symbol.startswith("_Z3addI") and not first.cached
    assert first.registers > 0 and first.spill_bytes == 0 and first.shared_bytes == 256
    second = compiler.compiled(source, "add<__half>", "sm_90a")
    assert second == replace(first, cached=True)
    assert len(entries()) == 1


@pytest.mark.parametrize("name", ["v4_fewer_threads", "v5_evict_last"])
@pytest.mark.parametrize("dtype", ["__nv_bfloat16", "__half", "float", "int"])
def test_registers_leave_room_for_1280_threads(dtype, name):
    """What those rungs of vector_add are for: 10 blocks of 128, by registers given out 8 at a time."""
    rung = OPS["vector_add"].kernel(f"cuda.{name}").sources[0]
    registers = compiler.compiled(rung, f"add<{dtype}>", "sm_90a").registers
    assert 65536 // (-(-registers // 8) * 8 * 128) == 10, registers


def test_an_entry_is_for_what_it_was_compiled_from(source):
    compiler.compiled(source, "add<float>", "sm_90a")
    assert not compiler.compiled(source, "add<double>", "sm_90a").cached
    assert not compiler.compiled(source, "add<float>", "sm_80").cached
    (source.path.parent / "part.cuh").write_text("#pragma once\n#define ONE 2.0f\n")
    assert not compiler.compiled(again(source), "add<float>", "sm_90a").cached
    assert compiler.compiled(again(source), "add<float>", "sm_90a").cached
    source.path.write_text(TEXT + "\n")
    assert not compiler.compiled(again(source), "add<float>", "sm_90a").cached


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a"])
def test_architectures(source, architecture):
    assert compiler.compiled(source, "add<float>", compiler.known_architecture(architecture)).registers > 0


def test_an_architecture_that_is_none_is_told():
    with pytest.raises(ValueError, match=r"'sm_75' is none that CUDA C.. is compiled for here; there are sm_80"):
        compiler.known_architecture("sm_75")
    with pytest.raises(compiler.Unavailable, match="need sm_80 or later, this device is sm_75"):
        compiler.architecture(7, 5)
    assert [compiler.architecture(8, 9), compiler.architecture(9, 0), compiler.architecture(10, 0)] == ["sm_89", "sm_90a", "sm_100a"]


@pytest.mark.parametrize(
    ("file", "text", "instance", "sentence"),
    [
        ("my kernel.cu", TEXT.replace("gX[i]", "gY[i]"), "add<float>", r'my kernel.cu:8: add<float> does .* identifier "gY" is undefined'),
        ("my kernel.cu", TEXT.replace("part.cuh", "gone.cuh"), "add<float>", r'my kernel.cu:2: .*cannot open source file "gone.cuh"'),
        ("part.cuh", "#define ONE nothing\n", "add<float>", r'my kernel.cu:10: .*"nothing" is undefined'),
        ("part.cuh", "\n__device__ int f() { return x; }\n#define ONE 1\n", "add<float>", r'part.cuh:2: .*"x" is undefined'),
        ("part.cuh", "#define ONE 1\n", "add<flaot>", r'my kernel.cu:5: add<flaot> .*"flaot" is undefined'),
    ],
)
def test_what_does_not_compile_is_named_with_its_line(source, file, text, instance, sentence):
    (source.path.parent / file).write_text(text)
    with pytest.raises(compiler.CompileError, match=sentence):
        compiler.compiled(again(source), instance, "sm_90a")
    assert entries() == []


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"", lambda b: b"[1]\n" + b]
)
def test_a_damaged_entry_is_noticed_and_rebuilt(source, damage):
    whole = compiler.compiled(source, "add<float>", "sm_90a")
    (entry,) = entries()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compiler.compiled(source, "add<float>", "sm_90a") == whole
    assert compiler.compiled(source, "add<float>", "sm_90a").cached


def _racer(path, start, results):
    start.wait()
    made = compiler.compiled(Source(path), "add<float>", "sm_90a")
    results.put((made.symbol, made.cubin))


def test_a_file_edited_under_a_living_process_is_not_taken_for_what_it_compiles(source):
    compiler.compiled(source, "add<float>", "sm_90a")
    source.path.write_text(TEXT.replace("T(ONE)", "T(ONE) + T(ONE)"))
    compiler.compiled(source, "add<__half>", "sm_90a")  # still of the text it remembers
    new = compiler.compiled(again(source), "add<__half>", "sm_90a")
    assert not new.cached and new.cubin != compiler.compiled(source, "add<__half>", "sm_90a").cubin


def test_a_header_edited_while_it_is_compiled_leaves_no_entry(source, monkeypatch):
    compile = compiler._compile

    def slow(*what):
        made = compile(*what)
        (source.path.parent / "part.cuh").write_text("#pragma once\n#define ONE 2.0f\n")
        return made

    monkeypatch.setattr(compiler, "_compile", slow)
    compiler.compiled(source, "add<float>", "sm_90a")
    assert entries() == []


def test_sixteen_processes_leave_one_whole_entry(source):
    fork = multiprocessing.get_context("fork")
    start, results = fork.Barrier(16), fork.Queue()
    racers = [fork.Process(target=_racer, args=(source.path, start, results)) for _ in range(16)]
    for r in racers:
        r.start()
    made = {results.get(timeout=120) for _ in racers}
    for r in racers:
        r.join(60)
    assert [r.exitcode for r in racers] == [0] * 16 and len(made) == 1
    assert len(entries()) == 1
    assert compiler.compiled(source, "add<float>", "sm_90a").cached


THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
source = Source(Path(sys.argv[1]))
with ThreadPoolExecutor(8) as pool:
    print(len(list(pool.map(lambda n: compiler.compiled(source, f"k<{n}>", "sm_90a"), range(8)))))
"""


def test_the_first_to_compile_are_threads(tmp_path):
    """Seen red: cuda.core, which eight threads imported together, had no Program for one of them."""
    (tmp_path / "k.cu").write_text("template <int N> __global__ void k(int* x) { x[0] = N; }")
    said = processes.run(str(tmp_path / "k.cu"), code=THREADS, ROOFTILE_CACHE=str(tmp_path))
    assert said.stdout.split() == ["8"], said.stderr


def test_a_cache_that_cannot_be_written_is_said_once(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path / "file"))
    compiler._say_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="cannot be kept in .*file.* every process compiles again; set ROOFTILE_CACHE"):
        compiler.compiled(source, "add<float>", "sm_90a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not compiler.compiled(source, "add<float>", "sm_90a").cached


def test_a_full_disk_leaves_nothing_half(source, monkeypatch):
    write = Path.write_bytes

    def full(path, data):
        write(path, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    compiler._say_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert compiler.compiled(source, "add<float>", "sm_90a").registers > 0
    assert entries() == []


@pytest.mark.parametrize(
    "gone, remedy", [("cuda.core", "cuda-core"), ("cuda.bindings", r"'rooftile\[nvrtc\]', or the CUDA build of PyTorch")]
)
def test_a_machine_without_the_compiler_is_told_what_to_install(source, monkeypatch, gone, remedy):
    """Seen red: a CPU build was told of three packages, each when the one before was there, and without the bounds they were tested in."""
    there = compiler._installed
    monkeypatch.setattr(compiler, "_installed", lambda module: module != gone and there(module))
    compiler._find_toolchain.cache_clear()
    try:
        with pytest.raises(compiler.Unavailable, match=f"{gone.replace('.', '-')}, which is not installed: pip install {remedy}"):
            compiler.compiled(source, "add<float>", "sm_90a")
        assert "pip install" in (compiler.missing() or "")
    finally:
        compiler._find_toolchain.cache_clear()


# ---- rooftile build ------------------------------------------------------------------------------------------------------


def command(cache, *words):
    """With no compiler in reach: nothing at all is on the PATH."""
    run = processes.run("rooftile", "build", *words, PATH="/nowhere", ROOFTILE_CACHE=str(cache))
    return run.returncode, json.loads(run.stdout) if "--json" in words and run.stdout else run.stdout + run.stderr


def test_every_kernel_compiles_within_its_limits(tmp_path, monkeypatch):
    """One instance of each function, and of what each kernel launches one at least; `build` compiles what all large cases launch, in the thorough run."""
    real, met = build.instances, set()

    def some(*asked):
        launched = {(w.source.path, w.instance.partition("<")[0]): w for w in real(*asked)}
        new = [w for function, w in launched.items() if function not in met] or [*launched.values()][-1:]
        met.update(launched)
        return new

    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "instances", some)
    compiled_all([asdict(r) for r in build.build([], "sm_90a")])


@pytest.mark.thorough
def test_every_instance_compiles_within_its_limits(tmp_path):
    status, rows = command(tmp_path, "--arch", "sm_90a", "--json")
    compiled_all(rows)
    assert status == 0


def compiled_all(rows):
    assert [f"{r['kernel']} {r['file']} {r['instance']}: {r['fault']}" for r in rows if r["fault"]] == []
    assert {r["file"] for r in rows} == {p.name for p in build.shipped()}
    compiled = [(r["file"], r["instance"]) for r in rows if not r["cached"]]  # two operators may share one, and then the second finds it
    assert set(compiled) == {(r["file"], r["instance"]) for r in rows}
    # rotary_attention's others name rope's files beside attention's Triton, which is compiled under attention's own name
    declared = {(o.spec.name, k.name) for o in OPS.values() for k in o.kernels if k.sources and k.name.startswith("cuda.")}
    assert {(r["op"], r["kernel"]) for r in rows} == declared and declared


def test_a_second_run_touches_nothing(tmp_path):
    status, rows = command(tmp_path, "vector_add", "gelu", "--arch", "sm_90a", "--json")
    assert status == 0 and not any(r["cached"] for r in rows) and len(rows) > 9
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cuda").iterdir()}
    status, rows = command(tmp_path, "vector_add", "gelu", "--arch", "sm_90a", "--json")
    assert status == 0 and all(r["cached"] for r in rows)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cuda").iterdir()} == before


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_every_config_compiles_within_its_limits(tmp_path, arch):
    status, rows = command(tmp_path, "--arch", arch, "--every", "--json")
    assert [f"{r['kernel']} {r['file']} {r['instance']}: {r['fault']}" for r in rows if r["fault"]] == [] and status == 0


def test_a_config_is_compiled_where_it_has_room():
    """Seen red: two blocks were to hold a row of 512 KB, which no tuning would ask of them."""
    op = OPS["cross_entropy_ahead"]
    kernel = op.kernel("cuda.v7_cluster")

    def asked(kernel):
        return next(w.shared for w in build.instances(op, kernel, every=True) if w.instance.endswith("false, 2, 512>"))

    assert 100_000 < asked(kernel) <= kernel.limits.shared_bytes
    assert asked(replace(kernel, limits=Limits(shared_bytes=100))) > 100  # where it has room for no case, that is its fault


def test_a_wrong_architecture_is_one_sentence(tmp_path):
    status, said = command(tmp_path, "vector_add", "--arch", "sm_9")
    assert status == 2 and "'sm_9' is none" in said and "Traceback" not in said


def rung(op: Op, **changed) -> Kernel:
    return replace(op.kernel("cuda.v1_naive"), **changed)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"limits": Limits(registers=4)}, r"\d+ registers, the limit is 4"),
        ({"limits": Limits(shared_bytes=-1)}, "0 shared bytes, the limit is -1"),
        ({"sources": (Source(Path("other.cu")),)}, "launches v1_naive.cu without naming it in its sources"),
        ({"sources": ()}, "launches v1_naive.cu without naming it in its sources"),
    ],
)
def test_a_kernel_beyond_its_declaration_is_a_fault(changed, fault):
    op = OPS["vector_add"]
    (first, *_) = build.instances(op, rung(op, **changed), every=False)
    assert re.search(fault, build._build(first, "sm_90a").fault)


def test_a_launcher_that_cannot_be_asked_is_a_fault_of_its_own(monkeypatch):
    """Seen red: `build` ended with its words, which name no kernel, and built none; and of a kernel that names no source nobody asked."""
    op = OPS["vector_add"]

    def hasty(x, y):
        raise AttributeError("no such thing")

    wrong, silent = rung(op, name="cuda.v8_hasty", run=hasty), rung(op, name="cuda.v9_silent", sources=())
    monkeypatch.setattr(op, "kernels", (wrong, silent, rung(op), op.kernels[-1]))
    faults = {r.kernel: r.fault for r in build.build(["vector_add"], "sm_90a")}
    assert faults["cuda.v8_hasty"] == "AttributeError: no such thing" and faults["cuda.v1_naive"] == ""
    assert faults["cuda.v9_silent"].startswith("cuda.v9_silent launches v1_naive.cu without naming it in its sources")


def test_limits_that_another_compiler_breaks_are_told_and_no_fault(monkeypatch):
    op = OPS["vector_add"]
    (first, *_) = build.instances(op, rung(op, limits=Limits(registers=4)), every=False)
    monkeypatch.setattr(build.compiler, "release", lambda: "13.2")
    built = build._build(first, "sm_90a")
    assert built.fault == "" and re.fullmatch(r"\d+ registers, the limit is 4; limits are set with NVRTC 13.0, this is 13.2", built.note)


def test_where_a_block_has_less_memory_it_is_told_and_no_fault():
    """Seen red: for sm_89 twenty of the library's instances were faults, and another config runs there."""
    op = OPS["softmax"]
    wide = next(w for w in build.instances(op, op.kernel("cuda.v5_online"), every=False) if w.shared > 99 * 1024)
    less, more = build._build(wide, "sm_89"), build._build(wide, "sm_80")
    assert less.fault == more.fault == more.note == "" and less.shared_bytes == more.shared_bytes
    assert less.note == f"{less.shared_bytes} shared bytes, a block of sm_89 has 101376: another config, or another kernel, runs there"
    narrow = replace(wide, kernel=replace(wide.kernel, limits=Limits(shared_bytes=99 * 1024)))  # its own limit still holds
    assert build._build(narrow, "sm_89").fault == f"{less.shared_bytes} shared bytes, the limit is 101376"


def test_limits_are_of_the_compiler_that_is_pinned():
    pins = (Path(__file__).parents[1] / "constraints.txt").read_text()
    assert f"nvidia-cuda-nvrtc=={build.LIMITS_OF}." in pins


def test_a_file_that_no_kernel_launches_is_a_fault(monkeypatch, tmp_path):
    (tmp_path / "v9_forgotten.cu").write_text("")
    monkeypatch.setattr(build, "shipped", lambda: [tmp_path / "v9_forgotten.cu"])
    monkeypatch.setattr(build.gate, "all_ops", list)
    assert [(r.file, r.fault) for r in build.build([], "sm_90a")] == [("v9_forgotten.cu", "no kernel launches this file")]


def test_recording_sees_what_a_launcher_asks_for():
    op = OPS["gelu"]
    seen = {w.instance for w in build.instances(op, op.kernel("cuda.v2_half2"), every=True)}
    assert seen == {f"gelu<{t}, {b}>" for t in ("__half", "__nv_bfloat16") for b in ("true", "false")}
    assert launcher.off_gpu(torch.zeros(1)) is not None  # and stops when it ends


HABITS = {
    r"extern __shared__ (?!__align__)": "slots that straddle sectors are fetched twice: __align__(128)",
    r"__ldcs\(": "evict-first loads are slower: __ldca",
}
# Of what is read once and hardly anything written. passing.cuh has the rule by size, for accesses that take a policy.
FASTER_BY_IT = {r"__ldcs\(": {"segment_sum/cuda/v3_balanced.cu"}}


@pytest.mark.parametrize("word, why", HABITS.items())
def test_habits_that_profiles_taught(word, why):
    found = {path: n for path in build.shipped() for n, line in enumerate(path.read_text().splitlines(), 1) if re.search(word, line)}
    free = {path for path in found if "/".join(path.parts[-3:]) in FASTER_BY_IT.get(word, ())}
    assert len(free) == len(FASTER_BY_IT.get(word, ())), free
    assert [f"{path}:{n}: {why}" for path, n in found.items() if path not in free] == []


def test_every_rung_says_what_it_adds_costs_and_where_it_loses():
    for path in build.shipped():
        head = path.read_text().splitlines()[:4]
        assert [line.split(":")[0] for line in head[:3]] == ["// adds", "// costs", "// loses when"], path
        assert not head[3].startswith("//"), f"{path}: the head comment is three lines"


def test_a_kernel_for_certain_gpus_is_compiled_for_no_other(monkeypatch):
    found, named = build.instances, ("cuda.v5_hopper", "cuda.v1_naive")
    # one instance each: all of attention's take half a minute an architecture
    monkeypatch.setattr(build, "instances", lambda op, kernel, every: found(op, kernel, every)[:1] if kernel.name in named else [])
    made = {arch: {r.kernel for r in build.build(["attention"], arch)} for arch in ("sm_80", "sm_90a")}
    assert made == {"sm_80": {"cuda.v1_naive"}, "sm_90a": {"cuda.v1_naive", "cuda.v5_hopper"}}
