"""Bad input to training: one sentence with both numbers, and nothing written."""

import dataclasses
import gzip
import hashlib
import io
import os
import sys
import urllib.error

import numpy as np
import pytest
import torch

from rooftile.models import GPT2, GPT2Config
from rooftile.training import TrainConfig, TrainError, loop, train
from rooftile.training import text as texts
from rooftile.training.data import evaluation_batches, load_data, training_batch
from test_models import one_thread  # noqa: F401 - a fixture for every test here
from training_runs import VERSE, maker, run, series


@pytest.fixture
def tiny(tmp_path):
    return maker(tmp_path)


def refused(config, match, error=TrainError):
    """`train` raises one line and leaves no output folder behind."""
    with pytest.raises(error, match=match) as caught:
        train(config, progress=False)
    assert "\n" not in str(caught.value) and isinstance(caught.value, ValueError | FileNotFoundError)


def test_a_folder_is_one_run_s_while_it_goes_on(tiny, tmp_path, monkeypatch):
    second = []

    def update(run, step, update=loop._Run.update):
        if step == 2 and not second:
            with pytest.raises(TrainError) as caught:
                train(tiny("out", seed=1), progress=False)
            second.append(caught)
        return update(run, step)

    monkeypatch.setattr(loop._Run, "update", update)
    train(tiny("out", steps=3, save_every=3), progress=False)
    assert len(second) == 1 and second[0].match("out is another run's, which goes on: wait for its end, or choose another out$")
    assert [line["step"] for line in series(tmp_path / "out")] == [1, 2, 3, 3]  # and the evaluation
    train(tiny("out", steps=4, resume=True), progress=False)  # whose end has let go of it


def test_bad_text(tiny, tmp_path):
    def case(content, match, **changes):
        (tmp_path / "text").write_bytes(content)
        refused(tiny("run", **changes), match)
        assert not (tmp_path / "run").exists()

    case(b"", "is empty: 0 bytes")
    case(b"x" * 33, "holds 33 tokens, context 16 needs at least 34")
    case(VERSE, "needs at least 202", context=100)
    refused(tiny("run", text=str(tmp_path / "nowhere")), "nowhere does not exist", FileNotFoundError)
    refused(tiny("run", text=str(tmp_path)), "cannot be read: Is a directory")
    (tmp_path / "text").write_bytes(b"x" * 34)  # the shortest text there can be does train
    run(tiny("run", steps=1))


