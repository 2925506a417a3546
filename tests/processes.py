"""Processes of their own without the seconds that each would spend importing: forked from one that has imported, one per mode, and these from one per
test worker, which has imported what no mode changes."""

import atexit
import contextlib
import functools
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TextIO

MODES = ("TRITON_INTERPRET", "ROOFTILE_DRY_GPU")  # what is looked at while importing


def run(*words: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """As `python -m *words`, or `python -c code *words`, in the environment of this process with these changes."""
    asked = {**os.environ, **environment}
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        print(json.dumps([words, code, asked, os.getcwd(), str(out), str(err)]), file=server.stdin, flush=True)
        status = server.stdout.readline()
        assert status, "the process that these are forked from has died"
        return subprocess.CompletedProcess([*words], int(status), out.read_text(), err.read_text())


@functools.cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    made = subprocess.Popen([sys.executable, "-W", "ignore", __file__], env=environment, stdin=-1, stdout=-1, text=True)
    atexit.register(made.wait)
    atexit.register(made.stdin.close)  # which ends it
    return made


def _serve() -> None:
    import matplotlib  # noqa: F401
    import rich.console  # noqa: F401
    import sympy  # noqa: F401
    import torch  # noqa: F401  not torch._dynamo: that imports Triton
    import typer  # noqa: F401

    assert "triton" not in sys.modules, "Triton was imported before its mode is known"
    answers, servers = os.fdopen(os.dup(1), "w"), dict[tuple[str, ...], tuple[TextIO, TextIO]]()
    for line in sys.stdin:
        mode = tuple(json.loads(line)[2].get(name, "0") for name in MODES)
        if mode not in servers:
            servers[mode] = _forked(mode, list(servers.values()))
        asked, answered = servers[mode]
        print(line, end="", file=asked, flush=True)
        status = answered.readline()
        if not status:  # it has died, and whoever asked hears so from our end
            return
        print(status, end="", file=answers, flush=True)


def _forked(mode: tuple[str, ...], others: list[tuple[TextIO, TextIO]]) -> tuple[TextIO, TextIO]:
    """Where a process that has imported in this mode is asked, and answers."""
    (to_read, asked), (answered, to_write) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for file in (file for pair in others for file in pair):
            file.close()  # another's pipe ends when the process above us does
        os.close(asked)
        os.close(answered)
        os.environ.update(zip(MODES, mode))
        _serve_mode(os.fdopen(to_read), os.fdopen(to_write, "w"))
        os._exit(0)
    os.close(to_read)
    os.close(to_write)
    return os.fdopen(asked, "w"), os.fdopen(answered)


def _serve_mode(questions: TextIO, answers: TextIO) -> None:
    import torch._dynamo  # noqa: F401  what is asked on an imagined device takes it, and it takes seconds

    import rooftile.cli
    from rooftile.workbench import gatekeeper  # noqa: F401

    if os.environ["TRITON_INTERPRET"] == "1":
        from rooftile.workbench import interpreter  # noqa: F401
    sys.argv = ["rooftile", "explain", "nothing"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        rooftile.cli.main()  # imports what a command line takes
    gc.freeze()  # or each child would copy the pages of all objects that its collector looks at
    for line in questions:
        child = os.fork()
        if child == 0:
            _become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def _become(words: list[str], code: str, environment: dict[str, str], folder: str, out: str, err: str) -> None:
    import runpy
    import traceback

    for number, (path, how) in enumerate(((os.devnull, os.O_RDONLY), (out, os.O_WRONLY | os.O_CREAT), (err, os.O_WRONLY | os.O_CREAT))):
        os.dup2(os.open(path, how), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["-c" if code else words[0], *(words if code else words[1:])]
    status = 0
    try:
        exec(code, {"__name__": "__main__"}) if code else runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
