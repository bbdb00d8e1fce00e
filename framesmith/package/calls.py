"""The operators that a package's code calls, as C++: each is a kernel of csrc/ (see code/calls.h), on memory whose
place, sizes and strides the plan tells.

    FS_ENTRY int fs_call(int index, void** p, const i64* n) {
      switch (index) {
        case 0:
          return framesmith::attention({(char*)p[3], 4, {1, 12, n[0], 64}, {...}}, ..., false, false, 0.125, {...});
      }
      return 1;
    }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.runtime.plan import Call, Dyn, Integer, Kind, Plan, TensorArg
from framesmith.util.text import Indented

HEAD = """#include "package/code/calls.h"
typedef long i64;
#define FS_ENTRY extern "C" __attribute__((visibility("default")))
"""
NONE = "framesmith::Operand{}"


def print_calls(plan: Plan) -> str:
    """Print the function that runs the plan's calls. All of them `is_known`."""
    out = Indented()
    with out.block("FS_ENTRY int fs_call(int index, void** p, const i64* n) {", "}"):
        with out.block("switch (index) {", "}"):
            for k, call in enumerate(plan.externs):
                out.line(f"case {k}:  // {call.name}")
                with out.indent():
                    _, text = _CALLS[call.name]
                    out.line(f"return {text(plan, call.args, list(call.kwargs.values()))};")
        out.line("return 1;")
    return HEAD + str(out)


def sources_of(plan: Plan) -> tuple[str, ...]:
    """Return the sources that the plan's calls need, each once."""
    found = {name: None for call in plan.externs for name in _CALLS[call.name][0]}
    return tuple(found)


def is_known(plan: Plan, call: Call) -> bool:
    """Return whether packages have a kernel for a call: one of real memory, in float32."""
    if call.overload is None or call.name not in _CALLS or call.results:
        return False
    tensors = [plan.values[a.value].dtype for a in _flat((call.args, tuple(call.kwargs.values())))
               if isinstance(a, TensorArg)]
    return {t for t in tensors if t is not torch.float32} <= _OTHER_TYPES.get(call.name, frozenset())


def _flat(value: Any) -> list[Any]:
    return [v for part in value for v in _flat(part)] if isinstance(value, tuple | list) else [value]


def _integer(value: Integer) -> str:
    return f"n[{value.index}]" if isinstance(value, Dyn) else str(value)


def _operand(plan: Plan, arg: Any) -> str:
    """Return a tensor of the plan, as an `Operand`."""
    if arg is None:
        return NONE
    value = plan.values[arg.value]
    base = value.ref if value.kind is Kind.VIEW else arg.value
    offset = f" + {_integer(value.offset)} * {value.dtype.itemsize}" if value.kind is Kind.VIEW else ""
    sizes, strides = (", ".join(map(_integer, numbers)) for numbers in (value.size, value.stride))
    return f"framesmith::Operand{{(char*)p[{base}]{offset}, {len(value.size)}, {{{sizes}}}, {{{strides}}}}}"


def _truth(value: Any) -> str:
    return "true" if value else "false"


