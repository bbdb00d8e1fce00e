"""BERT, GPT-2, residual networks and the pointwise model written in JAX, with the weights of the torch models.

Each forward is a plain function of weights and inputs, as JAX programs are written: layouts are JAX's usual ones (dense
weights [in, out], images and filters with channels last), and what it returns is what the torch model returns.
`FORWARDS` has a row for each class of torch modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError:  # an optional peer: nobody calls what follows
    pass

Weights = Any
"""A tree of arrays."""


def has(model: Any) -> bool:
    """Whether a torch model is written in JAX, too."""
    return type(model).__name__ in FORWARDS


def _array(tensor: torch.Tensor) -> Any:
    """A copy on the device of the same kind, whatever JAX takes by default."""
    kind = "gpu" if tensor.is_cuda else "cpu"
    return jax.device_put(tensor.detach().contiguous().cpu().numpy(), jax.devices(kind)[0])


def call_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """The JAX program of a torch model, compiled on its first call. Raises KeyError for a model that it has not."""
    assert not kwargs
    weights_of, forward = FORWARDS[type(model).__name__]
    with torch.no_grad():
        weights = jax.tree.map(_array, weights_of(model))
    inputs = [*map(_array, args)]
    compiled = jax.jit(forward)
    return lambda: torch.from_dlpack(jax.block_until_ready(compiled(weights, *inputs))[0])


# --------------------------------------------------------------------------------------------------------------- layers


def dense(w: Weights, x: Any) -> Any:
    """x @ kernel + bias."""
    return x @ w["kernel"] + w["bias"]


def layer_norm(w: Weights, x: Any, epsilon: float) -> Any:
    """Over the last dimension."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon) * w["scale"] + w["bias"]


