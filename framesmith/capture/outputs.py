"""Tensors that leave captured code as views: of an input, or of another tensor that leaves with them.

A view is made again on the memory that it views, by residual code, so that what is written to one is seen in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake import FakeTensor
from framesmith.fake.layout import meets_itself
from framesmith.fake.outputs import is_detached
from framesmith.fake.tensor import Alias

from .inference import in_mode, made_in

Hold = Callable[[Any], str]
ViewGrad = Callable[[FakeTensor, FakeTensor], bool | None]

# Views that read the memory as other numbers: these are made step by step, any others at once.
_OTHER_NUMBERS = frozenset((torch.ops.aten.view_as_real.default, torch.ops.aten.view_as_complex.default,
                            torch.ops.aten.view.dtype,
                         torch.ops.aten._conj.default, torch.ops.aten._neg_view.default))


def view_text(hold: Hold, base: str, fake: FakeTensor, grad: bool | None = None) -> str:
    """The expression of the view `fake` of the tensor at `base`, the root of its alias: at the same distance from where
    that begins.

    `grad`: the grad mode in which it is to be evaluated.
    """
    if grad is not None:
        return f"{hold(_made_with if grad else _made_without)}(lambda x: {view_text(hold, 'x', fake)}, {base})"
    chain = []
    alias = fake._alias
    while alias.parent is not None:
        chain.append(alias)
        alias = alias.parent
    text = _text(hold, base, fake, chain, alias)
    one_of_several = any(step.several for step in chain) and all(step.grad for step in chain)
    return (f"{hold(_one_of_several)}({text})" if one_of_several and not is_detached(fake._alias)
            and not fake.is_inference() else text)


def _text(hold: Hold, base: str, fake: FakeTensor, chain: list[Alias], alias: Alias) -> str:
    # autograd's as_strided takes gradients apart there
    expanded = any(type(stride) is int and not stride for stride in alias.val.stride())
    if not expanded and not any(step.func in _OTHER_NUMBERS for step in chain):
        distance = fake.storage_offset() - alias.val.storage_offset()
        base = f"{base}.detach()" if is_detached(fake._alias) else base
        offset = f", {base}.storage_offset() + {distance}" if distance else ""
        return f"{base}.as_strided({tuple(fake.shape)!r}, {fake.stride()!r}{offset})"
    for step in reversed(chain):
        base = f"{hold(step.func)}({', '.join([base, *map(hold, step.args)])})"
    return base


def settle(hold: Hold, fakes: list[FakeTensor], inferring: bool, view_grad: ViewGrad) -> tuple[list[FakeTensor],
                                                                                               list[str]]:
    """Return the tensors that the graph must give for the outputs `fakes`, and the statements that make `__fs_o`, the
    tuple of these outputs, from them.

    `inferring`: the frame runs in inference mode. `view_grad`: of a base and its view, the `grad` of `view_text`.
    """
    given, lines = _views(hold, fakes, view_grad)
    if len({fake.is_inference() for fake in given}) > 1:
        parts = [f"__fs_o[{k}]" if fake.is_inference() is inferring
                 else f"{hold(made_in(fake.is_inference()))}(__fs_o[{k}])"
                 for k, fake in enumerate(given)]
        lines.insert(0, f"__fs_o = ({', '.join(parts)},)")
    return given, lines


def call_in_mode(inferring: bool, given: list[FakeTensor]) -> Any:
    """Return the function that calls a graph so that its outputs are inference tensors or not, as in the program; None
    where a plain call will do."""
    kinds = {fake.is_inference() for fake in given}
    return in_mode(not inferring) if kinds == {not inferring} else None


def _views(hold: Hold, fakes: list[FakeTensor], view_grad: ViewGrad) -> tuple[list[FakeTensor], list[str]]:
    members: dict[int, list[int]] = {}
    for k, fake in enumerate(fakes):
        members.setdefault(id(fake._alias.storage), []).append(k)
    if len(members) == len(fakes) and not any(map(_is_made_again, fakes)):
        return fakes, []
    given: list[FakeTensor] = []
    texts = [""] * len(fakes)
    for places in members.values():
        base = _root(fakes[places[0]])
        whole = base if len(places) > 1 or _is_made_again(fakes[places[0]]) else fakes[places[0]]
        at = f"__fs_o[{len(given)}]"
        given.append(whole)
        for k in places:
            texts[k] = at if fakes[k] is whole else view_text(hold, at, fakes[k], view_grad(base, fakes[k]))
    return given, [f"__fs_o = ({', '.join(texts)},)"]


def _made_with(view: Callable[[torch.Tensor], torch.Tensor], base: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return view(base)


def _made_without(view: Callable[[torch.Tensor], torch.Tensor], base: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return view(base)


def _one_of_several(view: torch.Tensor) -> torch.Tensor:
    """The view, for which autograd has the rules of those that one call made with others."""
    meta: Any = torch._C._autograd
    meta._set_creation_meta(view, meta.CreationMeta.MULTI_OUTPUT_NODE)
    return view


def _is_made_again(fake: FakeTensor) -> bool:
    """Return whether a view has what a back end that computes the view alone would not give: it begins behind what it
    views, it is lazily conjugated or negated, or its elements share memory, so that autograd takes a write to a part of
    it back to what it views."""
    if fake._alias.parent is None:
        return False
    return (_root(fake).storage_offset() != fake.storage_offset() or fake.is_conj() or fake.is_neg()
            or meets_itself(fake))


def _root(fake: FakeTensor) -> FakeTensor:
    alias = fake._alias
    while alias.parent is not None:
        alias = alias.parent
    return alias.val


__all__ = ["call_in_mode", "settle", "view_text"]
