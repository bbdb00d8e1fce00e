"""Functions of collections, functools and operator that are written in C, and of torch that are written for another
compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    """collections._count_elements"""
    for value in iterable:
        mapping[value] = mapping.get(value, 0) + 1


def prod(iterable: Iterable[Any], /, *, start: Any = 1) -> Any:
    """math.prod"""
    for value in iterable:
        start = start * value
    return start


class Compared:
    """An object as functools.cmp_to_key wraps it."""

    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) == 0

    def __le__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) >= 0


def cmp_to_key(mycmp: Callable[[Any, Any], Any]) -> Callable[[Any], Compared]:
    def key(obj: Any) -> Compared:
        return Compared(mycmp, obj)

    return key


def namespace_repr(self: Any) -> str:
    """types.SimpleNamespace.__repr__"""
    name = "namespace" if type(self).__name__ == "SimpleNamespace" else type(self).__name__
    return f"{name}({', '.join([f'{k}={v!r}' for k, v in self.__dict__.items()])})"


def sub(pattern: Any, repl: Callable[[Any], str], string: str, count: int = 0) -> Any:
    """pattern.sub(repl, string) of a function"""
    return subn(pattern, repl, string, count)[0]


def subn(pattern: Any, repl: Callable[[Any], str], string: str, count: int = 0) -> Any:
    parts = []
    at = made = 0
    for match in pattern.finditer(string):
        if count and made == count:
            break
        parts.append(string[at:match.start()])
        parts.append(repl(match))
        at = match.end()
        made += 1
    parts.append(string[at:])
    return string[:0].join(parts), made


def in_grad_mode_of(step: Callable[..., Any], optimiser: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an optimiser's step in the optimiser's grad mode, as torch.optim does."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(optimiser.defaults["differentiable"])
        return step(optimiser, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def in_one_group(lists: Any, device: Any, dtype: Any) -> Any:
    """torch.optim's grouping of its tensors by device and dtype, where all are alike."""
    return {(device, dtype): (lists, list(range(len(lists[0]))))}


def fromkeys(cls: Any, iterable: Any, value: Any = None) -> Any:
    """dict.fromkeys of a subclass."""
    made = cls()
    for key in iterable:
        made[key] = value
    return made


def evenly_spaced(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None) -> Any:
    """`torch.linspace`: each half is counted from its own end."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    place, count = torch.arange(steps, dtype=torch.float64, device=device), torch.sym_max(steps - 1, 1)
    step = (end - start) / count
    return torch.where(place * 2 < count, place * step + start, end - (count - place) * step).to(dtype)


def pad_sequence(sequences: Any, batch_first: bool = False, padding_value: Any = 0.0,
                 padding_side: str = "right") -> torch.Tensor:
    """`torch.nn.utils.rnn.pad_sequence`."""
    longest, rest = max([len(x) for x in sequences]), [0, 0] * (sequences[0].dim() - 1)
    padded = []
    for x in sequences:
        missing = longest - len(x)
        widths = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(torch.nn.functional.pad(x, (*rest, *widths), value=padding_value))
    return torch.stack(padded, 0 if batch_first else 1)
