"""The cases of the argument grid: expressions over tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """An expression over tensors by name: a shape each, or a list of indices (`i`, `j`). `m` and `v` are statistics: no
    gradients."""

    text: str
    tensors: dict[str, Any] = field(hash=False)

    @property
    def operator(self) -> str:
        return re.sub(r"\(.*", "", self.text)


def with_zeros(shape: Shape) -> list[Shape]:
    """The shape, with a zero in each place, in the first two and everywhere."""
    found = [shape, *[(*shape[:k], 0, *shape[k + 1 :]) for k in range(len(shape))]]
    return found + ([(0, 0, *shape[2:]), (0,) * len(shape)] if len(shape) > 1 else [])


def forms(values: Sequence[int], rank: int) -> list[str]:
    """Each number as an int, a list and a tuple of one, a list and a tuple of `rank`; and what is too long, short and
    empty."""
    out = []
    for n in values:
        out += [f"{n}", f"[{n}]", f"({n},)", f"[{', '.join([str(n)] * rank)}]", f"({', '.join([str(n)] * rank)},)"]
    mixed = [str(1 + k % 2) for k in range(rank)]
    return [*out, f"({', '.join(mixed)},)", f"[{', '.join(['1'] * (rank + 1))}]", "[]"]


def convolutions() -> Iterator[Case]:
    for rank in (1, 2, 3):
        image = (7, 6, 5)[:rank]
        for name in (f"F.conv{rank}d", f"F.conv_transpose{rank}d"):
            transposed = "transpose" in name
            for groups, channels, outs, kernel in ((1, 4, 4, 3), (2, 4, 6, 1), (4, 4, 4, 3)):
                weight = (channels, outs // groups) if transposed else (outs, channels // groups)
                tensors = {"x": (2, channels, *image), "w": (*weight, *(kernel,) * rank)}
                more = {
                    "stride": forms((1, 2, 0), rank),
                    "padding": [*forms((1, 0, -1), rank), *([] if transposed else ["'same'", "'valid'"])],
                    "dilation": forms((1, 2), rank),
                    **({"output_padding": ["(1,)", "[0]", "1"]} if transposed else {}),
                }
                for argument, values in more.items():
                    for value in values:
                        step = ", stride=(2,)" if argument == "output_padding" else ""
                        yield Case(f"{name}(x, w, None, {argument}={value}, groups={groups}{step})", tensors)
                yield Case(f"{name}(x, w, None, [1], (1,), groups={groups}, dilation=[1])", tensors)
            for x in with_zeros((2, 4, *image)):
                for call in ("x, w", "x, w, b, padding=1", "x, w, b, stride=(2,)"):
                    yield Case(f"{name}({call})", {"x": x, "w": (4, 4, *(3,) * rank), "b": (4,)})
                    yield Case(f"{name}({call})", {"x": x[1:], "w": (4, 4, *(3,) * rank), "b": (4,)})
            for w in with_zeros((4, 4, *(3,) * rank))[1:]:
                channels = w[0] if transposed else w[1]
                yield Case(f"{name}(x, w)", {"x": (2, channels, *image), "w": w})


def pools() -> Iterator[Case]:
    for rank in (1, 2, 3):
        shape = (2, 3, 6, 7, 5)[: 2 + rank]
        for name in (f"F.max_pool{rank}d", f"F.avg_pool{rank}d"):
            for argument, values in {
                "kernel_size": forms((2, 3, 0), rank),
                "stride": forms((1, 2, 0), rank),
                "padding": forms((1, 0, -1), rank),
            }.items():
                for value in values:
                    rest = "" if argument == "kernel_size" else "kernel_size=2, "
                    yield Case(f"{name}(x, {rest}{argument}={value})", {"x": shape})
            for x in with_zeros(shape):
                for rest in ("2", "(2,)", "3, stride=[2], padding=1, ceil_mode=True"):
                    yield Case(f"{name}(x, {rest})", {"x": x})
                    yield Case(f"{name}(x, {rest})", {"x": x[1:]})
        for value in forms((1, 2), rank):
            yield Case(f"F.max_pool{rank}d(x, 2, dilation={value})", {"x": shape})
            yield Case(f"F.max_pool{rank}d(x, 2, 1, return_indices=True, dilation={value})", {"x": shape})
        for name in (f"F.adaptive_avg_pool{rank}d", f"F.adaptive_max_pool{rank}d"):
            for value in [*forms((1, 2, 3, 0), rank), "(None,)" if rank == 1 else f"({'None, ' * (rank - 1)}2)"]:
                yield Case(f"{name}(x, {value})", {"x": shape})
            for x in with_zeros(shape):
                yield Case(f"{name}(x, 2)", {"x": x})
                yield Case(f"{name}(x, 1)", {"x": x[1:]})
        for x in with_zeros(shape):
            yield Case(f"F.lp_pool{rank}d(x, 2, 2)", {"x": x})
        for value in forms((2,), rank)[:-2]:
            yield Case(f"F.lp_pool{rank}d(x, 2, {value})", {"x": shape})


def windows() -> Iterator[Case]:
    for x in with_zeros((2, 3, 6, 6)):
        yield Case("F.unfold(x, 2)", {"x": x})
        yield Case("F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)", {"x": x})
        yield Case("F.pixel_unshuffle(x, 2)", {"x": x})
        for mode in ("reflect", "replicate", "circular", "constant"):
            yield Case(f"F.pad(x, (1, 1, 1, 0), mode='{mode}')", {"x": x})
        for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
            for value in ("size=4", "scale_factor=2"):
                yield Case(f"F.interpolate(x, {value}, mode='{mode}')", {"x": x})
        yield Case("F.grid_sample(x, g, align_corners=False)", {"x": x, "g": (x[0], 4, 4, 2)})
        yield Case("F.affine_grid(g, [2, 3, 4, 4], align_corners=False) * x.sum()", {"x": x, "g": (2, 2, 3)})
    for argument in ("kernel_size", "dilation", "padding", "stride"):
        for value in forms((1, 2), 2):
            yield Case(
                f"F.unfold(x, {'' if argument == 'kernel_size' else 'kernel_size=2, '}{argument}={value})",
                {"x": (2, 3, 6, 6)},
            )
            rest = "" if argument == "kernel_size" else "kernel_size=2, "
            yield Case(f"F.fold(x, (6, 6), {rest}{argument}={value})", {"x": (2, 12, 25)})
    for x in with_zeros((2, 12, 25)):
        yield Case("F.fold(x, (6, 6), 2)", {"x": x})
    for rank, names in (
        (1, ("nearest", "linear", "area", "nearest-exact")),
        (2, ("nearest", "bilinear", "bicubic", "area")),
        (3, ("nearest", "trilinear", "area")),
    ):
        shape = (2, 3, 4, 5, 3)[: 2 + rank]
        for mode in names:
            for value in forms((3, 8, 0), rank):
                yield Case(f"F.interpolate(x, size={value}, mode='{mode}')", {"x": shape})
            for value in ("2", "[2]", "(2.,)", "1.5", f"({'2, ' * rank})", "[0.1]", "0"):
                yield Case(f"F.interpolate(x, scale_factor={value}, mode='{mode}')", {"x": shape})
    for mode in ("reflect", "replicate", "circular", "constant"):
        for value in (
            "(1,)",
            "[1]",
            "(1, 1)",
            "[1, 1, 1, 1]",
            "(1, 1, 1)",
            "[]",
            "(-1, 1)",
            "(9, 9)",
            "(1, 1, 1, 1, 1, 1)",
        ):
            for shape in ((2, 3, 4), (2, 3, 4, 4), (2, 3, 4, 4, 4)):
                yield Case(f"F.pad(x, {value}, mode='{mode}')", {"x": shape})


def norms() -> Iterator[Case]:
    for shape in ((4, 6), (2, 6, 3), (2, 6, 3, 2), (2, 6, 3, 2, 2)):
        for x in with_zeros(shape):
            c = x[1]
            statistics = {"x": x, "m": (c,), "v": (c,), "w": (c,), "b": (c,)}
            for training in (True, False):
                yield Case(f"F.batch_norm(x, m, v, w, b, {training})", statistics)
                yield Case(f"F.batch_norm(x, m, v, None, None, {training})", {k: statistics[k] for k in "xmv"})
            yield Case("F.batch_norm(x, None, None, w, b, True)", {k: statistics[k] for k in "xwb"})
            yield Case("F.instance_norm(x, m, v, w, b)", statistics)
            yield Case("F.instance_norm(x)", {"x": x})
            yield Case("F.instance_norm(x, m, v, w, b, False)", statistics)
            for groups in (1, 2, 3, c):
                yield Case(f"F.group_norm(x, {groups})", {"x": x})
                yield Case(f"F.group_norm(x, {groups}, w, b)", {k: statistics[k] for k in "xwb"})
            for over in (x[-1:], x[1:], x):
                yield Case(f"F.layer_norm(x, {over})", {"x": x})
                yield Case(f"F.layer_norm(x, {list(over)}, w, b)", {"x": x, "w": over, "b": over})
                yield Case(f"F.rms_norm(x, {over}, w)", {"x": x, "w": over})
            yield Case("F.local_response_norm(x, 2)", {"x": x})
            yield Case("F.normalize(x)", {"x": x})
            yield Case("F.normalize(x, p=1, dim=0)", {"x": x})
    yield Case("F.layer_norm(x, 4)", {"x": (2, 4)})
    yield Case("F.layer_norm(x, [])", {"x": (2, 4)})
    yield Case("F.layer_norm(x, [3])", {"x": (2, 4)})


SHAPES: tuple[Shape, ...] = (
    (3, 4),
    (0, 3),
    (3, 0),
    (2, 0, 3),
    (2, 3, 4),
    (0,),
    (),
    (0, 0),
    (1,),
    (1, 0),
    (3, 1),
    (0, 1, 2),
)
DIMS = ("", "0", "-1", "1", "[0]", "(1,)", "(0, 1)", "[-1, 0]", "[]", "()", "5", "(0, 0)", "None")


def reductions() -> Iterator[Case]:
    many = (
        "sum",
        "mean",
        "amax",
        "amin",
        "std",
        "var",
        "nansum",
        "nanmean",
        "logsumexp",
        "any",
        "all",
        "count_nonzero",
        "var_mean",
        "std_mean",
        "linalg.vector_norm",
        "norm",
        "prod",
        "argmax",
        "argmin",
        "max",
        "min",
        "median",
        "nanmedian",
        "mode",
        "aminmax",
    )
    for name in many:
        for x in SHAPES:
            for dim in DIMS:
                named = {"aminmax": f"dim={dim}", "linalg.vector_norm": f"dim={dim}", "norm": f"dim={dim}", "": ""}.get(
                    name, dim
                )
                yield Case(f"torch.{name}(x{f', {named}' if dim else ''})", {"x": x})
            for dim in ("0", "-1", "[1]", "1"):
                if name not in ("count_nonzero",):
                    yield Case(f"torch.{name}(x, dim={dim}, keepdim=True)", {"x": x})
    each = (
        "cumsum(x, {})",
        "cumprod(x, {})",
        "cummax(x, {})",
        "cummin(x, {})",
        "logcumsumexp(x, {})",
        "softmax(x, {})",
        "log_softmax(x, {})",
        "sort(x, {})",
        "argsort(x, {})",
        "topk(x, 1, {})",
        "topk(x, 0, {})",
        "kthvalue(x, 1, {})",
        "flip(x, [{}])",
        "quantile(x, 0.5, {})",
        "unbind(x, {})",
        "diff(x, dim={})",
        "renorm(x, 2, {}, 1.0)",
        "nn.functional.glu(x, {})",
        "cumulative_trapezoid(x, dim={})",
        "nn.functional.softmin(x, {})",
        "nn.functional.cosine_similarity(x, x, {})",
        "roll(x, 1, {})",
        "chunk(x, 2, {})",
        "index_select(x, {}, i)",
    )
    for text in each:
        for x in SHAPES:
            for dim in ("0", "-1", "1", "4"):
                yield Case(f"torch.{text.format(dim)}", {"x": x, **({"i": [0]} if "i)" in text else {})})
    for x in SHAPES:
        for ord in ("0", "1", "float('inf')", "-float('inf')", "3"):
            for dim in ("None", "0", "-1", "[0, 1]"):
                yield Case(f"torch.linalg.vector_norm(x, {ord}, {dim})", {"x": x})
        for call in (
            "x.max()",
            "x.min(0)",
            "x.amax()",
            "x.argmax()",
            "x.sum([0])",
            "x.mean((0,))",
            "x.median()",
            "x.trace()",
            "x.cov()",
            "torch.diagonal(x).sum()",
        ):
            yield Case(f"({call})", {"x": x})


def lookups() -> Iterator[Case]:
    for i in ([], [0, 2, 1], [5], [-1]):
        for w in ((4, 3), (0, 3), (4, 0)):
            yield Case("F.embedding(i, w)", {"i": i, "w": w})
            for offsets in ([], [0], [0, 0], [0, 3], [0, 1, 1], [1, 2], [2, 0], [0, 9]):
                for mode in ("sum", "mean", "max"):
                    yield Case(f"F.embedding_bag(i, w, j, mode='{mode}')", {"i": i, "w": w, "j": offsets})
                yield Case(
                    "F.embedding_bag(i, w, j, mode='mean', include_last_offset=True)", {"i": i, "w": w, "j": offsets}
                )
                yield Case("F.embedding_bag(i, w, j, mode='sum', padding_idx=0)", {"i": i, "w": w, "j": offsets})
    for i in with_zeros((2, 3)):
        for mode in ("sum", "mean", "max"):
            yield Case(f"F.embedding_bag(i, w, mode='{mode}')", {"i": i, "w": (4, 3)})
        yield Case("torch.gather(x, 1, i)", {"x": (2, 3), "i": i})
        yield Case("torch.gather(x, 1, i)", {"x": (2, 0), "i": i})
        yield Case("x.scatter(1, i, 2.)", {"x": (2, 3), "i": i})
        yield Case("x.scatter_add(1, i, y)", {"x": (2, 3), "i": i, "y": i})
    for i in ([], [0], [1, 0]):
        for x in ((2, 3), (0, 3), (2, 0)):
            yield Case("x[i]", {"x": x, "i": i})
            yield Case("x.index_select(0, i)", {"x": x, "i": i})
            yield Case("x.index_add(0, i, y)", {"x": x, "i": i, "y": (len(i), x[1])})


def products() -> Iterator[Case]:
    for x in with_zeros((3, 4)):
        for w in with_zeros((5, x[1])):
            yield Case("F.linear(x, w)", {"x": x, "w": w})
            yield Case("F.linear(x, w, b)", {"x": x, "w": w, "b": (w[0],)})
            yield Case("torch.mm(x, w.t())", {"x": x, "w": w})
            yield Case("F.gelu(F.linear(x, w, b)) + 1", {"x": (2, *x), "w": w, "b": (w[0],)})
        yield Case("torch.mv(x, w)", {"x": x, "w": (x[1],)})
        yield Case("torch.outer(x.flatten(), w)", {"x": x, "w": (2,)})
        yield Case("torch.cdist(x, x + 1)", {"x": x})
        yield Case("torch.addmm(b, x, w)", {"x": x, "w": (x[1], 2), "b": (2,)})
        yield Case("torch.einsum('ij,kj->ik', x, x)", {"x": x})
    for x in with_zeros((2, 3, 4)):
        yield Case("torch.bmm(x, x.transpose(1, 2))", {"x": x})
        yield Case("torch.baddbmm(b, x, x.transpose(1, 2))", {"x": x, "b": (x[0], x[1], x[1])})
        yield Case("torch.matmul(x, w)", {"x": x, "w": (x[2], 2)})
        yield Case("torch.matmul(x, w)", {"x": x, "w": (x[2],)})
    for q in with_zeros((2, 2, 3, 4)):
        for keys in (5, 0):
            k = (q[0], q[1], keys, q[3])
            for rest in ("", ", is_causal=True", ", scale=2.0"):
                yield Case(f"F.scaled_dot_product_attention(q, k, w{rest})", {"q": q, "k": k, "w": k})


def losses() -> Iterator[Case]:
    names = (
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "kl_div",
        "binary_cross_entropy_with_logits",
        "soft_margin_loss",
        "poisson_nll_loss",
    )
    for x in with_zeros((3, 4)):
        for reduction in ("mean", "sum", "none"):
            for name in names:
                yield Case(f"F.{name}(x, y, reduction='{reduction}')", {"x": x, "y": x})
            for name in ("cross_entropy", "nll_loss"):
                yield Case(f"F.{name}(x, i, reduction='{reduction}')", {"x": x, "i": (x[0],)})
            yield Case(f"F.cross_entropy(x, y.softmax(1), reduction='{reduction}')", {"x": x, "y": x})
            yield Case(f"F.cosine_embedding_loss(x, y, torch.ones(3), reduction='{reduction}')", {"x": x, "y": x})
            yield Case(f"F.triplet_margin_loss(x, y, x + y, reduction='{reduction}')", {"x": x, "y": x})
    for x in with_zeros((2, 3, 4, 4)):
        for name in ("cross_entropy", "nll_loss"):
            yield Case(f"F.{name}(x, i)", {"x": x, "i": (x[0], *x[2:])})
    for x in with_zeros((2, 3, 4)):
        for text in (
            "torch.cat([x, y], {})",
            "torch.stack([x, y], {})",
            "(x + y).reshape(-1).sum({})",
            "torch.where(x > 0, x, y).softmax({})",
        ):
            for dim in (0, 1, -1):
                yield Case(text.format(dim), {"x": x, "y": x})
        yield Case("torch.cat([x, y[:0], y.flatten()[:0]])", {"x": x, "y": x})
        yield Case("(x * 2).view(-1, 4)", {"x": x})
        yield Case("(x * 2).view(0, 4)", {"x": x})
        yield Case("(x * 2).flatten(1).mean(0)", {"x": x})
        yield Case("x.std(0) / x.mean(1).sum()", {"x": x})


def all_cases() -> list[Case]:
    parts = (convolutions, pools, windows, norms, reductions, lookups, products, losses)
    return list(dict.fromkeys(case for part in parts for case in part()))


__all__ = ["Case", "all_cases", "torch"]
