"""Packages of models that write their buffers: each instance keeps its own from call to call, as eager does."""

import copy
import threading

import pytest
import torch
from torch import nn

import benchmarks.models  # noqa: F401 - before transformers: declares what it asks torchvision for
import framesmith
from framesmith.exc import ExportError, PackageError


class Writing(nn.Module):
    """Buffers that are written in place, of which some lie otherwise in memory, and buffers that are set."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 8))
        self.register_buffer("copied", torch.ones(4, 8))
        self.register_buffer("place", torch.tensor([0]))
        self.register_buffer("one", torch.ones(3))
        self.register_buffer("other", torch.arange(3.0))
        self.register_buffer("turned", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("last", torch.zeros(3))
        self.register_buffer("left", torch.zeros(2))
        self.register_buffer("right", torch.ones(2))

    def forward(self, x):
        self.rows.index_copy_(0, self.place, x[None])
        self.place.add_(1).remainder_(4)
        self.copied.copy_(self.rows)
        self.one, self.other = self.other.clone(), self.one + 1
        self.turned.mul_(2).add_(1)
        self.last = x[:3].clone()
        before = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(before)
        return self.rows.sum(0) + self.one.sum(), self.one + 0, self.turned * 1, self.copied.t() + 0, before


def packaged(path, model, *args, **options):
    framesmith.package(model, args, path=path / "model.fsm", targets=["x86-64-v3"], **options)
    return framesmith.load(path / "model.fsm")


def follow(loaded, model, steps=5):
    for _ in range(steps):
        x = torch.randn(8)
        torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize("exported", [False, True])
def test_instances_keep_buffers_of_their_own(exported, tmp_path):
    model, x = Writing().eval(), torch.randn(8)
    loaded = packaged(tmp_path, framesmith.export(model, (x,))) if exported else packaged(tmp_path, model, x)
    assert not model.place and not model.rows.any()
    names = {s["name"]: s["initial"] is None for s in loaded.model.manifest["state"]}
    assert names == {"rows": True, "copied": False, "place": True, "one": False, "other": False, "turned": False,
                     "last": True, "left": True, "right": False}  # whether they are zeros, which the file does not hold
    first, second = copy.deepcopy(model), copy.deepcopy(model)
    follow(loaded, first)
    other = loaded.instance()
    follow(other, second)
    follow(loaded, first)
    loaded.reset()
    follow(loaded, copy.deepcopy(model))
    follow(other, second)
    del loaded
    follow(other, second)


def test_threads_share_an_instance(tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1000))

        def forward(self, x):
            return self.calls.add_(x).sum()

    loaded = packaged(tmp_path, Counting(), torch.ones(1000))
    found = []
    threads = [threading.Thread(target=lambda: found.extend([loaded(torch.ones(1000)).item() for _ in range(50)]))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [1000.0 * n for n in range(1, 201)]


class Llama(nn.Module):
    """A tiny Llama that decodes with a static cache: each call writes one position of it."""

    def __init__(self, length=32):
        super().__init__()
        import transformers
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
            vocab_size=100, max_position_embeddings=length, bos_token_id=0, eos_token_id=0)
        self.model = transformers.LlamaForCausalLM(config)
        self.cache = transformers.StaticCache(config=config, max_cache_len=length)
        self.cache.early_initialization(1, 2, 16, torch.float32, torch.device("cpu"))
        for k, layer in enumerate(self.cache.layers):
            for name in ("keys", "values", "cumulative_length"):
                self.register_buffer(f"{name}_{k}", getattr(layer, name))

    def forward(self, ids):
        return self.model(ids, past_key_values=self.cache, use_cache=True).logits


def test_a_llama_decodes_with_its_cache(tmp_path):
    model = Llama().eval()
    loaded = packaged(tmp_path, model, torch.tensor([[1]]))
    assert len(loaded.model.manifest["state"]) == 6
    token = torch.tensor([[1]])
    with torch.no_grad():
        for _ in range(20):
            found, wanted = loaded(token), model(token)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
            token = wanted[:, -1:].argmax(-1)


def of(fn, **buffers):
    model = nn.Module()
    for name, x in buffers.items():
        model.register_buffer(name, x)
    model.forward = lambda x: fn(model, x)
    return model


def test_what_would_live_on_as_another_tensor_is_refused(tmp_path):
    def keeps(model, x):
        model.last = x
        return x + 1

    with pytest.raises(PackageError, match="sets last to what is another tensor"):
        packaged(tmp_path, of(keeps, last=torch.zeros(3)), torch.ones(3))

    def exchanges(model, x):
        model.a, model.b = model.b, model.a
        return x + model.a

    with pytest.raises(PackageError, match="another tensor of its own or of the caller's"):
        packaged(tmp_path, of(exchanges, a=torch.zeros(3), b=torch.ones(3)), torch.ones(3))

    def grows(model, x):
        model.last = torch.cat([model.last, x])
        return x + 1

    with pytest.raises(PackageError, match="sets last to a tensor of another shape"):
        packaged(tmp_path, of(grows, last=torch.zeros(3)), torch.ones(3))

    def writes(model, x):
        model.whole.add_(1)
        return model.part + x

    whole = torch.zeros(4)
    with pytest.raises(PackageError, match="whole and part share memory"):
        packaged(tmp_path, of(writes, whole=whole, part=whole[:2]), torch.ones(2))


def test_what_is_changed_outside_of_tensors_is_noted(tmp_path):
    def counts(model, x):
        model.calls = 1
        return x + 1

    model = of(counts)
    model.calls = 0
    assert packaged(tmp_path, model, torch.ones(3)).notes == ["Module.calls"]


def test_data_that_a_call_writes_are_not_assumed(tmp_path):
    def fills(model, x):
        model.rows[model.place] = x
        model.place.add_(1)
        return model.rows.sum(0)

    with pytest.raises(ExportError, match="known at run time"):
        packaged(tmp_path, of(fills, rows=torch.zeros(4, 3), place=torch.tensor(0)), torch.ones(3))
