"""GPT-2: equal to transformers tensor by tensor, both ways; the pieces the training floor leans on."""

import dataclasses
import importlib.util
import json
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations

from rooftile.models import GPT2, GPT2Config, Llama, LlamaConfig, operators
from rooftile.models.precision import Stream
from rooftile.models.pretrained import TRANSPOSED
from rooftile.ops import AdamW

transformers = pytest.importorskip("transformers")
SMALL = GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=3, n_head=4)


@pytest.fixture(autouse=True)
def one_thread():
    """These models are too small for two: on shared cores the threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(**options):
    torch.manual_seed(0)
    return GPT2(SMALL, **options)


@torch.no_grad()
def with_biases(model):
    """They begin as zeros, and one that is forgotten would not show."""
    gen = torch.Generator().manual_seed(3)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.copy_(0.1 * torch.randn(p.shape, generator=gen))
    return model


def text(rows=3):
    tokens = torch.randint(0, SMALL.vocab_size, (rows, 18), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def gap(a, b):
    """Relative error by norm."""
    return ((a - b).norm() / b.norm()).item()


def theirs(**changes):
    torch.manual_seed(7)
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=24, n_embd=32, n_layer=3, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, attn_implementation="eager", **changes,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():  # their initial biases are zero and norms one: a swapped or forgotten one would not show
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model


def compare(ours, hf):
    """Logits, loss and every gradient, within 1e-5 by norm."""
    x, y = text()
    logits = hf(x).logits
    assert gap(ours(x), logits) < 1e-5
    expected = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    expected.backward()
    loss = ours(x, y)
    loss.backward()
    assert gap(loss, expected) < 1e-6
    wanted = {name.removeprefix("transformer."): p.grad for name, p in hf.named_parameters() if name != "lm_head.weight"}
    got = {name: p.grad.t() if name.endswith(TRANSPOSED) else p.grad for name, p in ours.named_parameters()}
    assert got.keys() == wanted.keys()
    for name, grad in got.items():
        if name.endswith("c_attn.bias"):  # the key's part is zero in exact arithmetic: compare what is not noise
            k = slice(SMALL.n_embd, 2 * SMALL.n_embd)
            assert grad[k].norm() < 1e-6 and wanted[name][k].norm() < 1e-6
        assert gap(grad, wanted[name]) < 1e-5, name


@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_transformers_checkpoint_is_read(tmp_path, activation, kernels):
    hf = theirs(activation_function=activation)
    hf.save_pretrained(tmp_path)
    compare(GPT2.from_pretrained(tmp_path, operators=operators(kernels)), hf)


def test_trunk_checkpoint_is_read(tmp_path):
    """Saved from GPT2Model: names without the prefix; an old file's mask buffers and stored head do not disturb."""
    hf = theirs()
    hf.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    plain = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    plain["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)
    plain["lm_head.weight"] = plain["wte.weight"].clone()
    save_file(plain, tmp_path / "model.safetensors", metadata={"format": "pt"})
    compare(GPT2.from_pretrained(tmp_path), hf)


def test_transformers_reads_ours(tmp_path):
    ours = small()
    with torch.no_grad():
        for p in ours.parameters():
            p += 0.1 * torch.randn_like(p)
    ours.save_pretrained(tmp_path / "new")
    assert [f.name for f in tmp_path.iterdir()] == ["new"]  # nothing temporary left
    compare(ours, transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "new", attn_implementation="eager"))
    ours.save_pretrained(tmp_path / "new")  # over an existing folder, too
    again = GPT2.from_pretrained(tmp_path / "new")
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), again.state_dict().values()))


