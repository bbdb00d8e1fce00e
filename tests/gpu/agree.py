"""A program compiled for the device beside eager, both judged by a run in float64."""

import warnings

import torch

import framesmith

SLACK = 1.5
NOTHING = 1e-6  # relative error that any run of single precision may have


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else []


def error(got, true):
    """Relative error of all results together."""
    total = sum(((g.detach().cpu().double() - t.detach().cpu().double()) ** 2).sum() for g, t in zip(got, true))
    size = sum((t.detach().cpu().double() ** 2).sum() for t in true)
    return (total / size.clamp(min=1e-300)).sqrt().item()


def refuses_nothing(fn, *inputs, **options):
    """What `fn`, compiled, returns; a warning of ours is an error: nothing may have fallen back to eager."""
    framesmith.reset()
    compiled = framesmith.compile(fn, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="framesmith")
        compiled(*inputs)
        return compiled(*inputs)


def whole_graph(fn, *inputs):
    """Nothing may be captured in parts."""
    framesmith.reset()
    found = framesmith.explain(fn)(*inputs)
    assert (found.graph_count, found.break_count, list(found.refusals)) == (1, 0, []), found


def same_layout(got, expected):
    for g, e in zip(got, expected, strict=True):
        assert (g.shape, g.dtype, g.device) == (e.shape, e.dtype, e.device)
        assert g.stride() == e.stride(), (g.stride(), e.stride())


def with_changing_weights(compiled, model, x, agree):
    """What is compiled follows weights that are written, and others in their place."""
    with torch.no_grad():
        for _ in range(3):
            for _ in range(4):
                agree(compiled(x), model(x))
            for p in model.parameters():
                p.mul_(1.1)
        model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}, assign=True)
        for _ in range(4):
            agree(compiled(x), model(x))


__all__ = ["NOTHING", "SLACK", "error", "refuses_nothing", "same_layout", "tensors", "whole_graph",
           "with_changing_weights"]