def _attention(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
    q, k, v, mask, causal, scale = (*args, None, False, None)[:6]
    truth = mask is not None and plan.values[mask.value].dtype is torch.bool
    factor = "__builtin_nan(\"\")" if scale is None else repr(float(scale)) if math.isfinite(scale) else "0.0"
    operands = ", ".join(_operand(plan, x) for x in (q, k, v, mask))
    return f"framesmith::attention({operands}, {_truth(truth)}, {_truth(causal)}, {factor}, " + (
        f"{_operand(plan, results[0])})")


def _product(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
    """(a, b) or (a, b, bias)."""
    a, b, bias = (*args, None)[:3]
    return f"framesmith::product({', '.join(_operand(plan, x) for x in (a, b, bias, results[0]))})"


def _added(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
    """(bias, a, b)."""
    return _product(plan, (*args[1:], args[0]), results)


def _recurrence(gates: int) -> Callable[..., str]:
    def text(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
        x, states, packed, hidden, bidirectional, batch_first = args
        lists = [", ".join(_operand(plan, t) for t in tensors) for tensors in (states, packed)]
        outs = ", ".join(_operand(plan, t) for t in (*results, None)[:3])
        return (f"framesmith::recurrence({gates}, {_operand(plan, x)}, {{{lists[0]}}}, {{{lists[1]}}}, {hidden}, "
                f"{_truth(bidirectional)}, {_truth(batch_first)}, {outs})")

    return text


def _bags(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
    *lists, mean, include_last, padding = args
    tables, indices, offsets = (", ".join(_operand(plan, t) for t in tensors) for tensors in lists)
    kind = "int64_t" if plan.values[lists[1][0].value].dtype is torch.int64 else "int32_t"
    return (f"framesmith::embedding_bags<{kind}>({{{tables}}}, {{{indices}}}, {{{offsets}}}, {_truth(mean)}, "
            f"{_truth(include_last)}, {padding}, {_operand(plan, results[0])})")


def _scan(combine: str) -> Callable[..., str]:
    def text(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
        x, dim = args[:2]
        kind = "int64_t" if plan.values[x.value].dtype is torch.int64 else "float"
        return f"framesmith::scan<{kind}, std::{combine}>({_operand(plan, x)}, {dim}, {_operand(plan, results[-1])})"

    return text


def _bilinear(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
    x, _, corners, *factors = args
    rows, columns = (repr(float(f or 0)) for f in (*factors, None, None)[:2])
    return f"framesmith::bilinear({_operand(plan, x)}, {_truth(corners)}, {rows}, {columns}, " + (
        f"{_operand(plan, results[-1])})")


def _quantized(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
    x, packed, scale, zero, _, bits, group = args
    operands = ", ".join(_operand(plan, t) for t in (x, packed, scale, zero))
    return f"framesmith::quantized_linear({operands}, {bits}, {group}, {_operand(plan, results[0])})"


def _integers(plan: Plan, args: Sequence[Any], results: Sequence[Any]) -> str:
    kind = "uint8_t" if plan.values[args[0].value].dtype is torch.uint8 else "int8_t"
    return f"framesmith::integer_matmul<{kind}>({', '.join(_operand(plan, t) for t in (*args[:2], results[0]))})"


_CODE = "package/code/"
_PRODUCT = (_CODE + "product.cpp", "csrc/matmul.cpp")
_QUANTIZED = (_CODE + "quantized.cpp", "csrc/quantized.cpp", "csrc/matmul.cpp")
_RECURRENCE = (_CODE + "recurrence.cpp", "csrc/rnn.cpp")
_CALLS: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "framesmith::attention": ((_CODE + "attention.cpp", "csrc/attention.cpp"), _attention),
    "framesmith::embedding_bags": ((_CODE + "embedding_bags.cpp",), _bags),
    "framesmith::quantized_linear": (_QUANTIZED, _quantized), "framesmith::integer_matmul": (_QUANTIZED, _integers),
    "framesmith::lstm": (_RECURRENCE, _recurrence(4)), "framesmith::gru": (_RECURRENCE, _recurrence(3)),
    "aten::upsample_bilinear2d": ((_CODE + "resample.cpp",), _bilinear),
    "aten::cumsum": ((_CODE + "scan.cpp",), _scan("plus")),
    "aten::cumprod": ((_CODE + "scan.cpp",), _scan("multiplies")),
    **dict.fromkeys(("framesmith::matmul", "aten::mm", "aten::bmm"), (_PRODUCT, _product)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), (_PRODUCT, _added)),
}
"""By the operator's name: its sources, and the text of its call, given the plan, the arguments, and the tensors that it
fills. The call's value is 0, or what ends the run (see codegen/host_function.py)."""
_OTHER_TYPES = {"framesmith::attention": frozenset({torch.bool}),
                "framesmith::embedding_bags": frozenset({torch.int64, torch.int32}),
                "framesmith::quantized_linear": frozenset({torch.int32}),
                "framesmith::integer_matmul": frozenset({torch.int8, torch.uint8, torch.int32}),
                "aten::cumsum": frozenset({torch.int64}), "aten::cumprod": frozenset({torch.int64})}
"""The dtypes that tensors may have besides float32."""