def test_folder_appears_whole_or_not(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("rooftile.models.pretrained.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        small().save_pretrained(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", [lambda: GPT2(SMALL), lambda: Llama(LlamaConfig(61, 32, 48, 1, 2))], ids=["gpt2", "llama"])
def test_a_folder_to_write_has_a_name(model, tmp_path, monkeypatch):
    """An empty one, of a setting that is not set, filled the current one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="folder to write is '', which names none"):
        model().save_pretrained("")
    assert list(tmp_path.iterdir()) == []


def spoiling(kind, model, folder):
    """The model's folder, of which kind.from_pretrained reads: its config.json, its weights, what both held, and refused(match, changes, tensors)."""
    model.save_pretrained(folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    good, stored = json.loads(config.read_text()), load_file(weights)

    def refused(match, changes=None, tensors=None):
        config.write_text(json.dumps({**good, **(changes or {})}))
        save_file(tensors or stored, weights)
        with pytest.raises(ValueError, match=match):
            kind.from_pretrained(folder)

    return config, weights, good, stored, refused


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        GPT2.from_pretrained(tmp_path)
    config, weights, good, stored, refused = spoiling(GPT2, small(), tmp_path)
    refused(r"wte\.weight has shape \(61, 32\), config\.json says \(62, 32\)", {"vocab_size": 62})
    refused("n_embd is 32, not a multiple of n_head 5", {"n_head": 5})
    refused("scale_attn_by_inverse_layer_idx True", {"scale_attn_by_inverse_layer_idx": True})
    refused("tie_word_embeddings False", {"tie_word_embeddings": False})
    refused(r"lacks h\.2", tensors={k: v for k, v in stored.items() if ".h.2." not in k})
    refused("has the unknown extra", tensors={**stored, "extra": torch.ones(1)})
    refused(r"ln_f\.bias is int8, takes float32", tensors={**stored, "transformer.ln_f.bias": torch.ones(32, dtype=torch.int8)})
    for name, wrong in (("attn_pdrop", None), ("n_head", "4"), ("n_layer", True), ("n_embd", 32.5), ("activation_function", None)):
        refused(rf"config\.json has {name} {wrong!r}, takes", {name: wrong})
    config.write_text("null")
    with pytest.raises(ValueError, match=r"config\.json holds NoneType, needs an object"):
        GPT2.from_pretrained(tmp_path)
    config.write_text(json.dumps(good))
    save_file(stored, weights)
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=f"holds {len(whole) // 2} bytes"):
        GPT2.from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        GPT2.from_pretrained(tmp_path)


def test_initialisation():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=500, n_positions=64, n_embd=128, n_layer=8, n_head=4))
    assert model.wte.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.h[3].mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.h[3].mlp.c_proj.weight.std().item() == pytest.approx(0.005, rel=0.02)
    assert not model.h[0].attn.c_attn.bias.any() and (model.ln_f.weight == 1).all()
    assert sum(p.numel() for p in GPT2(GPT2Config()).parameters()) == 124_439_808


def test_a_model_made_on_the_meta_device_begins_as_another_does():
    plain = small()
    with torch.device("meta"):
        model = GPT2(SMALL)
    model.to_empty(device="cpu")
    for p in model.parameters():
        p.data.fill_(math.nan)
    torch.manual_seed(0)
    model.initialise()
    torch.manual_seed(0)
    plain.initialise()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters()))


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_checkpointing_changes_no_gradient(kernels):
    x, y = text()
    plain, again = (with_biases(small(operators=operators(kernels), checkpointing=c)) for c in (False, True))
    for model in (plain, again):
        model(x, y).backward()
    for a, b in zip(plain.parameters(), again.parameters()):
        assert torch.equal(a.grad, b.grad)


def test_checkpointing_repeats_its_dropout():
    config = GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.3, embd_pdrop=0.1)
    x, y = text()
    grads = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = GPT2(config, checkpointing=checkpointing)
        model(x, y).backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    assert not torch.equal(model(x), model(x)) and torch.equal(model.eval()(x), model(x))


def rooftile():
    """The package's own table; skipped only while an operator's folder is absent, never because it fails to import."""
    needed = ("adamw", "attention", "dropout", "embedding", "gemm", "layernorm", "linear_add", "linear_cross_entropy", "mlp")
    absent = [name for name in needed if importlib.util.find_spec(f"rooftile.ops.{name}") is None]
    if absent:
        pytest.skip(f"rooftile.ops lacks {', '.join(absent)}")
    return operators("rooftile")


def plain_table(**changes):
    """The torch calls under the rules of the rooftile table (no autocast): tests those rules without kernels."""

    def head(x, weight, target):
        return F.cross_entropy(F.linear(x, weight.to(x.dtype)).float(), target)

    def stream_layernorm(x, weight, bias, eps):
        return F.layer_norm(x, weight.shape, weight, bias, eps).to(x.dtype), x  # our operators give a norm of x's dtype

    def add_layernorm(x, residual, *norm):
        return stream_layernorm(x + residual, *norm)

    table = {"linear_cross_entropy": head, "stream_layernorm": stream_layernorm, "add_layernorm": add_layernorm}
    return dataclasses.replace(operators("torch"), autocast=False, **table, **changes)


