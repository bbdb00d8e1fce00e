"""Packages of models whose sizes vary: equal to eager at each size of the range, and an error beyond it."""

import pytest
import torch
from torch import nn

import benchmarks.models  # noqa: F401 - before timm and transformers: declares what they ask torchvision for
import framesmith
from framesmith import Dim

TARGET = "x86-64-v3"


def bert():
    import transformers
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                                     vocab_size=100, max_position_embeddings=64)
    return transformers.BertModel(config).eval()


def gpt2():
    import transformers
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100, use_cache=False, n_positions=64,
                                     bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


def resnet18():
    import timm
    return timm.create_model("resnet18", num_classes=10).eval()


def text(batch, length):
    padding = torch.randint(0, length, (batch, 1))
    return {"input_ids": torch.randint(0, 100, (batch, length)),
            "attention_mask": (torch.arange(length) >= padding).long()}


def images(batch, height, width):
    return {"x": torch.randn(batch, 3, height, width)}


TOKENS = {0: Dim("batch", max=8), 1: Dim("length", min=2, max=64)}
PIXELS = {0: Dim("batch", max=4), 2: Dim("height", min=32, max=256), 3: Dim("width", min=32, max=256)}
CASES = {
    "bert": (bert, text, {"input_ids": TOKENS, "attention_mask": TOKENS},
             [(3, 17), (1, 2), (1, 16), (8, 64), (2, 31)], [("batch", (9, 5)), ("length", (1, 65))]),
    "gpt2": (gpt2, text, {"input_ids": TOKENS, "attention_mask": TOKENS},
             [(3, 17), (1, 2), (1, 16), (8, 64), (2, 31)], [("batch", (9, 5)), ("length", (1, 65))]),
    "resnet18": (resnet18, images, {"x": PIXELS}, [(2, 64, 96), (1, 32, 32), (3, 97, 65), (4, 50, 33)],
                 [("batch", (5, 64, 64)), ("height", (1, 20, 64)), ("width", (1, 64, 300))]),
}
"""By name: the model, its arguments by sizes, the dimensions, sizes to run (the first: of the example), and sizes that
are out of the range of a dimension."""


def packaged(path, model, args=(), kwargs=None, **options):
    framesmith.package(model, args, kwargs, path=path / "model.fsm", targets=[TARGET], **options)
    return framesmith.load(path / "model.fsm")


@pytest.mark.parametrize("name", CASES)
def test_a_model_at_several_sizes(name, tmp_path):
    torch.manual_seed(0)
    build, inputs, dims, sizes, beyond = CASES[name]
    model = build()
    loaded = packaged(tmp_path, model, kwargs=inputs(*sizes[0]), dynamic_shapes=dims)
    assert loaded.dimensions == {d.name: (d.min or 1, d.max) for dim in dims.values() for d in dim.values()}
    for size in sizes:
        given = inputs(*size)
        with torch.no_grad():
            torch.testing.assert_close(loaded(**given), model(**given), atol=1e-5, rtol=1e-4)
    for dimension, size in beyond:
        with pytest.raises(ValueError, match=f"{dimension} is .*, out of its range from"):
            loaded(**inputs(*size))


def test_gpt2_without_a_mask_starts_at_two_rows(tmp_path):
    torch.manual_seed(0)
    model, ids = gpt2(), torch.randint(0, 100, (3, 7))  # transformers asks whether there is one row
    loaded = packaged(tmp_path, model, (ids,), dynamic_shapes=[TOKENS])
    assert loaded.dimensions["batch"] == (2, 8)
    ids = torch.randint(0, 100, (2, 11))
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-4)


def test_dimensions_have_names_of_variables(tmp_path):
    loaded = packaged(tmp_path, lambda n, a: torch.tanh(n @ a), (torch.randn(3, 4), torch.randn(4, 5)),
                      dynamic_shapes=[{0: Dim("n"), 1: Dim("a0", max=8)}, {0: Dim("a0", max=8), 1: Dim("double")}])
    x, y = torch.randn(7, 2), torch.randn(2, 9)
    torch.testing.assert_close(loaded(x, y), torch.tanh(x @ y))
    with pytest.raises(ValueError, match="dimension 0 of a is 3; a0 is 2"):
        loaded(x, torch.randn(3, 9))


def test_a_size_that_follows_from_a_dimension(tmp_path):
    loaded = packaged(tmp_path, lambda x: x.reshape(-1, 2, 4) * 2, (torch.randn(6, 4),),
                      dynamic_shapes=[{0: 2 * Dim("half")}])
    x = torch.randn(10, 4)
    assert torch.equal(loaded(x), x.reshape(-1, 2, 4) * 2)
    with pytest.raises(ValueError, match=r"dimension 0 of x is 7; 2\*half is 6"):
        loaded(torch.randn(7, 4))


@pytest.mark.parametrize("model", [
    lambda x: x.cumsum(1), lambda x: (x > 2).cumsum(-1), lambda x: (x * 0.5).cumprod(0),
], ids=["sum", "truth", "product"])
def test_scans(model, tmp_path):
    loaded = packaged(tmp_path, model, (torch.randint(0, 5, (3, 4, 5)),), dynamic_shapes=[{0: Dim("a"), 1: Dim("b")}])
    for x in (torch.randint(0, 5, (2, 6, 5)), torch.randint(0, 5, (7, 3, 5)).transpose(0, 1)):
        assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("to", [lambda x: {"size": (x.shape[2] * 2 + 1, 5)}, lambda x: {"scale_factor": (2.0, 0.5)}],
                         ids=["size", "factor"])
def test_resizing(to, corners, tmp_path):
    def model(x):
        return nn.functional.interpolate(x * 2, mode="bilinear", align_corners=corners, **to(x))

    loaded = packaged(tmp_path, model, (torch.randn(2, 3, 10, 12),),
                      dynamic_shapes=[{2: Dim("height", min=4), 3: Dim("width", min=4)}])
    for size in ((10, 12), (4, 31), (17, 4)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize("channels", [3, 16, 19])
def test_resizing_of_channels_last_images(channels, tmp_path):
    model = nn.Sequential(nn.Conv2d(3, channels, 1), nn.UpsamplingBilinear2d(scale_factor=2)).eval()
    loaded = packaged(tmp_path, model, (torch.randn(2, 3, 6, 5),))
    x = torch.randn(2, 3, 6, 5)
    torch.testing.assert_close(loaded(x), model(x).detach())


def test_pooling_of_images_of_any_size(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 8, 1), nn.MaxPool2d(2)).eval()
    loaded = packaged(tmp_path, model, (torch.randn(2, 3, 20, 24),),
                      dynamic_shapes=[{2: Dim("height", min=8), 3: Dim("width", min=8)}])
    for size in ((8, 8), (9, 31), (20, 24)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(loaded(x), model(x).detach())
