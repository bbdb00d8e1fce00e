"""The interface between the parts of a capture session: each method is defined in one part, each attribute set in one;
`tracer.Tracer` is all of them together."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from framesmith.symbolic.env import ShapeEnv

from . import trackers as t
from .break_points import Stop
from .sources import Guard, Source
from .surroundings import Surroundings


class Session:
    """The base of the parts."""

    # --- state --------------------------------------------------------------------------------------------------------
    class_cache: dict[type, dict[str, Any]]
    class_writes: dict[type, dict[str, t.Tracker | None]]
    cleaning: list[tuple[t.Generator, Stop | None]]
    counters: dict[int, Any]
    dtypes: Any
    fields: dict[int, dict[str, t.Tracker]]
    followed: set[FunctionType]
    frames: list[Any]
    guards: dict[tuple[Source | None, str, Any], Guard]
    handled: list[t.Tracker]
    infos: dict[type, Any]
    keep: list[Any]
    log: list[Any]
    made_classes: set[type]
    modes: Any
    nodes_made: int
    mutated: dict[int, t.Tracker]
    of_made: dict[int, tuple[type, str] | None]
    overlay: dict[type, dict[str, Any]]
    parts: set[int]
    recorder: Any
    root_globals: dict[str, Any]
    replays: Any
    seeds: Any
    seen: dict[int, t.Tracker]
    shapes: ShapeEnv
    showing: list[t.Tracker]
    state: Any
    steps: int
    surroundings: Surroundings
    transformed: bool

    # --- methods ------------------------------------------------------------------------------------------------------
    accessor: Callable[..., t.Tracker]
    asks: Callable[..., bool]
    bound_special: Callable[..., t.Tracker]
    call_property: Callable[..., t.Tracker]
    call_special: Callable[..., t.Tracker]
    chain: Callable[..., None]
    class_attr: Callable[..., t.Tracker]
    class_function: Callable[..., t.Tracker]
    class_value: Callable[..., t.Tracker]
    compare: Callable[..., t.Tracker]
    fail: Callable[..., Any]
    fold: Callable[..., t.Tracker]
    folded: Callable[..., Any]
    follow: Callable[..., None]
    guard: Callable[..., None]
    guard_owners: Callable[..., list[Any]]
    has_attr: Callable[..., bool]
    inline: Callable[..., t.Tracker]
    input: Callable[..., t.Tracker]
    is_iterable: Callable[..., bool]
    lookup: Callable[..., Any]
    made: Callable[..., t.Tracker]
    made_error: Callable[..., t.Error]
    mapping: Callable[..., dict[Any, t.Tracker]]
    mark: Callable[..., Any]
    mentions_made: Callable[..., bool]
    meta_is_plain: Callable[..., None]
    methods: Callable[..., Any]
    no_attribute: Callable[..., Any]
    note_class: Callable[..., None]
    own_raw: Callable[..., Any]
    put_class_attr: Callable[..., None]
    raise_: Callable[..., Any]
    refuse_out: Callable[..., None]
    remember: Callable[..., t.Tracker]
    seen_as_copy: Callable[..., None]
    shown: Callable[..., Any]
    shown_container: Callable[..., Any]
    stand_in: Callable[..., Any]
    static: Callable[..., t.Tracker]
    store_cell: Callable[..., None]
    torch_function: Callable[..., t.Tracker]
    touch: Callable[..., None]
    unkey: Callable[..., t.Tracker]
    none_if_raised: Callable[..., Any]
    user_place: Callable[..., Any]
    user_stack: Callable[..., Any]
    wrap: Callable[..., t.Tracker]
    wrap_static: Callable[..., t.Tracker]