def test_casting_table_equals_the_autocast_table_in_float32():
    x, y = text()
    a, b = small(), small(operators=plain_table())
    for model in (a, b):
        model(x, y).backward()
    for p, q in zip(a.parameters(), b.parameters()):
        assert gap(q.grad, p.grad) < 1e-5


@pytest.mark.parametrize("table", [operators("torch"), plain_table()])
def test_bfloat16_stays_near_float32_and_weights_stay_float32(table):
    x, y = text()
    exact, mixed = small(), small(operators=table, compute_dtype=torch.bfloat16)
    for model in (exact, mixed):
        model(x, y).backward()
    assert mixed(x).dtype == torch.bfloat16 and mixed(x, y).dtype == torch.float32
    for (name, p), q in zip(exact.named_parameters(), mixed.parameters()):
        assert q.dtype == q.grad.dtype == torch.float32
        assert 1e-7 < gap(q.grad, p.grad) < 0.05, name


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_weights_in_bfloat16(kernels, tmp_path):
    x, y = text()
    exact, mixed = small(), small(operators=operators(kernels), compute_dtype=torch.bfloat16, weights=torch.bfloat16)
    for model in (exact, mixed):
        model(x, y).backward()
    for (name, p), q in zip(exact.named_parameters(), mixed.parameters()):
        assert q.grad.dtype == torch.bfloat16 and 1e-7 < gap(q.grad.float(), p.grad) < 0.08, name
    mixed.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    with pytest.raises(ValueError, match=r"weights is torch\.bfloat16, must be torch\.float32 or the compute dtype, torch\.float32"):
        small(weights=torch.bfloat16)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_rooftile_table_equals_torch(dtype, tolerance):
    ours = rooftile()
    x, y = text()
    a, b = with_biases(small()), with_biases(small(operators=ours, compute_dtype=dtype))
    loss, expected = b(x, y), a(x, y)
    loss.backward(), expected.backward()
    assert loss.dtype == torch.float32 and b(x).dtype == dtype and gap(loss, expected) < tolerance
    for (name, p), q in zip(a.named_parameters(), b.parameters()):
        assert gap(q.grad, p.grad) < tolerance, name


def test_a_heads_gradient_is_where_the_embeddings_is_added(monkeypatch):
    """In every model whose head is the embedding: what the head's operator made is nobody else's."""
    copied, clone = [], torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda t, **how: copied.append(t.shape) or clone(t, **how))
    for weights in (torch.float32, torch.bfloat16):
        model = GPT2(SMALL, operators("rooftile"), torch.bfloat16, weights=weights)
        model(*text()).backward()
        assert model.wte.weight.grad is not None and model.wte.weight.shape not in copied


def test_a_branch_goes_into_the_stream_and_its_biass_gradient_to_the_norm_behind():
    """Of our table; where no gradient is wanted, and with PyTorch's table, the bias is the layer's. Where dropout stands between the two the norm adds the branch."""
    x, y = text()
    seen = []

    def noted(name, which):
        def run(*args, **options):
            seen.append((name, which(args, options)))
            return getattr(operators(kernels), name)(*args, **options)

        return run

    def table():
        spies = {
            "linear": lambda args, options: args[2].requires_grad,
            "linear_add": lambda args, options: args[3].requires_grad,
            "mlp": lambda args, options: (args[4].requires_grad, options["residual"] is not None),
            "add_layernorm": lambda args, options: False,
            "stream_layernorm": lambda args, options: "x_bias" in options and options["x_bias"].requires_grad,
        }
        return dataclasses.replace(operators(kernels), **{name: noted(name, which) for name, which in spies.items()})

    config = dataclasses.replace(SMALL, resid_pdrop=0.3)
    for kernels, p, training, left in (
        ("rooftile", 0.0, True, True),
        ("rooftile", 0.3, True, False),
        ("rooftile", 0.3, False, True),
        ("torch", 0.0, True, False),
        ("torch", 0.3, True, False),
        ("rooftile", 0.0, "frozen", False),
    ):
        model = GPT2(dataclasses.replace(config, resid_pdrop=p), table(), torch.bfloat16).train(training is True)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.fill_(0.5)
            parameter.requires_grad_(training != "frozen")
        seen.clear()
        model(x, y)
        dropped, own = p > 0 and training is True, not left and training != "frozen"
        last, norm = ("linear" if dropped else "linear_add", own), ("add_layernorm" if dropped else "stream_layernorm", left)
        block = [("linear", training != "frozen"), last, norm, ("mlp", (own, not dropped)), norm]
        assert seen == [("stream_layernorm", False), *block * SMALL.n_layer], (kernels, p, training)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_an_optimizer_that_steps_within_the_backward_pass(kernels, checkpointing):
    """Each parameter as soon as it has its gradient. Seen red: a branch's bias, whose gradient comes of the norm behind, was written before the branch's
    own backward pass, which kept it and does not read it: "modified by an inplace operation"."""
    x, y = text()
    inside, behind = (with_biases(small(operators=operators(kernels), checkpointing=checkpointing)) for _ in range(2))
    each = {p: AdamW([p], 1e-2) for p in inside.parameters()}

    def step(p):
        each[p].step()
        each[p].zero_grad()

    for p in inside.parameters():
        p.register_post_accumulate_grad_hook(step)
    optimizer = AdamW(behind.parameters(), 1e-2)
    for _ in range(2):
        inside(x, y).backward()
        behind(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(inside.parameters(), behind.parameters()))


