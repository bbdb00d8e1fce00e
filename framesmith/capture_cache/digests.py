"""Digests of code objects, functions and classes over the parts that capture reads, the same in every process."""

from __future__ import annotations

import collections
import dataclasses
import re
import types
import typing
import weakref
from collections.abc import Mapping
from typing import Any

from framesmith.capture.code_cache import forgetter, kept_with_code
from framesmith.runtime.cache import key_of

_HEAP = 1 << 9
_UNREAD = frozenset({"__doc__", "__annotations__", "__weakref__", "__dict__", "__firstlineno__", "__abstractmethods__",
                     "__static_attributes__", "__annotate_func__", "__annotations_cache__", "__type_params__"})
"""Names of a class that its text has or not, and that lookups do not depend on (or that are compared where read)."""


@kept_with_code
def code_digest(code: types.CodeType) -> str:
    """Return a digest of the instructions, constants and names of a code object and of those within it.

    The file and the first line are not included, so other text of the file may change. The table of lines counts from
    the first line: two functions of one digest have their instructions on the same lines of their own text.
    """
    return key_of(
        code.co_name, code.co_qualname, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
        code.co_flags, code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        code.co_exceptiontable, code.co_linetable, *map(_constant, code.co_consts))


def _constant(value: Any) -> str:
    """Return a constant of a code object as text, with its type: 1, 1.0 and True are three."""
    if isinstance(value, types.CodeType):
        return code_digest(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__}:{value!r}"


def class_digest(cls: type) -> str:
    """Return a digest of a class: its bases, its layout, and the special names that its text defines.

    Looked-up attributes have their own guards, so unread methods may change.
    """
    own = [] if not cls.__flags__ & _HEAP else sorted(
        name for name in _names(cls)
        if isinstance(name, str) and name.startswith("__") and name.endswith("__") and name not in _UNREAD)
    bases = [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]
    told = [fields_text(names[name]) for names in map(_names, cls.__mro__) for name in _TOLD if name in names]
    return key_of(type(cls).__qualname__, bases, own, told, cls.__basicsize__, cls.__dictoffset__,
                  cls.__itemsize__)[:16]


def _names(cls: type) -> Mapping[str, Any]:
    """Return the real dict of a class, even if its metaclass overrides `__dict__`."""
    return type.__dict__["__dict__"].__get__(cls)  # type: ignore[no-any-return]


def plain_text(value: Any) -> str:
    """Return the text of a value without addresses."""
    text = repr(value)
    return _ADDRESS.sub("", text) if _AT in text else text


_AT = " at 0x"
_ADDRESS = re.compile(_AT + "[0-9a-f]+")


def fields_text(names: Any) -> str:
    """Return the text of annotations, or of the fields or members of a class, without addresses."""
    return (", ".join([f"{name}: {_text(value)}" for name, value in names.items()]) if type(names) is dict
            else plain_text(names))


def _text(value: Any) -> str:
    """Return the text of an annotation or a field. What `typing` makes is slow to print, never changes, and is shared
    by many classes: its text is kept for as long as it is there."""
    cls = type(value)
    if cls is dataclasses.Field:
        return " ".join([_text(getattr(value, name)) for name in _FIELD])
    if cls not in _MADE_BY_TYPING:
        return _MISSING if value is dataclasses.MISSING else plain_text(value)
    hit = _texts.get(id(value))
    if hit is None:
        hit = _texts[id(value)] = weakref.ref(value, forgetter(_texts, id(value))), plain_text(value)
    return hit[1]


_MISSING = plain_text(dataclasses.MISSING)
_FIELD: tuple[str, ...] = tuple(dataclasses.Field.__slots__)  # type: ignore[attr-defined]
_MADE_BY_TYPING: frozenset[type] = frozenset((
    types.GenericAlias, type(typing.Optional[int]), type(typing.List[int]),  # noqa: UP006, UP045
    type(typing.Callable[[int], int]), type(typing.Literal["a"])))
_texts: dict[int, tuple[weakref.ref[Any], str]] = {}
"""By the identity of an annotation: its text."""
_TOLD = ("__annotations__", "__dataclass_fields__", "_member_map_", "_fields")
"""Attributes of a class that describe its fields and members, and that the standard library reads all at once."""


def has_plain_layout(cls: type) -> bool:
    """Return whether all state of an instance is in its dict, its slots and the elements of a builtin container, which
    guards read: nothing is hidden in C."""
    for kind in cls.__mro__:
        if kind in _CONTAINERS:
            continue
        base = kind.__base__
        if not kind.__flags__ & _HEAP or base is None:
            return False
        slots = sum(type(raw) is types.MemberDescriptorType for raw in vars(kind).values())
        if kind.__basicsize__ > base.__basicsize__ + _POINTER * (slots + 2) or kind.__itemsize__ != base.__itemsize__:
            return False
    return True


_POINTER = 8
_CONTAINERS: frozenset[type] = frozenset({object, dict, list, set, collections.OrderedDict, collections.defaultdict,
                                          collections.deque})
