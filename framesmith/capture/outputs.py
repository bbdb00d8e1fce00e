"""Tensors that leave captured code as views: of an input, or of another tensor that leaves with them.

Residual code remakes a view on the memory that it views, so that writes to one are seen in the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake import FakeTensor
from framesmith.fake.layout import meets_itself
from framesmith.fake.tensor import Alias
from framesmith.symbolic.layout import decide_layout

from .dynamic_sizes import holders, size_text, sizes_at
from .inference import call_in_mode, copy_in_mode

aten = torch.ops.aten
ViewGrad = Callable[[FakeTensor, FakeTensor], bool | None]

# Views that read the memory as other numbers: these are made step by step, any others at once.
_OTHER_NUMBERS = frozenset((aten.view_as_real.default, aten.view_as_complex.default, aten.view.dtype,
                            aten._conj.default, aten._neg_view.default))


class Views:
    """Writes views as expressions. A detached tensor that others view is made once, by a statement that `emit` takes,
    so that they have its history and its version counter; `detached` has the names of those that were made.
    `view_grad`: of a base and its view, the grad mode in which the view is to be made."""

    def __init__(self, rebuilder: Any, view_grad: ViewGrad, emit: Callable[[str], None],
                 detached: dict[int, str]) -> None:
        self.rebuilder, self.view_grad, self.emit, self.detached = rebuilder, view_grad, emit, detached
        self.hold: Callable[[Any], str] = rebuilder.hold

    def text(self, base: str, whole: FakeTensor, fake: FakeTensor) -> str:
        """Return the expression of `fake`, a view of the tensor `whole` at `base`, which is the root of its alias."""
        chain, root = [], fake._alias
        while root.parent is not None and root.func is not aten.detach.default:
            chain.append(root)
            root = root.parent
        if root.parent is None:
            return self._text(base, fake, chain, root, self.view_grad(whole, fake))
        name = self.detached.get(id(root))
        if name is None:
            viewed = self.text(base, whole, root.parent.val) if root.parent.parent is not None else base
            name = self.detached[id(root)] = f"__fs_v{len(self.detached)}"
            self.emit(f"{name} = {viewed}{'.data' if root.uncounted else '.detach()'}")
        return self._text(name, fake, chain, root, None) if chain else name

    def _text(self, base: str, fake: FakeTensor, chain: list[Alias], root: Alias, grad: bool | None) -> str:
        if grad is not None:
            return f"{self.hold(_made)}({grad}, lambda x: {self._text('x', fake, chain, root, None)}, {base})"
        text = _text(self.rebuilder, base, fake, chain, root)
        one_of_several = any(step.several for step in chain) and all(step.grad for step in chain)
        return (f"{self.hold(_one_of_several)}({text})" if one_of_several and root.parent is None
                and not fake.is_inference() else text)


def _text(rebuilder: Any, base: str, fake: FakeTensor, chain: list[Alias], root: Alias) -> str:
    # autograd's as_strided takes gradients apart there
    expanded = any(type(stride) is int and not stride for stride in root.val.stride())
    if not expanded and not any(step.func in _OTHER_NUMBERS for step in chain):
        distance = size_text(rebuilder, fake.storage_offset() - root.val.storage_offset())
        offset = f", {base}.storage_offset() + {distance}" if distance != "0" else ""
        return f"{base}.as_strided({size_text(rebuilder, fake.shape)}, {size_text(rebuilder, fake.stride())}{offset})"
    for step in reversed(chain):
        base = f"{rebuilder.hold(step.func)}({', '.join([base, *[size_text(rebuilder, a) for a in step.args]])})"
    return base


def settle(rebuilder: Any, fakes: list[FakeTensor], inferring: bool,
           view_grad: ViewGrad) -> tuple[list[FakeTensor], list[str]]:
    """Return the tensors that the graph must give for the outputs `fakes`, and the statements that make `__fs_o`, the
    tuple of these outputs, from them.

    `inferring`: the frame runs in inference mode. `view_grad`: see `Views`.
    """
    given, lines = _views(rebuilder, fakes, view_grad)
    if len({fake.is_inference() for fake in given}) > 1:
        parts = [f"__fs_o[{k}]" if fake.is_inference() is inferring
                 else f"{rebuilder.hold(copy_in_mode)}({fake.is_inference()}, __fs_o[{k}])"
                 for k, fake in enumerate(given)]
        lines.insert(0, f"__fs_o = ({', '.join(parts)},)")
    return given, lines


def graph_caller(inferring: bool, given: list[FakeTensor]) -> Any:
    """Return the function that calls a graph so that its outputs are inference tensors or not, as in the program; None
    where a plain call will do."""
    kinds = {fake.is_inference() for fake in given}
    return functools.partial(call_in_mode, not inferring) if kinds == {not inferring} else None


def _views(rebuilder: Any, fakes: list[FakeTensor], view_grad: ViewGrad) -> tuple[list[FakeTensor], list[str]]:
    members: dict[int, list[int]] = {}
    for k, fake in enumerate(fakes):
        members.setdefault(id(fake._alias.storage), []).append(k)
    if len(members) == len(fakes) and not any(map(_is_made_again, fakes)):
        return fakes, []
    for holder in holders(rebuilder, fakes):
        if id(holder._alias.storage) not in members:
            members[id(holder._alias.storage)] = [len(fakes)]
            fakes = [*fakes, holder]
    given: list[FakeTensor] = []
    lines: list[str] = []
    views = Views(rebuilder, view_grad, lines.append, {})
    texts = [""] * len(fakes)
    for places in members.values():
        base = fakes[places[0]]._alias.root.val
        given.append(base if len(places) > 1 or _is_made_again(fakes[places[0]]) else fakes[places[0]])
    rebuilder.data_sizes = sizes_at(rebuilder, given)
    for number, places in enumerate(members.values()):
        base, at = fakes[places[0]]._alias.root.val, f"__fs_o[{number}]"
        for k in places:
            texts[k] = at if fakes[k] is given[number] else views.text(at, base, fakes[k])
    return given, [*lines, f"__fs_o = ({', '.join(texts)},)"]


def _made(grad: bool, view: Callable[[torch.Tensor], torch.Tensor], base: torch.Tensor) -> torch.Tensor:
    with torch.set_grad_enabled(grad):
        return view(base)


def _one_of_several(view: torch.Tensor) -> torch.Tensor:
    """Return the view marked as one of several outputs of a call, for which autograd has rules of its own."""
    meta: Any = torch._C._autograd
    meta._set_creation_meta(view, meta.CreationMeta.MULTI_OUTPUT_NODE)
    return view


def _is_made_again(fake: FakeTensor) -> bool:
    """Return whether residual code must remake a view, because a copy of its elements has not all of its properties: it
    begins behind what it views, it is lazily conjugated or negated, its elements share memory, so that autograd takes a
    write to a part of it back to what it views, it is one of several that a call gave, which autograd does not let be
    written, or it is a part of memory that `as_strided` and the storage itself show as a whole."""
    if fake._alias.parent is None:
        return False
    whole = fake._alias.root.val
    return (decide_layout(whole.storage_offset() != fake.storage_offset()) or fake.is_conj() or fake.is_neg()
            or meets_itself(fake) or fake._alias.several
            or fake.numel() * fake.itemsize != whole.numel() * whole.itemsize)


__all__ = ["Views", "graph_caller", "settle"]