def test_what_is_put_in_a_layers_place_is_told():
    """The layers only hold parameters. Seen red: a LoRA's adapters, whose weight is the layer's, were passed over without a word, and of a quantised
    layer it was "'function' object has no attribute 'to'"."""

    class Adapted(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        weight, bias = (property(lambda self, name=name: getattr(self.layer, name)) for name in ("weight", "bias"))

    for name in ("h.0.attn.c_attn", "h.0.attn.c_proj", "h.1.mlp.c_fc", "h.1.mlp.c_proj", "h.0.ln_1", "ln_f", "wte", "wpe"):
        model = small(operators=operators("rooftile"))
        layer = model.get_submodule(name)
        model.set_submodule(name, Adapted(layer))
        with pytest.raises(
            ValueError, match=f"Adapted stands in the place of a torch.nn.{type(layer).__name__}, and the layers of this model only hold"
        ):
            model(*text())
    model = small(operators=operators("rooftile"))
    model.ln_f.forward = lambda x: x
    with pytest.raises(ValueError, match=r"LayerNorm stands in the place of a torch\.nn\.LayerNorm"):
        model(*text())
    model = small(operators=operators("rooftile"))
    parametrizations.weight_norm(model.h[0].mlp.c_fc)
    assert gap(model(*text()), small(operators=operators("rooftile"))(*text())) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_another_dtype_says_what_it_is_made_with(dtype):
    """Seen red: "dtype is bfloat16 in weight, but float32 in x", of the first norm."""
    with pytest.raises(ValueError, match=f"its parameters are {dtype}, and it computes in torch.float32: .* compute_dtype="):
        small(operators=operators("rooftile")).to(dtype)(*text())
    small(operators=operators("rooftile"), compute_dtype=torch.bfloat16).to(torch.bfloat16)(*text()).backward()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_a_branch_that_is_dropped_from_goes_the_other_way_to_the_same_place(kernels, checkpointing):
    """With a dropout that drops nothing."""
    x, y = text()
    table = dataclasses.replace(operators(kernels), dropout=lambda x, p, training: x)
    plain = with_biases(small(operators=operators(kernels)))
    torch.manual_seed(0)
    dropped = with_biases(GPT2(dataclasses.replace(SMALL, resid_pdrop=0.5), table, checkpointing=checkpointing))
    for model in (plain, dropped):
        model(x, y).backward()
    for (name, p), q in zip(plain.named_parameters(), dropped.parameters()):
        assert gap(q.grad, p.grad) < 1e-5, name


def test_a_hook_that_changes_what_a_branch_gives_changes_its_biass_gradient():
    """The norm behind knows nothing of it."""
    x, y = text()
    ours, theirs = (with_biases(small(operators=operators(kernels))) for kernels in ("rooftile", "torch"))
    for model in (ours, theirs):
        for branch in (model.h[0].attn, model.h[1].mlp):
            branch.register_forward_hook(lambda _, given, out: 2 * out)
        model(x, y).backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        assert gap(p.grad, q.grad) < 1e-5, name


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
def test_a_block_gives_no_parameter(kernels):
    """FSDP hangs hooks on what a block gives."""
    model = small(operators=operators(kernels))
    given = model.h[0](Stream(torch.randn(2, 5, SMALL.n_embd)))
    assert all(t is None or not t.is_leaf for t in given) and (given.bias is None) == (kernels == "torch")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("trained", ["h.1.attn.c_proj.bias", "h.2.mlp.c_proj.bias", "h.0.mlp.c_proj.bias", "c_proj.weight", "ln_"])
def test_a_part_that_is_trained_alone(trained, checkpointing):
    """Its gradient is what it is beside all others."""
    x, y = text()
    whole, part = (with_biases(small(operators=operators("rooftile"), checkpointing=checkpointing)) for _ in range(2))
    for name, p in part.named_parameters():
        p.requires_grad_(trained in name)
    for model in (whole, part):
        model(x, y).backward()
    for (name, p), q in zip(part.named_parameters(), whole.parameters()):
        assert p.grad is None if trained not in name else gap(p.grad, q.grad) < 1e-5, name


@pytest.mark.parametrize("kernels", ["torch", "rooftile"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_into_one_graph(dtype, kernels):
    x, y = text()
    eager, traced = (with_biases(small(operators=operators(kernels), compute_dtype=dtype)) for _ in range(2))
    torch.compile(traced, fullgraph=True, backend="aot_eager")(x, y).backward()
    eager(x, y).backward()
    for a, b in zip(traced.parameters(), eager.parameters()):
        assert gap(a.grad, b.grad) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_generation_is_seeded_and_bounded():
    model, (x, _) = small(), text()
    draw = [model.generate(x, 12, top_k=9, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert draw[0].shape == (3, 29) and torch.equal(draw[0][:, :17], x)  # 29 is past n_positions: the window slides
    assert torch.equal(draw[0], draw[1]) and not torch.equal(draw[0], draw[2])
    likeliest = model.generate(x, 1, temperature=0)
    for cold in (1e-30, 1e-40, 1e-300, 5e-324):
        assert torch.equal(model.generate(x, 1, temperature=cold), likeliest), cold
    assert model.generate(x, 1, temperature=math.inf, top_k=2).shape == likeliest.shape
    assert torch.equal(likeliest[:, -1], model.eval()(x)[:, -1].argmax(-1))
    assert torch.equal(model.generate(x, 1, top_k=1), likeliest)
    model.train()
    for words, said in (
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
    ):
        with pytest.raises(ValueError, match=said):
            model.generate(x, 1, **words)
    with pytest.raises(RuntimeError):
        model.generate(x.float(), 1)
    assert model.training, "whatever went wrong"


@pytest.mark.parametrize("model", [small(), Llama(LlamaConfig(61, 32, 48, 1, 4, max_position_embeddings=24))], ids=["gpt2", "llama"])
def test_tokens_are_a_batch_of_texts(model):
    for tokens, said in ((torch.tensor([1, 2]), r"\[2\]"), (torch.zeros(1, 0, dtype=torch.long), r"\[1, 0\]"), (torch.tensor(1), r"\[\]")):
        for call in (model, lambda x, m=model: m.generate(x, 0)):
            with pytest.raises(ValueError, match=rf"tokens have the shape {said}, a model takes \[B, T\] with T at least 1"):
                call(tokens)
    with pytest.raises(ValueError, match="count is -1, must be at least 0"):
        model.generate(torch.tensor([[1]]), -1)


@pytest.mark.parametrize(
    "kind, shape",
    [(GPT2, GPT2Config(61, 24, 32, 1, 4)), (Llama, LlamaConfig(61, 32, 48, 1, 4, max_position_embeddings=24))],
    ids=["gpt2", "llama"],
)
def test_a_folder_keeps_the_tokens_that_begin_and_end_a_text(tmp_path, kind, shape):
    """A Llama's are not the last of its vocabulary, and whoever generates from what was saved never stopped."""
    for i, (given, kept) in enumerate((({}, (60, 60)), ({"bos_token_id": 1, "eos_token_id": [2, 5]}, (1, [2, 5])))):
        kind(dataclasses.replace(shape, **given)).save_pretrained(tmp_path / str(i))
        again = kind.from_pretrained(tmp_path / str(i))
        again.save_pretrained(tmp_path / f"{i} again")
        for folder in (tmp_path / str(i), tmp_path / f"{i} again"):
            config = transformers.AutoConfig.from_pretrained(folder)
            assert (config.bos_token_id, config.eos_token_id) == kept and (again.config.bos_token_id, again.config.eos_token_id) == kept


@pytest.mark.parametrize(
    "config, changes, said",
    [
        (GPT2Config, {"n_layer": 3.5}, "GPT2Config: n_layer is 3.5, takes int"),
        (GPT2Config, {"n_head": True}, "GPT2Config: n_head is True, takes int"),
        (GPT2Config, {"n_positions": math.nan}, "GPT2Config: n_positions is nan, takes int"),
        (GPT2Config, {"layer_norm_epsilon": math.nan}, "GPT2Config: layer_norm_epsilon is nan, takes a finite number"),
        (GPT2Config, {"eos_token_id": "a"}, "GPT2Config: eos_token_id is 'a', takes int or list or None"),
        (LlamaConfig, {"num_hidden_layers": "2"}, "LlamaConfig: num_hidden_layers is '2', takes int"),  # a TypeError of Python's
        (LlamaConfig, {"rope_scaling": 2.0}, "LlamaConfig: rope_scaling is 2.0, takes dict or None"),
        (LlamaConfig, {"tie_word_embeddings": 1}, "LlamaConfig: tie_word_embeddings is 1, takes bool"),
        (LlamaConfig, {"rope_theta": math.inf}, "LlamaConfig: rope_theta is inf, takes a finite number"),
    ],
)
def test_a_shape_of_other_kinds_is_refused(config, changes, said):
    with pytest.raises(ValueError, match=said):
        config(**changes)


def test_bad_calls_name_both_numbers():
    with pytest.raises(ValueError, match="25 tokens, this model's n_positions is 24"):
        small()(torch.zeros(1, 25, dtype=torch.long))
    with pytest.raises(ValueError, match="n_embd is 30, not a multiple of n_head 4"):
        GPT2Config(n_embd=30, n_head=4)
    with pytest.raises(ValueError, match=r"attn_pdrop is 0\.1"):
        GPT2(GPT2Config(vocab_size=61, n_positions=24, n_embd=32, n_layer=1, n_head=4, attn_pdrop=0.1))(text()[0])
    with pytest.raises(ValueError, match="kernels is 'cuda'"):
        operators("cuda")
    with pytest.raises(ValueError, match=r"torch\.float16"):
        small(compute_dtype=torch.float16)


@pytest.mark.gpu
def test_bfloat16_is_no_worse_than_twice_pytorchs_own(tmp_path):
    """On the GPU, against the float64 model of transformers, loaded by us from its checkpoint; PyTorch's own error is that of the
    same transformers model in bfloat16. The figures are printed."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=1024, n_positions=256, n_embd=256, n_layer=4, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                                     attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa")  # fmt: skip
    hf = transformers.GPT2LMHeadModel(config)
    hf.save_pretrained(tmp_path)
    x, y = (torch.randint(0, 1024, (4, 256), generator=torch.Generator().manual_seed(s)).cuda() for s in (1, 2))

    def judged(model, logits_of, loss_of):
        model.zero_grad()
        logits = logits_of(model).detach().double()
        loss_of(model).backward()
        grads = {n.removeprefix("transformer."): p.grad.double() for n, p in model.named_parameters() if n != "lm_head.weight"}
        return logits, grads

    def hf_loss(m):
        return F.cross_entropy(m(x).logits.flatten(0, 1).float() if m.dtype != torch.float64 else m(x).logits.flatten(0, 1), y.flatten())

    truth = judged(
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="sdpa").cuda().double(), lambda m: m(x).logits, hf_loss
    )
    own = judged(
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="sdpa").cuda().bfloat16(), lambda m: m(x).logits, hf_loss
    )
    ours_model = GPT2.from_pretrained(tmp_path, operators=operators("rooftile"), compute_dtype=torch.bfloat16).cuda()
    ours = judged(ours_model, lambda m: m(x), lambda m: m(x, y))
    print(f"logits: ours {gap(ours[0], truth[0]):.3g}, torch bf16 {gap(own[0], truth[0]):.3g}")
    assert gap(ours[0], truth[0]) <= 2 * gap(own[0], truth[0])
    worst = 0.0
    for name, grad in ours[1].items():
        wanted = truth[1][name].t() if name.endswith(TRANSPOSED) else truth[1][name]
        mine, theirs_ = gap(grad, wanted), gap(own[1][name], truth[1][name])
        worst = max(worst, mine / theirs_)
        assert mine <= 2 * theirs_, f"{name}: {mine:.3g}, PyTorch's own {theirs_:.3g}"
    print(f"gradients: at most {worst:.3g} times PyTorch's own error")