def test_bad_output_folder(tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(tiny("file/run"), r"file/run cannot be written: Not a directory")
    (tmp_path / "taken" / "loss.png").mkdir(parents=True)
    refused(tiny("taken"), r"taken/loss\.png: Is a directory; checkpoint-00000006\.pt stands")  # seen red: the file was not named
    run(tiny("run"))
    before = series(tmp_path / "run")
    refused(tiny("run"), r"already holds checkpoint-00000006\.pt")
    assert series(tmp_path / "run") == before


def test_bad_resume(tiny, tmp_path):
    refused(tiny("run", resume=True), "no checkpoint to resume from", FileNotFoundError)
    refused(tiny("run", resume_from=str(tmp_path / "no.pt")), r"no\.pt does not exist", FileNotFoundError)
    assert not (tmp_path / "run").exists()
    run(tiny("run"))
    for out in ("run", "other"):  # seen red: "already holds", and "the checkpoint run does not exist"
        refused(tiny(out, resume_from=str(tmp_path / "run")), r"resume_from is .*/run, a folder, must be one checkpoint file")
    before = sorted((f.name, f.stat().st_mtime_ns) for f in (tmp_path / "run").iterdir())
    refused(tiny("run", resume=True, n_embd=32), r"h\.0\.attn\.c_attn\.bias has shape \(48,\) there and has shape \(96,\) here")
    refused(tiny("run", resume=True, n_layer=2), r"h\.1\..* is not there and has shape \(\d+.*\) here")
    refused(tiny("run", resume=True, n_head=4), "is of another model: n_head is 2 there and 4 here")
    refused(tiny("run", resume=True, batch_size=5), "batch_size 4, this run has 5")
    refused(tiny("run", resume=True, model="llama"), r"is of another model: .* is not there and has shape .* here")
    run(tiny("llama", model="llama"))
    refused(tiny("llama", resume_from=str(tmp_path / "run" / "checkpoint-00000006.pt")), r"llama already holds checkpoint-00000006\.pt")
    refused(tiny("llama", model="llama", weights="bfloat16", resume=True), "was trained with weights float32, this run has bfloat16")
    refused(tiny("run", resume=True, steps=5), "is at step 6, past this run's steps 5")
    (tmp_path / "text").write_bytes(VERSE * 39)
    refused(tiny("run", resume=True), "another text: its crc32 is")
    foreign = tmp_path / "run" / "checkpoint-00000009.pt"
    torch.save({"weights": torch.ones(2)}, foreign)
    refused(tiny("run", resume=True), "was not written by rooftile train")
    foreign.unlink()
    assert before == sorted((f.name, f.stat().st_mtime_ns) for f in (tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"steps": 0}, "steps is 0, must be at least 1"),
        ({"steps": 2.0}, r"steps is 2\.0, must be a whole number"),  # seen red: a TypeError of torch's
        ({"steps": True}, "steps is True, must be a whole number"),
        ({"lr": True}, "lr is True, must be a number"),
        ({"lr": "1e-3"}, "lr is '1e-3', must be a number"),
        ({"prompt": b"run"}, "prompt is b'run', must be a text"),
        ({"resume": "no"}, "resume is 'no', must be true or false"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"lr": 1e-4}, r"min_lr is 0\.0003, above lr 0\.0001: the rate would rise to it"),  # seen red: it rose, with no word
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"kernels": "cuda"}, "kernels is 'cuda', must be one of rooftile, torch, compile"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"tokenizer": "words"}, "tokenizer is 'words'"),
        ({"text_mb": 0.0}, "text_mb is"),
        ({"text_mb": float("inf")}, "text_mb is inf, must be at least 0.000001, a byte, and finite"),
        ({"text_mb": 1e-9}, "text_mb is 1e-09, must be at least"),
        ({"seed": 2**64}, f"seed is {2**64}, must be below {2**64}"),
        ({"device": "mps"}, "device is 'mps', must be auto, cpu, cuda or cuda:N"),
        ({"device": "meta"}, "device is 'meta', must be auto"),
        ({"device": "tpu9"}, "device is 'tpu9'"),
        ({"prompt": ""}, "prompt is empty"),
        ({"n_head": 3}, "n_embd is 16, not a multiple of n_head 3"),
        ({"parallel": "ddp"}, "parallel 'ddp' is for several processes: torchrun"),
        ({"parallel": "fsdp", "dropout": 0.1}, r"dropout is 0\.1 beside parallel 'fsdp'"),
        ({"model": "llama", "n_head": 3}, "hidden_size is 16, not a multiple of num_attention_heads 3"),
        ({"model": "llama", "dropout": 0.1}, r"dropout is 0\.1, but the model llama does not take it: leave it at 0\.0"),
        ({"model": "llama-1.2b"}, "n_layer is 1, but the model llama-1.2b does not take it: leave it at 4"),
        ({"n_kv_head": 2}, "n_kv_head is 2, but the model gpt2 does not take it: leave it at 0"),
        ({"model": "llama", "weights": "bfloat16", "dtype": "float32"}, "weights is 'bfloat16' beside dtype 'float32'"),
        ({"weights": "master", "kernels": "rooftile", "dtype": "float32"}, "weights is 'master' beside dtype 'float32'"),
        ({"weights": "master"}, "weights is 'master' beside kernels 'torch': only rooftile's AdamW keeps"),
        ({"weights": "master", "kernels": "rooftile", "parallel": "fsdp"}, "weights is 'master' beside parallel 'fsdp'"),
        ({"weights": "float16"}, "weights is 'float16', must be one of auto, float32, bfloat16, master"),
    ],
)
def test_bad_knobs(tiny, tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        run(tiny("run", **changes))
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_holds_plain_knobs(tiny, tmp_path):
    """Seen red: a run with a Path or a number of numpy's trained to its end, and none of its checkpoints could be read again."""
    knobs = {
        "out": tmp_path / "run",
        "text": tmp_path / "text",
        "save_every": np.int64(3),
        "lr": np.float64(1e-2),
        "device": torch.device("cpu"),
    }
    config = dataclasses.replace(tiny("run"), **knobs, init=None)
    run(config)
    assert run(dataclasses.replace(config, steps=7, decay_steps=7, resume=True)).steps == 7
    assert {type(value) for value in vars(config).values()} == {str, bool, int, float}


def test_resume_without_a_folder_finds_the_last_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainError, match="resume found 0 checkpoints under runs/"):
        TrainConfig(resume=True).resolved()
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "checkpoint-00000001.pt").touch()
    assert TrainConfig(resume=True).resolved().out == "runs/a"


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(monkeypatch):
    """Seen red: their metrics and checkpoints were one another's."""
    names = []
    for process in (1, 2):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        monkeypatch.setattr("time.strftime", lambda name: name)
        names.append(TrainConfig().resolved().out)
    assert names == ["runs/%Y%m%d-%H%M%S-1", "runs/%Y%m%d-%H%M%S-2"]


