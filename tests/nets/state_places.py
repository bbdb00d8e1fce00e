"""The places of a world that a change may touch, and what may be done there: what a Python program can change between
two calls."""

from __future__ import annotations

import dataclasses
import enum
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Verb = Callable[["Place", random.Random], None]
_DEEP = 7
_LEFT_OUT = ("num_layers", "bidirectional", "proj_size", "hidden_size", "input_size")
"""Of these, eager's recurrent kernels write beyond their memory when they do not fit the weights."""


@dataclasses.dataclass
class Place:
    """A value and who holds it: `kind` says how."""

    path: str
    kind: str
    owner: Any
    key: Any
    value: Any

    def put(self, value: Any) -> None:
        if self.kind == "attribute":
            (object.__setattr__ if dataclasses.is_dataclass(self.owner) else setattr)(self.owner, self.key, value)
        elif self.kind == "item":
            self.owner[self.key] = value
        elif self.kind == "cell":
            self.owner.cell_contents = value
        elif self.kind == "default":
            values = list(self.owner.__defaults__)
            values[self.key] = value
            self.owner.__defaults__ = tuple(values)
        elif self.kind == "keyword":
            self.owner.__kwdefaults__ = {**self.owner.__kwdefaults__, self.key: value}

    def drop(self) -> None:
        if self.kind == "attribute":
            delattr(self.owner, self.key)
        elif self.kind == "item":
            del self.owner[self.key]
        elif self.kind == "cell":
            del self.owner.cell_contents
        elif self.kind == "default":
            self.owner.__defaults__ = self.owner.__defaults__[1:]
        elif self.kind == "keyword":
            self.owner.__kwdefaults__ = None


def places(root: Any, space: dict[str, Any]) -> dict[str, Place]:
    """Every place that is found from `root`, by its path; `space` is the world's globals."""
    found: dict[str, Place] = {}
    seen: set[int] = set()
    todo = [Place("f", "root", None, None, root)]
    while todo:
        place = todo.pop(0)
        found.setdefault(place.path, place)
        if id(place.value) in seen or place.path.count("/") > _DEEP:
            continue
        seen.add(id(place.value))
        todo.extend(_within(place, space))
    return found


def _within(place: Place, space: dict[str, Any]) -> Iterator[Place]:
    value, path = place.value, place.path
    if isinstance(value, types.FunctionType):
        yield from _of_function(value, path, space)
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        yield Place(f"{path}/func", "root", None, None, value.__func__)
    elif isinstance(value, property):
        yield Place(f"{path}/fget", "root", None, None, value.fget)
    elif isinstance(value, dict):
        yield from (Place(f"{path}/[{k!r}]", "item", value, k, v) for k, v in value.items())
    elif isinstance(value, list):
        yield from (Place(f"{path}/[{i}]", "item", value, i, v) for i, v in enumerate(value))
    elif isinstance(value, nn.Module):
        for table in (value._parameters, value._buffers, value._modules):
            yield from (Place(f"{path}/{k}", "attribute", value, k, v) for k, v in table.items())
        yield from _of_object(value, path, space)
    elif isinstance(value, types.ModuleType) and value.__name__ == "helpers":
        yield from (
            Place(f"{path}/{k}", "attribute", value, k, v) for k, v in vars(value).items() if not k.startswith("__")
        )
    elif isinstance(value, type):
        if value.__module__ == space["__name__"] and not issubclass(value, (enum.Enum, tuple)):
            yield from (Place(f"{path}/{k}", "attribute", value, k, v) for k, v in vars(value).items() if _own(k))
            yield from (
                Place(f"{path}/^{b.__name__}", "root", None, None, b)
                for b in value.__bases__
                if b.__module__ == value.__module__
            )
    elif type(value).__module__ == space["__name__"] and not isinstance(value, (enum.Enum, tuple)):
        yield from _of_object(value, path, space)


_SPECIAL = ("__call__", "__len__", "__bool__", "__eq__", "__getattr__", "__get__", "__init__")


def _own(name: str) -> bool:
    return not name.startswith("_") and name not in _LEFT_OUT or name in _SPECIAL


def _of_object(value: Any, path: str, space: dict[str, Any]) -> Iterator[Place]:
    own = dict(getattr(value, "__dict__", {}))
    own.update((k, getattr(value, k)) for k in getattr(type(value), "__slots__", ()) if hasattr(value, k))
    yield from (Place(f"{path}/{k}", "attribute", value, k, v) for k, v in own.items() if _own(k))
    if type(value).__module__ == space["__name__"]:
        yield Place(f"{path}/class", "root", None, None, type(value))


