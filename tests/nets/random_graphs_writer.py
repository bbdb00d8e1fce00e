"""Random programs over tensors: each statement is tried in eager as it is written, so that most programs run.

A seed is one program for good, so rows are not added to what it draws from: seeds from `EXTENDED` on draw from more,
the others do not.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch

FLOATS = ("torch.float32",) * 5 + ("torch.float64",) * 2 + ("torch.bfloat16", "torch.float16", "torch.complex64")
INTEGERS = ("torch.int64", "torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8", "torch.bool")
SIZES = (
    *((3, 4),) * 3, (4,), (3, 1), (1, 4), (2, 3, 4), (2, 3, 4), (), (1,), (0, 4), (3, 0), (1, 1, 1), (5, 3, 4),
    (2, 3, 4, 4), (2, 4, 5, 5),
)
LAYOUTS = (
    "{}", "{}", "{}", "{}.mT.contiguous().mT", "{}.repeat(2, *[1] * ({}.dim() - 1))[::2]",
    "{}[..., :1].expand({}.shape)",
    "{}.contiguous(memory_format=torch.channels_last)",
    "torch.cat([{}.flatten()[:1], {}.flatten()])[1:].view({}.shape)",
    "{}.flip(-1).mT.mT",
)
SPECIAL = (
    "{}.view(-1)[0] = 0", "{}.view(-1)[-1] = float('inf')", "{}.view(-1)[0] = float('nan')", "{}.view(-1)[0] = -0.0",
    "{}.view(-1)[-1] = 1e30", "{}.view(-1)[0] = 1e-40",
)
EXTENDED = 1_000_000
MORE_SPECIAL = (
    *SPECIAL, "{}.view(-1)[:1] = float('-inf')", "{}.view(-1)[-1] = torch.finfo({}.dtype).max",
    "{}.view(-1)[0] = torch.finfo({}.dtype).tiny / 4", "{}.view(-1)[0] = complex('nan+infj')",
    "{}.view(-1)[:2] = complex(-0.0, 0)", "{}.view(-1)[0] = torch.iinfo({}.dtype).max",
    "{}.view(-1)[-1] = torch.iinfo({}.dtype).min + 1", "{}.zero_()",
)
"""Of any dtype: those that are none of its numbers are errors, and left out."""
SHARED = (
    "{}", "{}[...]", "{}.mT", "{}.view(-1)", "{}[:1]", "{}[..., 1:]", "{}.unsqueeze(0)", "{}.detach()",
    "{}.detach()[:1]", "{}.detach().mT", "{}.diagonal()",
)
"""Another input, of the memory of one."""
WRITING = 3
"""The row below whose statements write; those of the others are values of new names."""
STATEMENTS: dict[int, list[str]] = {weight: [part.strip() for part in text.split(";;")] for weight, text in {
    6: """
        {x} + {y};; {x} * {y};; {x} - {y};; {x} / {y};; {x} * {n};; {x} + {n};; {n} - {x};; {x}.sin();; {x}.exp();;
        {x}.tanh();; {x}.relu();; {x}.abs();; {x}.sigmoid();; {x}.square();; F.gelu({x});; F.silu({x});; {x}.neg();;
        torch.where({x} > 0, {x}, {y});; {x}.clamp(-1, 1);; torch.maximum({x}, {y});; torch.minimum({x}, {y});;
        {x}.sqrt();;
        {x}.log1p();; {x} ** 2;; {x} % {n};; {x} // {n};; torch.lerp({x}, {y}, 0.3);; {x}.masked_fill({x} > 0.5, {n});;
        F.leaky_relu({x}, 0.1);; F.softplus({x});; F.elu({x});; F.hardswish({x});; torch.addcmul({x}, {y}, {x});;
        {x}.reciprocal();; {x}.atan2({y});; {x}.erf();; torch.hypot({x}, {y});; {x}.round();; {x}.sign();;
        {x}.expm1()""",
    5: """
        {x}.sum({d});; {x}.mean({d});; {x}.sum();; {x}.mean({d}, keepdim=True);; {x}.amax({d});; {x}.max({d}).values;;
        {x}.amin({d}, keepdim=True);; {x}.var({d});; {x}.std({d}, keepdim=True);; {x}.prod({d});; {x}.argmax({d});;
        {x}.cumsum({d});; {x}.logsumexp({d});; {x}.norm(dim={d});; {x}.softmax({d});; {x}.log_softmax({d});;
        {x}.sum((0, -1));; {x}.any({d});; {x}.all();; {x}.cumprod({d});; {x}.max();; {x}.argmin()""",
    4: """
        {x}.mT;; {x}[0];; {x}[..., 1:];; {x}[:, ::2];; {x}.unsqueeze({d});; {x}.squeeze();; {x}.reshape(-1);;
        {x}.flatten(0, 1);; {x}.expand(2, *{x}.shape);; {x}.permute(*range({x}.dim())[::-1]);; {x}.diagonal();;
        {x}.detach();;
        {x}.view(-1);; {x}.chunk(2, {d})[0];; {x}.split(1, {d})[-1];; {x}.unbind({d})[0];; {x}.narrow({d}, 0, 1);;
        {x}.movedim(0, -1);; {x}.contiguous();; {x}.clone();; {x}.select({d}, -1);; {x}.unfold(-1, 2, 1)""",
    3: """
        {x}.mul_({n});; {x}.add_({y});; {x}[0] = {n};; {x}[..., 0].add_(1);; {x}.mT.mul_({y});; {x}.copy_({y});;
        {x}[:1] = {y}[:1];; {x}.relu_();; {x}.masked_fill_({x} > 0, {n});; {x}.zero_();; {x}.fill_({n});;
        {x}.clamp_(min={n});; {x}.diagonal().add_(1);; {x} += {y};; {x}.sin_();; {x}.view(-1)[1:].mul_(2);;
        {x}[{x} > 0] = {n}""",
    2: """
        {x} @ {y};; {x} @ {x}.mT;; {x}.flip(0);; {x}.roll(1, {d});; torch.cat([{x}, {y}], {d});;
        torch.stack([{x}, {x}], {d});; {x}[torch.tensor([0, -1, 0])];; {x}.index_select({d}, torch.tensor([0, 0]));;
        {x}.gather(-1, {x}.argsort(-1));; {x}.topk(1).values;; {x}.sort({d}).values;;
        F.layer_norm({x}, {x}.shape[-1:]);;
        F.normalize({x}, dim={d});; F.pad({x}, (1, 2));; {x}.repeat(2, *[1] * ({x}.dim() - 1));; {x}.tril();;
        F.linear({x}, {y});; F.mse_loss({x}, {y});; F.rms_norm({x}, {x}.shape[-1:]);; {x}.to(torch.float32);;
        {x}.to(torch.float64);; {x}.to(torch.bfloat16);; {x}.long();; {x} > {y};; {x}.to({y}.dtype);;
        torch.einsum('...i,...i->...', {x}, {y});; F.max_pool2d({x}, 2);; F.avg_pool2d({x}, 2, 1);;
        F.conv2d({x}, {x}.detach()[:, :, :2, :2]);; F.conv1d({x}, {x}.detach()[..., :2]);; {x}.isnan();;
        torch.zeros_like({x}).scatter_add(-1, {x}.argsort(-1), {x});; {x}.real;; {x}.conj();;
        F.one_hot({x}.abs().long() % 3, 3);; F.batch_norm({x}, None, None, training=True);;
        F.scaled_dot_product_attention({x}, {x}, {x});; torch.full_like({x}, {n});;
        torch.outer({x}.flatten(), {y}.flatten());; {x}.bool();; {x}.cummax({d}).values;;
        {x}.index_add(0, torch.tensor([0]), {x}[:1])""",
}.items()}
"""By weight: each is drawn in proportion to it. `x`, `y`: tensors; `n`: a number; `d`: a dimension."""
MORE_STATEMENTS: dict[int, list[str]] = {
    weight: [*STATEMENTS[weight], *(part.strip() for part in text.split(";;"))] for weight, text in {
    6: """
        {x} & {y};; {x} | {y};; {x} ^ {y};; ~{x};; {x} << 1;; {x} >> 1;; {x}.fmod({n});; {x}.remainder({y});;
        {x} // {y};; {x}.trunc();; {x}.floor();; {x}.frac();; {x}.sgn();; {x}.angle();; {x}.logaddexp({y});;
        torch.xlogy({x}, {y});; {x}.nan_to_num();; {x}.isinf();; {x} == {y};; {x} <= {n};; {x}.logical_not();;
        {x}.logical_xor({y});; {x}.fmax({y});; {x}.clamp({y});; {x} ** {y};; {n} / {x};;
        {x}.div({n}, rounding_mode='trunc');; {x}.rsqrt();; {x}.log2();; {x}.asinh();; F.mish({x});; F.hardtanh({x});;
        F.logsigmoid({x});; F.selu({x});; torch.addcdiv({x}, {y}, {x});; {x}.copysign({y})""",
    5: """
        {x}.nansum({d});; {x}.count_nonzero({d});; {x}.median();; {x}.kthvalue(1, {d}).values;; {x}.aminmax()[0];;
        {x}.logcumsumexp({d});; {x}.cummin({d}).indices;; {x}.min({d}).indices;; {x}.var_mean({d})[1];;
        {x}.sum(dtype=torch.float64);; {x}.mean((0, -1), keepdim=True);; {x}.norm(1);; {x}.norm(float('inf'), {d});;
        {x}.all({d}, keepdim=True);; {x}.min();; {x}.prod();; {x}.var(correction=0);; {x}.nanmedian()""",
    4: """
        {x}.as_strided((2, 2), (1, 2));; {x}.swapaxes(0, -1);; {x}.view_as({y});; {x}.expand_as({y});;
        {x}.unflatten(-1, (-1, 2));; {x}.real;; {x}.imag;; torch.view_as_real({x});; {x}.squeeze({d});;
        {x}[None, ..., 0];; {x}[:, None];; {x}.view({x}.shape);; {x}.hsplit(2)[0];; {x}.data;;
        {x}.view_as({x})[..., :2]""",
    3: """
        {x}.mT.copy_({y});; {x}.copy_({x} + {y});; {x}.view(-1)[::2] = {n};; {x}.chunk(2, {d})[0].add_({n});;
        {x}.select({d}, 0).copy_({y}.select({d}, -1));; {x}.index_fill_({d}, torch.tensor([0]), {n});;
        {x}[torch.tensor([0, 0])] = {y};; {x}.index_put_((torch.tensor([0, 0]),), {x}[:1], accumulate=True);;
        {x}.scatter_(-1, {x}.argsort(-1), {n});; {x}.real.mul_({n});; {x}.imag.add_(1);; {x}.detach().mul_({n});;
        {x}.div_({y});; {x}.sub_({y}, alpha=2);; {x}.floor_();; {x}.logical_not_();; {x}.sigmoid_();;
        {x}.squeeze().neg_();; {x}.narrow({d}, 0, 1).zero_();; {x}.tril_();; {x}.cumsum_({d});; {x} &= {y};;
        {x}.pow_(2);; {x}.exp_();; {x}.unsqueeze(0).mul_({n});; {x}.data.add_(1);; torch.add({x}, {y}, out={x});;
        with torch.no_grad(): {x}.add_({y});; {x}[..., -1] = {x}[..., 0];; {x}.mT[0] = {y}[0];;
        {x}.masked_fill_({y} > 0, {n});; {x}.where({x} > 0, {y}).add_(1);; {x}.unbind({d})[0].mul_(2);;
        {x}.lerp_({y}, 0.5);; {x}.swapaxes(0, -1)[0].add_({n})""",
    2: """
        {x}.to(torch.int8);; {x}.to(torch.uint8);; {x}.to(torch.int16);; {x}.half();; {x}.int();;
        {x}.to(torch.complex64);; torch.complex({x}, {x});; {x}.tile(2);; {x}.rot90();;
        F.cross_entropy({x}, {x}.argmax(1));; F.group_norm({x}, 1);; F.adaptive_avg_pool2d({x}, 1);;
        F.interpolate({x}, scale_factor=2);; F.embedding({x}.abs().long() % 3, {y});; F.glu({x}, {d});;
        F.huber_loss({x}, {y});; F.cosine_similarity({x}, {y}, dim={d});; torch.addmm({x}, {x}, {y});;
        torch.cdist({x}, {y});; torch.stack([{x}, {y}]);; torch.hstack([{x}, {y}]);;
        {x}.take_along_dim({x}.argsort(0), 0);; {x}.masked_select({x} > 0).sum();;
        {x}.sort({d}, descending=True).indices;; torch.tensordot({x}, {y}, 1);; {x}.bincount();;
        {x}.renorm(2, 0, 1.0);; {x}.trace();; F.pad({x}, (1, 1), value={n});; F.pad({x}, (1, 1), mode='reflect');;
        {x}.new_zeros({x}.shape).index_copy(0, torch.tensor([0]), {x}[:1]);; {x}.unfold(0, 2, 1).sum(-1);;
        {x}.cumsum({d}).flip({d});; {x}.argsort({d}, stable=True);; F.dropout({x}, 0.5)""",
}.items()}
"""What seeds from `EXTENDED` on draw from."""
NUMBERS = ("2", "0.5", "-1", "0", "3", "-0.25", "1e-3")
_KINDS = tuple(STATEMENTS)


def _inputs(draw: random.Random, more: bool) -> list[str]:
    lines = [f"torch.manual_seed({draw.randrange(1000)})"]
    base = draw.choice(SIZES)
    for name in "abc"[:draw.randint(1, 3)]:
        if more and name != "a" and draw.random() < 0.25:
            lines.append(f"{name} = {draw.choice(SHARED).format(draw.choice('ab') if name == 'c' else 'a')}")
            continue
        size = base if draw.random() < 0.6 else draw.choice(SIZES)
        if draw.random() < 0.85:
            dtype = draw.choice(FLOATS)
            lines.append(f"{name} = torch.randn({size}, dtype={dtype})")
            lines += ([draw.choice(SPECIAL).format(name)] if draw.random() < 0.15 and 0 not in size
                      and "complex" not in dtype else [])
        else:
            dtype = draw.choice(INTEGERS)
            low, high = (0, 2) if dtype == "torch.bool" else (0, 9) if dtype == "torch.uint8" else (-5, 6)
            lines.append(f"{name} = torch.randint({low}, {high}, {size}, dtype={dtype})")
        if more and draw.random() < 0.3:
            lines.append(draw.choice(MORE_SPECIAL).replace("{}", name))
        layout = draw.choice(LAYOUTS)
        lines.append(f"{name} = {layout.replace('{}', name)}")
        if "randn" in " ".join(lines[-3:]) and draw.random() < 0.6:
            lines.append(f"{name} = {name}.detach().requires_grad_()" + (" * 1" if draw.random() < 0.4 else ""))
    return lines


def write(seed: int) -> str:
    """A program as text: `inputs()` makes what `program` is called with."""
    draw, more = random.Random(seed), seed >= EXTENDED
    statements = MORE_STATEMENTS if more else STATEMENTS
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    made = [line for line in _inputs(draw, more) if _runs(line, space)]
    names = [n for n in "abc" if n in space]
    given = ", ".join(names) + ","
    body: list[str] = []
    wanted = draw.randint(2, 9)
    for step in range(60):
        if len(body) >= wanted:
            break
        x, y = (draw.choice(names[-4:] if draw.random() < 0.6 else names) for _ in range(2))
        kind = draw.choices(_KINDS, _KINDS)[0]
        text = draw.choice(statements[kind])
        line = ("" if kind == WRITING else f"t{step} = ") + text.format(x=x, y=y, n=draw.choice(NUMBERS),
                                                                        d=draw.choice((0, -1, -1, 1)))
        if _runs(line, space):
            body.append(line)
            names += [f"t{step}"] if f"t{step}" in space else []
    results = sorted({names[-1], *draw.sample(names, min(len(names), 2))})
    indented = "\n".join("    " + line for line in [*made, f"return {given}"])
    return "\n".join(["import torch", "import torch.nn.functional as F", "", "def inputs():", indented, "",
                      f"def program({given}):",
                      *(f"    {line}" for line in body), f"    return {', '.join(results)},"])


def _runs(line: str, space: dict[str, Any]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(line, space)
        except Exception:
            return False
    return all(x.numel() < 20_000 for x in space.values() if isinstance(x, torch.Tensor))