def attention(q: Any, k: Any, v: Any, heads: int, causal: bool) -> Any:
    """Of [batch, length, width]."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal).reshape(*q.shape[:2], -1)


def _dense_of(m: nn.Linear) -> Weights:
    return {"kernel": m.weight.T, "bias": m.bias}


def _norm_of(m: nn.LayerNorm) -> Weights:
    return {"scale": m.weight, "bias": m.bias}


# ------------------------------------------------------------------------------------------------------------ pointwise


def pointwise(w: Weights, x: Any, y: Any) -> Any:
    """`benchmarks.models.PointwiseChain`."""
    return (jax.nn.sigmoid(jax.nn.relu((x + y) * y) - x),)


# ----------------------------------------------------------------------------------------------------------------- BERT


def _bert_of(model: Any) -> Weights:
    e, head = model.bert.embeddings, model.cls.predictions
    return {
        "words": e.word_embeddings.weight, "positions": e.position_embeddings.weight,
        "types": e.token_type_embeddings.weight, "norm": _norm_of(e.LayerNorm),
        "layers": [{
            "query": _dense_of(one.attention.self.query), "key": _dense_of(one.attention.self.key),
            "value": _dense_of(one.attention.self.value), "out": _dense_of(one.attention.output.dense),
            "norm": _norm_of(one.attention.output.LayerNorm), "up": _dense_of(one.intermediate.dense),
            "down": _dense_of(one.output.dense), "norm2": _norm_of(one.output.LayerNorm),
        } for one in model.bert.encoder.layer],
        "transform": _dense_of(head.transform.dense), "norm2": _norm_of(head.transform.LayerNorm),
        "decoder": {"kernel": head.decoder.weight.T, "bias": head.bias},
    }


def bert(w: Weights, ids: Any) -> Any:
    """`BertForMaskedLM` with the default configuration: 12 heads, epsilon 1e-12, GELU by erf; ids -> logits."""
    norm = functools.partial(layer_norm, epsilon=1e-12)
    x = norm(w["norm"], w["words"][ids] + w["types"][0] + w["positions"][:ids.shape[1]])
    for one in w["layers"]:
        attended = attention(*(dense(one[name], x) for name in ("query", "key", "value")), heads=12, causal=False)
        x = norm(one["norm"], dense(one["out"], attended) + x)
        x = norm(one["norm2"], dense(one["down"], jax.nn.gelu(dense(one["up"], x), approximate=False)) + x)
    x = norm(w["norm2"], jax.nn.gelu(dense(w["transform"], x), approximate=False))
    return (dense(w["decoder"], x),)


# ---------------------------------------------------------------------------------------------------------------- GPT-2


def _gpt2_of(model: Any) -> Weights:
    def conv1d(m: Any) -> Weights:
        return {"kernel": m.weight, "bias": m.bias}

    body = model.transformer
    return {
        "words": body.wte.weight, "positions": body.wpe.weight, "norm": _norm_of(body.ln_f),
        "layers": [{"norm": _norm_of(one.ln_1), "norm2": _norm_of(one.ln_2), "in": conv1d(one.attn.c_attn),
                    "out": conv1d(one.attn.c_proj), "up": conv1d(one.mlp.c_fc), "down": conv1d(one.mlp.c_proj)}
                   for one in body.h],
        "head": model.lm_head.weight.T,
    }


def gpt2(w: Weights, ids: Any) -> Any:
    """`GPT2LMHeadModel` with the default configuration: 12 heads, epsilon 1e-5, GELU by tanh; ids -> logits, and the
    keys and values of each layer, which the torch model returns as its cache."""
    norm = functools.partial(layer_norm, epsilon=1e-5)
    x, kept = w["words"][ids] + w["positions"][:ids.shape[1]], []
    for one in w["layers"]:
        q, k, v = jnp.split(dense(one["in"], norm(one["norm"], x)), 3, axis=-1)
        kept += [k, v]
        x = x + dense(one["out"], attention(q, k, v, heads=12, causal=True))
        x = x + dense(one["down"], jax.nn.gelu(dense(one["up"], norm(one["norm2"], x)), approximate=True))
    return norm(w["norm"], x) @ w["head"], kept


# ------------------------------------------------------------------------------------------------------------- residual


def _conv_of(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Weights:
    """A convolution [height, width, in, out] and the batch norm behind it, as scale and bias."""
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return {"kernel": conv.weight.permute(2, 3, 1, 0), "scale": scale, "bias": norm.bias - norm.running_mean * scale}


def _residual_of(model: Any) -> Weights:
    stages = []
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        stages.append([{
            "convs": [_conv_of(getattr(block, f"conv{k}"), getattr(block, f"bn{k}")) for k in (1, 2, 3)
                      if hasattr(block, f"conv{k}")],
            "shortcut": _conv_of(*block.downsample) if block.downsample is not None else None,
        } for block in layer])
    return {"stem": _conv_of(model.conv1, model.bn1), "stages": stages, "head": _dense_of(model.fc)}


def conv_norm(w: Weights, x: Any, stride: int = 1) -> Any:
    """A convolution that pads by half its window, and batch norm."""
    pad, layouts = (w["kernel"].shape[0] // 2,) * 2, ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, w["kernel"], (stride, stride), (pad, pad), dimension_numbers=layouts)
    return y * w["scale"] + w["bias"]


def residual(w: Weights, images: Any) -> Any:
    """`timm`'s ResNet: [n, 3, h, w] -> [n, classes]. Bottlenecks have their stride in the 3 × 3 convolution."""
    x = jax.nn.relu(conv_norm(w["stem"], images.transpose(0, 2, 3, 1), 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for number, stage in enumerate(w["stages"]):
        for place, block in enumerate(stage):
            stride = 2 if number and not place else 1
            wide = next(k for k, conv in enumerate(block["convs"]) if conv["kernel"].shape[0] == 3)
            y = x
            for k, conv in enumerate(block["convs"]):
                y = conv_norm(conv, y if k == 0 else jax.nn.relu(y), stride if k == wide else 1)
            x = jax.nn.relu(y + (x if block["shortcut"] is None else conv_norm(block["shortcut"], x, stride)))
    return (dense(w["head"], x.mean((1, 2))),)


FORWARDS: dict[str, tuple[Callable[[Any], Weights], Callable[..., Any]]] = {
    "PointwiseChain": (lambda model: {}, pointwise),
    "BertForMaskedLM": (_bert_of, bert),
    "GPT2LMHeadModel": (_gpt2_of, gpt2),
    "ResNet": (_residual_of, residual),
}
"""Class of a torch module -> its weights as JAX has them, and the forward, which returns what the torch model returns,
its first tensor first."""
