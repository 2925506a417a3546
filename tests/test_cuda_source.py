"""A .cu file read as data: functions, parameters, lines, headers, and what a wrong name is told."""

import re
from pathlib import Path

import pytest

from rooftile.core.record import without_c_comments
from rooftile.cuda.source import Source

ROOT = Path(__file__).resolve().parent.parent

TEXT = """#include "part.cuh"
/* a comment over two lines:
   __global__ void no(int x) { */
template <typename T, int BLOCK = 256>
__global__ void __launch_bounds__(BLOCK) rows(T* __restrict__ gOut, const T* __restrict__ gX, long long M, int N) {
  const char* s = "// not a comment";
}
extern "C" __global__ void add(float *gOut, float const *gX, int N)
{ }
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "k.cu").write_text(TEXT)
    (tmp_path / "part.cuh").write_text('#pragma once\n#include "deeper.cuh"\n')
    (tmp_path / "deeper.cuh").write_text("#pragma once\n")
    return Source(tmp_path / "k.cu")


def test_functions_and_lines(source):
    assert [str(f) for f in source.functions.values()] == [
        "rows(T* gOut, T* gX, long long M, int N)",
        "add(float* gOut, float* gX, int N)",
    ]
    assert [f.line for f in source.functions.values()] == [5, 8]


def test_template_types_reach_the_parameters(source):
    assert str(source.function("rows<__half, 128>")) == "rows<__half, 128>(__half* gOut, __half* gX, long long M, int N)"


def test_headers_are_followed(source):
    assert [p.name for p in source.files] == ["k.cu", "part.cuh", "deeper.cuh"]


@pytest.mark.parametrize(
    ("instance", "sentence"),
    [("ad", "did you mean add"), ("rows", "takes 2 template arguments"), ("add<int>", "takes 0 template arguments .*got 1")],
)
def test_a_wrong_name_is_told(source, instance, sentence):
    with pytest.raises(ValueError, match=sentence):
        source.function(instance)


def test_comments_go_and_lines_stay():
    assert without_c_comments('a // x\n"// kept" /* y\n */ b') == 'a  \n"// kept" \n b'


def test_every_device_header_is_a_word_of_designs_table():
    """The vocabulary is closed: seven headers had come without a line."""
    table = re.search(r"\| header \| says \|\n(.*?)\n\n", (ROOT / "DESIGN.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    words = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()))
    assert sorted(words) == sorted(p.stem for p in (ROOT / "src/rooftile/cuda/include/rooftile").iterdir())
