"""Whole models recorded without the capture stage: parameters and inputs as fakes, then the graph run on the real
ones."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from benchmarks.models import DLRM, named
from framesmith.fake import Recorder
from tests.fake.harness import run, same_strides

transformers = pytest.importorskip("transformers")
timm = pytest.importorskip("timm")


def tokens(size=100, length=12):
    return (torch.randint(0, size, (2, length)),)


def image(size=64):
    return (torch.randn(1, 3, size, size),)


def bert():
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    return transformers.BertForMaskedLM(config), tokens()


def bert_with_mask():
    model, (ids,) = bert()
    mask = torch.zeros(2, 1, 12, 12)  # a flat mask would be asked for its data
    mask[0, ..., 9:] = -1e9
    return model, (ids, mask)


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2,
                                                                n_head=4)), tokens()


def llama():
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config), tokens()


def t5_encoder():
    config = transformers.T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config), tokens()


def dlrm():
    n = 6
    return DLRM(3, 50, 8), (torch.randn(n, 13), torch.randint(0, 50, (3, n * 2)),
                            torch.arange(0, n * 2, 2).repeat(3, 1))


def swin():
    return timm.create_model("swin_tiny_patch4_window7_224", pretrained=False, depths=(2, 2, 1, 1),
                             embed_dim=24), image(224)


def timm_model(name, size=64):
    def build():
        return timm.create_model(name, pretrained=False), image(size)

    return build


BUILDERS = {
    "bert": bert,
    "bert_with_mask": bert_with_mask,
    "gpt2": gpt2,
    "llama": llama,
    "t5_encoder": t5_encoder,
    "dlrm": dlrm,
    "lstm": named()["lstm"],
    "swin": swin,
    "resnet18": timm_model("resnet18"),
    "mobilenetv3": timm_model("mobilenetv3_small_100"),
    "efficientnet": timm_model("efficientnet_b0"),
    "convnext": timm_model("convnext_atto"),
    "vit": timm_model("vit_tiny_patch16_224", 224),
    "mixer": timm_model("mixer_s32_224", 224),
}


def record_module(model, inputs):
    """The recorder, the fakes of the outputs, and the real inputs in the order of the placeholders."""
    rec = Recorder()
    real = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fakes = {name: rec.input(t, "p_" + name.replace(".", "_")) for name, t in real.items()}
    args = [rec.input(t, f"arg{i}") for i, t in enumerate(inputs)]
    with torch.no_grad(), rec:
        out = torch.func.functional_call(model, fakes, tuple(args), tie_weights=True)
    return rec, tensors(out), [*real.values(), *inputs]


def tensors(out):
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", BUILDERS)
def test_same_as_eager(name):
    torch.manual_seed(0)
    model, inputs = BUILDERS[name]()
    same_as_eager(model.eval(), inputs)


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_training_mode(name):
    """Dropout draws the same numbers; batch norm's statistics are written."""
    torch.manual_seed(0)
    model, inputs = BUILDERS[name]()
    same_as_eager(model.train(), inputs)


def same_as_eager(model, inputs):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    rec, fakes, real = record_module(model, inputs)
    graph = rec.finish(fakes)
    graph.lint()
    with torch.no_grad():
        torch.manual_seed(1)
        want = tensors(model(*inputs))
        after = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(state)
        torch.manual_seed(1)
        got = run(graph, real)
    assert len(want) == len(got) == len(fakes)
    for w, g, f in zip(want, got, fakes):
        assert w.shape == f.shape and w.dtype == f.dtype
        assert same_strides(w.shape, w.stride(), f.stride())
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-6)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, after[key], msg=key)