def test_processes_that_share_nothing(tiny, monkeypatch):
    """Seen red: each of torchrun's trained the whole model into the same folder."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(tiny("run"), "parallel is 'none', but these are 2 processes, which would write one folder: make it ddp or fsdp")
    monkeypatch.setenv("WORLD_SIZE", "1")
    run(tiny("run", steps=1))


def test_absent_cuda(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(tiny("run", device="cuda"), "finds no CUDA device")


def test_every_knob_has_its_line_of_help():
    for field in dataclasses.fields(TrainConfig):
        assert field.metadata["help"].strip() and "\n" not in field.metadata["help"]


def test_loss_that_is_not_finite_stops_the_run(tiny, tmp_path, monkeypatch):
    real = GPT2.forward

    def poisoned(self, tokens, targets=None):
        poisoned.calls += self.training and targets is not None
        return real(self, tokens, targets) * (float("nan") if poisoned.calls == 5 else 1.0)

    poisoned.calls = 0
    monkeypatch.setattr(GPT2, "forward", poisoned)
    refused(tiny("run"), r"the loss is nan at step 5 with learning rate .* it was 5\.\d+ at step 4")
    assert series(tmp_path / "run")[-1]["step"] == 4
    assert [f.name for f in (tmp_path / "run").glob("*.pt")] == ["checkpoint-00000003.pt"]  # no poisoned weights saved


def test_validation_loss_that_is_not_finite_stops_the_run(tiny, tmp_path):
    """The training loss of the step is that before its update, and still a number."""
    refused(tiny("run", lr=1e20, min_lr=0.0, warmup=0, eval_every=1), "the validation loss is (nan|inf) after step 1: try a lower lr")
    assert [row["step"] for row in series(tmp_path / "run")] == [1] and not list((tmp_path / "run").glob("*.pt"))


def test_init_from_a_hugging_face_folder(tiny, tmp_path):
    torch.manual_seed(3)
    shape = GPT2Config(vocab_size=256, n_positions=20, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0.1, resid_pdrop=0.1)
    given = GPT2(shape)
    given.save_pretrained(tmp_path / "given")
    result = run(tiny("run", init=str(tmp_path / "given"), lr=0.0, min_lr=0.0))
    trained = GPT2.from_pretrained(result.model)
    assert all(torch.equal(a, b) for a, b in zip(given.parameters(), trained.parameters()))
    assert trained.config.attn_pdrop == trained.config.resid_pdrop == 0.0
    refused(tiny("b", init=str(tmp_path / "given"), context=21), "context is 21, the model in .* has n_positions 20")
    refused(tiny("b", init=str(tmp_path / "given"), n_layer=3), "n_layer is 3, the model in .*given has 1")
    refused(tiny("b", init=str(tmp_path / "nowhere")), r"holds no config\.json", FileNotFoundError)
    for vocab in (100, 128, 5000):
        GPT2(dataclasses.replace(shape, vocab_size=vocab)).save_pretrained(tmp_path / str(vocab))
    refused(tiny("b", init=str(tmp_path / "100")), "holds token 122, the model's vocabulary has only 100")
    refused(tiny("b", init=str(tmp_path / "128"), prompt="\u00e9"), "prompt holds token 195, the model's vocabulary has only 128")
    sample = run(tiny("wide", init=str(tmp_path / "5000"), lr=0.0, min_lr=0.0)).sample
    assert len(sample) < 9  # tokens that are no bytes are no text


def test_standard_library_is_deterministic_and_bounded(tmp_path):
    for name, content in (("b/two.py", b"2" * 50), ("one.py", b"1" * 50), ("test/no.py", b"n" * 50), ("big.py", b"x" * 200_000)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "data.txt").write_bytes(b"t" * 50)
    everything = texts.standard_library(1000, tmp_path)
    assert sorted(everything) == sorted(b"1" * 50 + b"2" * 50)
    assert texts.standard_library(70, tmp_path) == everything[:70]
    real = texts.standard_library(300_000)
    assert len(real) == 300_000 and real == texts.standard_library(300_000) and real.count(b"def ") > 300
    (tmp_path / "none").mkdir()
    with pytest.raises(TrainError, match="holds no Python sources"):
        texts.standard_library(10, tmp_path / "none")


def test_batches_are_a_function_of_seed_and_step(tiny):
    data = load_data(tiny("run"))
    tokens = data.train

    def draw(seed, step):
        return training_batch(tokens, 16, 5, seed=seed, step=step)

    x, y = draw(0, 7)
    assert x.shape == y.shape == (5, 16) and torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(x, draw(0, 7)[0]) and not torch.equal(x, draw(0, 8)[0]) and not torch.equal(x, draw(1, 7)[0])
    text = bytes(tokens.tolist())
    assert all(bytes([*a, b[-1]]) in text for a, b in zip(x.tolist(), y.tolist()))
    whole = np.concatenate([data.train.numpy(), data.validation.numpy()])
    assert bytes(whole.tolist()) == VERSE * 40 and len(data.validation) == 40 * len(VERSE) // 10
    shortest = torch.arange(17)
    assert torch.equal(training_batch(shortest, 16, 3, seed=0, step=1)[1], shortest[1:].expand(3, 16))


def test_evaluation_windows_do_not_overlap():
    tokens = torch.arange(1000)
    parts = [x for x, _ in evaluation_batches(tokens, 10, 4, 5)]
    assert [len(x) for x in parts] == [4] * 5
    seen = torch.cat(parts).flatten()
    assert len(seen.unique()) == 200 and seen.max() > 900
    assert [len(x) for x, _ in evaluation_batches(torch.arange(71), 10, 4, 5)] == [4, 3]


def test_tinyshakespeare(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFTILE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def answers(with_what):
        def urlopen(url, timeout):
            if isinstance(with_what, Exception):
                raise with_what
            return io.BytesIO(with_what)

        monkeypatch.setattr(texts.urllib.request, "urlopen", urlopen)

    answers(urllib.error.URLError("no route to host"))
    with pytest.raises(TrainError, match=r"could not be downloaded from https://.*no route to host"):
        texts.read_text("tinyshakespeare", 1)
    answers(b"something else")
    with pytest.raises(TrainError, match=r"sha256 \w{12}\.\.\., expected 86c4e6aa9db7"):
        texts.read_text("tinyshakespeare", 1)
    assert not list(tmp_path.rglob("*.txt"))
    monkeypatch.setattr(texts, "TINYSHAKESPEARE_SHA256", hashlib.sha256(b"something else").hexdigest())
    assert texts.read_text("tinyshakespeare", 1) == b"something else"
    answers(AssertionError("the second time it comes from the cache"))
    assert texts.read_text("tinyshakespeare", 1) == b"something else"
    assert (tmp_path / "tinyshakespeare.txt").is_file()


def test_gpt2_tokenizer_says_what_it_lacks(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    refused(tiny("run", tokenizer="gpt2"), "needs tiktoken, which is not installed")
    broken = type(sys)("tiktoken")

    def get_encoding(name):
        raise ConnectionError("proxy said no\nat length")

    broken.get_encoding = get_encoding
    monkeypatch.setitem(sys.modules, "tiktoken", broken)
    refused(tiny("run", tokenizer="gpt2"), "could not get the gpt2 vocabulary, which it downloads once: proxy said no")


def test_gpt2_tokenizer_is_used(tiny, monkeypatch, tmp_path):
    """A stand-in with tiktoken's interface: the ids reach the model, whose vocabulary is rounded up to 64 rows."""
    fake = type(sys)("tiktoken")

    class Encoding:
        n_vocab = 300

        def encode_ordinary(self, text):
            return [ord(c) + 100 for c in text]

        def decode(self, ids):
            return "".join(chr(max(i - 100, 32)) for i in ids)

    fake.get_encoding = lambda name: Encoding()
    monkeypatch.setitem(sys.modules, "tiktoken", fake)
    result = run(tiny("run", tokenizer="gpt2"))
    assert GPT2.from_pretrained(result.model).config.vocab_size == 320
    assert len(result.sample) == 9  # the prompt and eight drawn ids, the padding rows decoded to nothing at worst
    for content, sentence in ((gzip.compress(VERSE * 40), "byte 1 is 0x8b"), (("caf\xe9 " * 40).encode("latin-1"), "byte 3 is 0xe9")):
        (tmp_path / "text").write_bytes(content)  # seen red: trained on replacement characters
        refused(tiny("other", tokenizer="gpt2"), f"text is not UTF-8: {sentence}; convert it, or take the tokenizer bytes")
    run(tiny("bytes", steps=1))  # which a tokenizer of bytes takes as it is


def test_a_prompt_in_another_encoding_is_the_bytes_that_were_typed(tiny):
    """Seen red: "surrogates not allowed", and not of what."""
    assert run(tiny("run", steps=1, prompt=os.fsdecode(b"\xe9t\xe9"))).sample.startswith(
        "\N{REPLACEMENT CHARACTER}t\N{REPLACEMENT CHARACTER}"
    )
