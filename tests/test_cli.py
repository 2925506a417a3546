"""The command line as a person and as a program meet it."""

import json
import os
import subprocess
import sys

import pytest


def rooftile(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "rooftile", *words], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200", **environment}
    )


def test_list():
    rows = json.loads(rooftile("list", "--json").stdout)
    names = {r["operator"] for r in rows}
    assert {"vector_add", "softmax", "gelu", "adamw"} <= names
    for r in rows:
        kernels = [k["name"] for k in r["kernels"]]
        assert kernels[-1] == "reference" and "triton" in kernels and all(k["idea"] for k in r["kernels"])
        assert r["operator"] in ("adamw", "cross_entropy_overwrite") or "triton" in [k["name"] for k in r["backward"]]


def test_explain_says_who_refused_and_why():
    answer = json.loads(rooftile("explain", "softmax", "--shape", "M=4,N=100000", "--dtype", "bfloat16", "--json").stdout)
    assert answer["chosen"] == "triton.online"
    assert answer["refused"] == [{"kernel": "triton", "why": "N=100000 is longer than the 65536 columns a program keeps in registers"}]
    assert answer["bytes"] == 2 * 2 * 4 * 100000


def test_check_counts():
    run = rooftile("check", "softmax", "--kernel", "reference", "--device", "cpu", "--json")
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
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence):
    run = rooftile(*words)
    assert run.returncode == 2 and sentence in run.stderr and "Traceback" not in run.stderr
    assert run.stdout == ""


def test_force_by_environment():
    run = rooftile("explain", "softmax", "--shape", "M=1,N=1", ROOFTILE_FORCE="softmax:tritn")
    assert run.returncode == 2 and "did you mean triton?" in run.stderr


def test_doctor():
    findings = json.loads(rooftile("doctor", "--json").stdout)
    assert len(findings) > 5 and all(set(f) == {"ok", "sentence"} for f in findings)