def _of_function(fn: Any, path: str, space: dict[str, Any]) -> Iterator[Place]:
    names = set(fn.__code__.co_names)
    for const in fn.__code__.co_consts:
        names |= set(const.co_names) if isinstance(const, types.CodeType) else set()
    if fn.__globals__ is space:
        yield from (
            Place(f"/{k}", "item", space, k, space[k])
            for k in sorted(names & space.keys())
            if not isinstance(space[k], types.ModuleType) or k == "HELPERS"
        )
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        if name != "__class__" and cell != types.CellType():
            yield Place(f"{path}/({name})", "cell", cell, None, cell.cell_contents)
    yield from (Place(f"{path}/={i}", "default", fn, i, v) for i, v in enumerate(fn.__defaults__ or ()))
    yield from (Place(f"{path}/={k}", "keyword", fn, k, v) for k, v in (fn.__kwdefaults__ or {}).items())


# -- verbs
# ----------------------------------------------------------------------------------------------------------------------


def twice(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x + x
    return type(x)(map(twice, x)) if type(x) in (tuple, list) else x


def other(fn: Any) -> Any:
    """Another function, of the same signature."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return twice(fn(*args, **kwargs))

    return replaced


def _puts(make: Callable[[Any], Any]) -> Verb:
    return lambda place, rng: place.put(make(place.value))


def _does(act: Callable[[Any], Any]) -> Verb:
    def verb(place: Place, rng: random.Random) -> None:
        act(place.value)

    return verb


def _recoded(fn: Any) -> None:
    """New code with other constants."""
    code = fn.__code__
    fn.__code__ = code.replace(
        co_consts=tuple(
            [c * 2 if type(c) is float else c + 1 if type(c) is int and c > 1 else c for c in code.co_consts]
        )
    )


def _annotate(fn: Any) -> None:
    fn.note = 1


@torch.no_grad()
def _in_place(x: torch.Tensor) -> None:
    x.add_(1) if not x.is_floating_point() else x.mul_(1.5).add_(0.25)


def _element(x: torch.Tensor) -> None:
    if x.numel():
        x.data.view(-1)[-1] = 0 if not x.is_floating_point() else 3.0


def _numpy(x: torch.Tensor) -> None:
    if x.numel() and x.dtype not in (torch.bfloat16, torch.half):
        x.detach().numpy().reshape(-1)[0] = 1


def _set(x: torch.Tensor) -> None:
    with torch.no_grad():
        x.set_(x.detach().clone() + 1)


def _step(x: torch.Tensor) -> None:
    x.grad = torch.ones_like(x)
    torch.optim.SGD([x], lr=0.1).step()
    x.grad = None


def _same_kind(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(value, x.requires_grad) if isinstance(x, nn.Parameter) else value


def _floats(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: act(x) if x.is_floating_point() else None


_TENSOR: dict[str, Verb] = {
    "in place": _does(_in_place),
    ".data in place": _does(lambda x: x.data.add_(1)),
    ".data element": _does(_element),
    ".data =": _does(lambda x: setattr(x, "data", x.data.clone() + 1)),
    ".data = transposed": _does(lambda x: setattr(x, "data", x.data.t().contiguous().t()) if x.dim() == 2 else None),
    "numpy element": _does(_numpy),
    "set_": _does(_set),
    "optimiser": _does(lambda x: _step(x) if x.is_leaf and x.requires_grad else _in_place(x)),
    "requires_grad": _does(_floats(lambda x: x.requires_grad_(not x.requires_grad) if x.is_leaf else None)),
    "replaced": _puts(lambda x: _same_kind(x, x.detach().clone() + 1)),
    "alias": _puts(lambda x: _same_kind(x, x.detach())),
    "double": _puts(lambda x: _same_kind(x, x.detach().double()) if x.is_floating_point() else x),
    ".data double": _does(_floats(lambda x: setattr(x, "data", x.data.double()))),
    "transposed": _puts(lambda x: _same_kind(x, x.detach().t().contiguous().t()) if x.dim() == 2 else x),
    "as plain": _puts(lambda x: x.detach().clone()),
    "to None": _puts(lambda x: None),
    "zero stride": _puts(lambda x: _same_kind(x, x.detach()[:1].expand(x.shape)) if x.dim() and x.numel() else x),
    "attribute": _does(lambda x: setattr(x, "note", 1)),
}


def _hook(name: str) -> Verb:
    def verb(place: Place, rng: random.Random) -> None:
        module = place.value
        if name == "forward":
            module.register_forward_hook(lambda m, a, out: twice(out))
        elif name == "pre":
            module.register_forward_pre_hook(lambda m, a: twice(a) if a[0].is_floating_point() else None)
        elif name == "counting":
            module.register_forward_hook(lambda m, a, out: setattr(m, "counted", getattr(m, "counted", 0) + 1))
        elif name == "keyword":
            module.register_forward_hook(lambda m, a, k, out: twice(out), with_kwargs=True, prepend=True)
        elif name == "backward":
            module.register_full_backward_hook(lambda m, gi, go: tuple(g if g is None else g * 2 for g in gi))
        elif name == "backward pre":
            module.register_full_backward_pre_hook(lambda m, go: tuple(g if g is None else g * 3 for g in go))

    return verb


def _unhook(module: nn.Module) -> None:
    for table in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks):
        table.clear()


def _load(module: nn.Module) -> None:
    module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()})


def _append(module: nn.Module) -> None:
    if isinstance(module, (nn.Sequential, nn.ModuleList)):
        module.append(nn.Tanh())
    elif isinstance(module, nn.ModuleDict):
        module["new"] = nn.Tanh()
    else:
        module.register_buffer("unread", torch.ones(1))


def _subclass(x: Any) -> None:
    x.__class__ = type("Other", (type(x),), {})


def _new_forward(x: nn.Module) -> None:
    forward = type(x).forward
    x.forward = types.MethodType(other(forward), x)


_MODULE: dict[str, Verb] = {
    "train": _does(lambda m: m.train(not m.training)),
    "one's training": _does(lambda m: setattr(m, "training", not m.training)),
    "double": _does(lambda m: m.double()),
    "half": _does(lambda m: m.bfloat16()),
    "float": _does(lambda m: m.float()),
    "requires_grad_": _does(lambda m: m.requires_grad_(not all(p.requires_grad for p in m.parameters()))),
    "load_state_dict": _does(_load),
    "append": _does(_append),
    "zero_grad": _does(lambda m: m.zero_grad()),
    "forward =": _does(_new_forward),
    "class =": _does(_subclass),
    "no hooks": _does(_unhook),
    "replaced by Tanh": _puts(lambda m: nn.Tanh()),
    "replaced by Identity": _puts(lambda m: nn.Identity()),
    "channels last": _does(lambda m: m.to(memory_format=torch.channels_last)),
    "del forward": _does(lambda m: vars(m).pop("forward", None)),
    **{f"{name} hook": _hook(name) for name in ("forward", "pre", "counting", "keyword", "backward", "backward pre")},
}
_LIST: dict[str, Verb] = {
    "append": _does(lambda x: x.append(x[-1] if x else 1.0)),
    "pop": _does(lambda x: x and x.pop()),
    "reverse": _does(lambda x: x.reverse()),
    "clear": _does(lambda x: x.clear()),
    "same": _puts(list),
    "longer": _puts(lambda x: x + x),
    "tuple": _puts(tuple),
}
_DICT: dict[str, Verb] = {
    "add": _does(lambda x: x.__setitem__("c", 5.0)),
    "popitem": _does(lambda x: x and x.popitem()),
    "clear": _does(lambda x: x.clear()),
    "to the end": _does(lambda x: x and x.__setitem__(next(iter(x)), x.pop(next(iter(x))))),
    "same": _puts(lambda x: type(x)(x)),
    "update": _does(lambda x: x.update({k: twice(v) if isinstance(v, torch.Tensor) else v for k, v in x.items()})),
}
_SET: dict[str, Verb] = {
    "add": _does(lambda x: x.add("z")),
    "discard": _does(lambda x: x.discard("x")),
    "frozen": _puts(frozenset),
    "same": _puts(set),
}
_FUNCTION: dict[str, Verb] = {
    "replaced": _puts(other),
    "code": _does(_recoded),
    "attribute": _does(_annotate),
    "no defaults": _does(lambda f: setattr(f, "__defaults__", None)),
    "no keywords": _does(lambda f: setattr(f, "__kwdefaults__", None)),
    "defaults": _does(
        lambda f: setattr(
            f,
            "__defaults__",
            f.__defaults__ and tuple([twice(d) if isinstance(d, torch.Tensor) else d for d in f.__defaults__]),
        )
    ),
}


def _new_call(cls: type) -> None:
    for name in ("forward", "__call__"):
        if name in vars(cls):
            setattr(cls, name, other(vars(cls)[name]))


_CLASS: dict[str, Verb] = {
    "method": _does(_new_call),
    "new attribute": _does(lambda c: setattr(c, "extra", 1.0)),
    "shadow": _does(lambda c: setattr(c, "unread_at_all", 1)),
    "getattribute": _does(
        lambda c: setattr(c, "__getattribute__", lambda self, name: object.__getattribute__(self, name))
    ),
}
_OBJECT: dict[str, Verb] = {
    "extra": _does(lambda o: setattr(o, "extra", 2.0)),
    "class =": _does(_subclass),
    "tag": _does(lambda o: setattr(o, "tag", 2.0)),
}


def _number(make: Callable[[Any], Any]) -> Verb:
    return _puts(make)


_SCALAR: dict[type, dict[str, Verb]] = {
    bool: {"not": _puts(lambda v: not v), "int": _puts(int), "None": _puts(lambda v: None), "same": _puts(lambda v: v)},
    int: {
        "+1": _puts(lambda v: v + 1),
        "float": _puts(float),
        "0": _puts(lambda v: 0),
        "bool": _puts(bool),
        "negative": _puts(lambda v: -v),
    },
    float: {
        "+": _puts(lambda v: v + 0.5),
        "int": _puts(lambda v: int(v)),
        "0": _puts(lambda v: 0.0),
        "-0": _puts(lambda v: -0.0),
        "nan": _puts(lambda v: float("nan")),
        "tensor": _puts(lambda v: torch.tensor(v)),
        "bool": _puts(lambda v: True),
    },
    str: {
        "tanh": _puts(lambda v: "tanh"),
        "relu": _puts(lambda v: "relu"),
        "other": _puts(lambda v: v + "_"),
        "same": _puts(lambda v: "".join(v)),
    },
    type(None): {"number": _puts(lambda v: 2.0), "tensor": _puts(lambda v: torch.ones(4))},
}


def _instead(value: Any) -> dict[str, Verb]:
    """What replaces immutable values of several parts."""
    if isinstance(value, enum.Enum):
        members = list(type(value))
        return {
            "another": _puts(lambda v: members[(members.index(v) + 1) % len(members)]),
            "value": _puts(lambda v: v.value),
        }
    if isinstance(value, tuple):
        return {
            "another": _puts(lambda v: v._replace(left=7.0) if hasattr(v, "_replace") else v + v),
            "plain": _puts(tuple),
        }
    if isinstance(value, property):
        return {"another": _puts(lambda v: property(other(v.fget))), "constant": _puts(lambda v: 11)}
    if isinstance(value, (staticmethod, classmethod)):
        return {"another": _puts(lambda v: type(v)(other(v.__func__))), "plain": _puts(lambda v: v.__func__)}
    if callable(value):
        return {"replaced": _puts(lambda v: torch.sin)}
    return {}


_BY_TYPE: list[tuple[Any, dict[str, Verb]]] = [
    (torch.Tensor, _TENSOR),
    (nn.Module, _MODULE),
    (list, _LIST),
    (dict, _DICT),
    (set, _SET),
    (types.FunctionType, _FUNCTION),
    (type, _CLASS),
]


def verbs(place: Place) -> dict[str, Verb]:
    """What may be done at a place."""
    value = place.value
    found = dict(_SCALAR.get(type(value), {}))
    found.update(next((rows for kind, rows in _BY_TYPE if isinstance(value, kind)), {}))
    if not found:
        found = _instead(value) or (dict(_OBJECT) if not callable(value) or hasattr(value, "__dict__") else {})
    if isinstance(place.owner, nn.RNNBase):  # of another shape than the others, eager's kernels read beyond it
        found.pop("tensor", None)
    if place.kind != "root":
        found["dropped"] = lambda place, rng: place.drop()
        if isinstance(value, (float, int)) and place.kind == "attribute" and isinstance(place.owner, type):
            found["property"] = _puts(lambda v: property(lambda self: v + 1))
    return found
