"""What a type checker is told: `make lint` has mypy read this file, strictly, as code of a user's; what runs here is only the numbers of it."""

import ast
from pathlib import Path
from typing import assert_type

import pytest
import torch
from torch import Tensor

import rooftile

STUBS = sorted((Path(__file__).parents[2] / "src/rooftile").rglob("*.pyi"))
Two = tuple[Tensor, Tensor]


@pytest.mark.parametrize("either", [False, True])
def test_whether_there_is_one_result_or_two_is_in_the_call(either: bool) -> None:
    q, at = torch.ones(1, 2, 1, 16), torch.tensor([2], dtype=torch.int32)
    assert_type(rooftile.attention(q, q, q, causal=True, window=(1, 0)), Tensor)
    assert_type(rooftile.attention(q, q, q, scale=1.0, return_lse=True), Two)
    assert isinstance(assert_type(rooftile.attention(q, q, q, return_lse=either), Tensor | Two), tuple) == either
    assert_type(rooftile.attention_decode(q, q, q, at), Tensor)
    assert_type(rooftile.attention_decode(q, q, q, at, window=1, return_lse=True), Two)
    assert isinstance(assert_type(rooftile.attention_decode(q, q, q, at, return_lse=either), Tensor | Two), tuple) == either
    rows, cu = q[0], torch.tensor([0, 2])
    assert_type(rooftile.attention_varlen(rows, rows, rows, cu, cu, 2, 2), Tensor)
    assert_type(rooftile.attention_varlen(rows, rows, rows, cu, cu, 2, 2, softcap=1.0, return_lse=True), Two)
    assert (
        isinstance(assert_type(rooftile.attention_varlen(rows, rows, rows, cu, cu, 2, 2, return_lse=either), Tensor | Two), tuple) == either
    )
    cos, sin = rooftile.rope_table(2, 16)
    keys = q if either else None
    assert_type(rooftile.rope(q, None, cos, sin, layout="BTHD"), Tensor)
    assert_type(rooftile.rope(q, q, cos, sin, layout="BTHD", inplace=False), Two)
    assert isinstance(assert_type(rooftile.rope(q, keys, cos, sin, layout="BTHD"), Tensor | Two), tuple) == either


def test_other_calls_have_the_types_that_they_say() -> None:
    x = torch.ones(2, 8)
    assert_type(rooftile.softmax(x) + rooftile.layernorm(x) + rooftile.gelu(x, "tanh"), Tensor)
    assert_type(rooftile.add_rmsnorm(x, x), Two)
    assert_type(rooftile.cross_entropy(x, torch.tensor([0, 1]), reduction="sum"), Tensor)
    optimizer: torch.optim.Optimizer = rooftile.AdamW([torch.nn.Parameter(x)], max_norm=1.0)
    optimizer.step()


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_stubs_have_the_parameters_of_the_functions(stub: Path) -> None:
    """One that is added to api.py, or called otherwise there, no user could give."""
    module = ast.parse(stub.read_text())
    options: dict[str, dict[str, str]] = {}
    for n in module.body:
        if isinstance(n, ast.ClassDef):
            own = {
                f.target.id: ast.unparse(f.annotation) for f in n.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
            }
            options[n.name] = {k: v for b in n.bases for k, v in options.get(ast.unparse(b), {}).items()} | own
    said = [n for n in module.body if isinstance(n, ast.FunctionDef)]
    made = ast.parse(stub.with_suffix(".py").read_text()).body
    public = {n.name: n for n in made if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}
    assert {n.name for n in said} == {*public}
    for function in said:
        stated, known = _parameters(function), _parameters(public[function.name])
        if function.args.kwarg is not None and function.args.kwarg.annotation is not None:
            stated |= options[ast.unparse(function.args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")]
        assert [*stated][: len(function.args.args)] == [a.arg for a in public[function.name].args.args]  # those that may be given by place
        narrowed = {n for n in stated if stated[n] != known.get(n)}
        assert stated.keys() == known.keys() and narrowed <= {"return_lse", "k"}, narrowed


def _parameters(function: ast.FunctionDef) -> dict[str, str]:
    return {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in (*function.args.args, *function.args.kwonlyargs)}
