"""Advice on graph breaks, by the words of the reason, and on recompiles, by the guard that failed."""

from __future__ import annotations

import re

_ROWS: tuple[tuple[str, str], ...] = (
    (r"graph_break\(\) was called", "remove the call of graph_break()"),
    (r"hooks of fully_shard", "nothing is to be done: the forward of each sharded module is compiled by itself"),
    (r"DTensor|distributed tensor", "nothing is to be done: it runs in eager, and what is around it is compiled"),
    (r"is disabled|disallowed", "take the mark off the function, or call it before or after the compiled code"),
    (r"^truth of|assertion on|bool\b.*tensor",
     "choose with torch.where, or decide before the call; a check can run outside of the compiled code"),
    (r"known at run time only|tensor's data|\.item\b|\.tolist\b|nonzero|a tensor as the index",
     "keep the value in a tensor, or read it before or after the compiled code"),
    (r"NumPy|numpy", "use the torch function of the same name, or convert before and after the compiled code"),
    (r"tensor subclass",
     "pass a plain tensor; or, if the class has __tensor_flatten__ and its __torch_dispatch__ depends on its operands "
     "alone and has no side effects, framesmith.allow_in_graph(Class)"),
    (r"layout", "pass a plain strided tensor"),
    (r"requires grad|training|grad mode|\.grad", "call it under torch.no_grad() or torch.inference_mode()"),
    (r"message about|logging|warning|print", "format the message first, or emit it outside of the compiled code"),
    (r"global state|autocast on", "set the state around the call of the compiled code"),
    (r"generator|coroutine|async|iterator", "compile the functions that it calls instead"),
    (r"repr of|hash of|id\(\) of|address", "do not depend on an object's address in compiled code"),
    (r"metaclass|instance of|__del__", "make the object outside of the compiled code and pass it in"),
    (r"call of|method|attribute",
     "call it outside of the compiled code; if it is a pure function of constants, mark it with "
     "framesmith.assume_constant_result, "
     "if of tensors, with framesmith.allow_in_graph"),
)
_LOOPS: tuple[tuple[str, str], ...] = (
    (r"one place", "choose with torch.where instead of break, continue or return"),
    (r"layout|no tensor or number", "make the variables before the loop with the shape and dtype that a round gives; "
                                    "what is no tensor or number belongs before or behind the loop"),
    (r"int of a tensor's data|truth of|branch on", "index by the counter, or a sum of it with a constant, and choose "
                                                   "between values with torch.where"),
    (r"existing object|side effects|a variable is set|iterator", "let a round change tensors, numbers and lists of "
                                                                 "tensors alone, and do the rest behind the loop"),
    (r"list", "append one tensor in each round, and join the list by torch.stack or torch.cat before anything else"),
    (r"while loop", "write `for i in range(n)`, or change the number compared at one place, by a constant"),
    (r"slice|view|shares? memory|from before|writes", "write `out[i] = value` in each round and read `out` behind the "
                                                      "loop; clone what is kept of another tensor"),
)
_COMPILED_LOOPS = tuple((re.compile(pattern), advice) for pattern, advice in _LOOPS)
_DEFAULT_OF_LOOPS = "let a round change tensors and numbers alone, or keep the number of rounds"
_COMPILED = tuple((re.compile(pattern), advice) for pattern, advice in _ROWS)
_DEFAULT = "move it out of the compiled code; the break costs the fusion across it and nothing else"


def advice(reason: str) -> str:
    """Return a suggestion in one line; never empty."""
    return next((text for pattern, text in _COMPILED if pattern.search(reason)), _DEFAULT)


def advice_on_loop(reason: str) -> str:
    """Return a suggestion for a loop that is unrolled, in one line."""
    return next((text for pattern, text in _COMPILED_LOOPS if pattern.search(reason)), _DEFAULT_OF_LOOPS)


_LEFT, _LOCAL = re.compile(r"L\['__fs_s\d+'\]"), re.compile(r"L\['(\w+)'\]")
_OBJECTS = "keep one object for all calls instead of making a new one for each"
_MARKS: dict[str, str] = {
    "equals": "pass {name} as a tensor; a number that has varied often becomes an input of "
              "the graph by itself, unless dynamic=False",
    "type": "pass objects of one class, or raise options={{'max_variants': n}}: each class is a variant",
    "id": _OBJECTS, "same": _OBJECTS, "distinct": _OBJECTS, "gone": _OBJECTS, "function": _OBJECTS,
    "len": "keep the length of {name}: pad it, or pass a tensor with framesmith.mark_dynamic",
    "keys": "keep the keys of {name}: set them all once, before the first call",
    "contains": "keep the keys of {name}: set them all once, before the first call",
    "not_contains": "keep the keys of {name}: set them all once, before the first call",
    "none": "pass a value in each call, or in none: each way is a variant",
    "not_none": "pass a value in each call, or in none: each way is a variant",
    "bool": "decide before the call: each way is a variant",
    "namespace": "do not rebind names of modules and classes between calls",
    "globals_state": "call it in the same modes each time (torch.no_grad, autocast, default dtype): each is a variant",
    "no_alias": "pass tensors that share no memory",
    "shape": "the program assumes this of a size: framesmith.mark_dynamic, with min= and max=, makes the line an "
             "error; without it, sizes on either side have a variant each",
}
_ASPECTS: tuple[tuple[str, str], ...] = (
    ("size of dimension", "framesmith.mark_dynamic({name}, {dims}) before the first call, or dynamic=True"),
    ("number of dimensions", "bring {name} to one number of dimensions (unsqueeze, flatten) before the call"),
    ("stride of dimension", "pass {name}.contiguous(), or memory in one layout"),
    ("dtype", "pass {name} in one dtype: each is a variant"),
    ("device", "pass {name} on one device: each is a variant"),
    ("requires_grad", "call it in training or in evaluation alone, or {name}.detach(): each is a variant"),
)
_OTHERWISE = "keep {name} as it was, or allow a variant for each: options={{'max_variants': n}}"


def prevention(kind: str, path: str, changed: str) -> str:
    """Return what would prevent that a guard of this kind on `path` fails. `changed`: what of a tensor has."""
    name = readable(path)
    dims = sorted({int(d) for d in re.findall(r"size of dimension (\d+)", changed)})
    row = _MARKS.get(kind) or next((text for what, text in _ASPECTS if what in changed), _OTHERWISE)
    return row.format(name=name, dims=dims[0] if len(dims) == 1 else dims)


def readable(path: str) -> str:
    """Return a guard's path as the program writes it."""
    return "it" if path in ("", "None") else _LOCAL.sub(r"\1", _LEFT.sub("the value that the break gives", path))
