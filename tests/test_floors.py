"""No arrow runs up, and no slice knows another but through a listed composition."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OPS = ROOT / "src" / "rooftile" / "ops"
SLICES = sorted(p.name for p in OPS.iterdir() if p.is_dir() and not p.name.startswith("_"))
# (who, of what): kernels through the other's api only; what it means, through the other's meaning
COMPOSITIONS = {
    ("attention", "attention_decode"),
    ("attention", "rope"),
    ("dropout_add_norm", "layernorm"),
    ("dropout_add_norm", "rmsnorm"),
    ("linear_cross_entropy", "cross_entropy"),
    ("linear_add", "gemm"),
    ("mlp", "gelu"),
    ("mlp", "gemm"),
    ("mlp", "glu"),
    ("mlp", "linear_add"),
}
# nothing of its own to compile: it calls other operators' kernels and the vendor's products
WITHOUT_TRITON = {"linear_add", "mlp"}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def test_contracts(monkeypatch):
    lint_imports = pytest.importorskip("importlinter.cli", reason="the GPU machine has no import-linter").lint_imports
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml") == 0


def test_slices_are_packages():
    """Else a contract breaks by an arrow that nobody drew: the slice's line in ops/__init__.py is taken for an import of rooftile itself."""
    assert [name for name in SLICES if not (OPS / name / "__init__.py").is_file()] == []


@pytest.mark.parametrize("name", SLICES)
def test_slices_do_not_know_each_other(name):
    for file in (OPS / name).glob("*.py"):
        for module in imports(file):
            parts = module.split(".")
            if parts[:2] == ["rooftile", "ops"] and len(parts) > 2 and parts[2] not in (name, "_shared"):
                known = (["api"], ["reference"], *([["spec"]] if file.stem.endswith("spec") else []))
                assert (name, parts[2]) in COMPOSITIONS and parts[3:] in known, f"{file.name} imports {module}"


@pytest.mark.parametrize("name", SLICES)
def test_meaning_is_read_without_a_compiler(name):
    for part in ("spec.py", "reference.py"):
        assert not {m for m in imports(OPS / name / part) if m.split(".")[0] == "triton" or m.startswith("rooftile.cuda")}


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_is_whole(name):
    kernels = () if name in WITHOUT_TRITON else ("triton_kernels.py",)
    for part in ("reference.py", "spec.py", *kernels, "api.py", "README.md"):
        assert (OPS / name / part).is_file(), f"{name} lacks {part}"


def test_importing_leaves_the_compiler_out():
    """Seen red: two decorators of torch.compiler imported torch._dynamo, half of the seconds that `rooftile --version` took."""
    code = (
        "import sys, torch\nbefore = 'torch._dynamo' in sys.modules\nimport rooftile\nassert before or 'torch._dynamo' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
