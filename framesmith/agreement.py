"""The check that all processes of a world compile the same graphs: before the code runs, each publishes a digest of
what it has captured in the store of the default process group. A process that differs, or that compiles nothing, is
named with the first difference; without the check, the others would wait in a collective until it times out."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch

from framesmith.util import events
from framesmith.util.errors import DivergedRanks
from framesmith.util.world import world_size

_counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""The number of compiles that this process has published, by default process group."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@contextlib.contextmanager
def agreed(compile: events.Compile, seconds: float, missed: str) -> Iterator[None]:
    """Compare what the body compiles with what the other processes compile. Raises `DivergedRanks` if one compiles
    something else, or nothing within `seconds` after this process (0: nothing is compared). `missed`: the reasons for
    which the code of earlier compiles did not apply."""
    if not seconds or world_size() == 1:
        yield
        return
    seen: list[events.Event] = []
    thread = threading.get_ident()
    with events.on_event(lambda event: seen.append(event) if threading.get_ident() == thread else None):
        yield
    title = f"{compile.function} ({_base(compile.file)}:{compile.line})" + f" again, because {missed}" * bool(missed)
    ends = [f"a graph break at {_base(e.file)}:{e.line}: {e.reason}" for e in seen if isinstance(e, events.GraphBreak)]
    ends += [f"nothing: it runs in eager: {e.reason}" for e in seen if isinstance(e, events.Fallback)]
    _compare(title, _ADDRESS.sub("0x", "\n".join([*(ends or ["no graph break"]), compile.graph])), seconds)


def _base(file: str) -> str:
    """The name of a file: processes may run on several machines."""
    return os.path.basename(file)


def _compare(title: str, text: str, seconds: float) -> None:
    c10d: Any = torch.distributed.distributed_c10d
    group = c10d._get_default_group()
    number = _counts[group] = _counts.get(group, 0) + 1
    store, ranks = c10d.PrefixStore("framesmith", c10d._get_default_store()), range(group.size())
    store.set(f"text/{number}/{group.rank()}", text)
    store.set(f"last/{group.rank()}", title)
    store.set(f"digest/{number}/{group.rank()}", json.dumps([title, hashlib.sha256(text.encode()).hexdigest()]))
    keys = [f"digest/{number}/{rank}" for rank in ranks]
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError:
        absent = [rank for rank in ranks if not store.check([keys[rank]])]
        if absent:
            raise DivergedRanks(_absence(store, absent, title, seconds)) from None
    told = [json.loads(store.get(key)) for key in keys]
    by_digest: dict[str, list[int]] = {}
    for rank, (_, digest) in enumerate(told):
        by_digest.setdefault(digest, []).append(rank)
    if len(by_digest) > 1:
        most, *others = sorted(by_digest.values(), key=lambda them: (-len(them), them))
        texts = [store.get(f"text/{number}/{them[0]}").decode() for them in (others[0], most)]
        raise DivergedRanks(_difference(others[0], most, [told[them[0]][0] for them in (others[0], most)], *texts))


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _absence(store: Any, absent: list[int], title: str, seconds: float) -> str:
    key = f"last/{absent[0]}"
    last = f"the last that rank {absent[0]} compiled is {store.get(key).decode()}" if store.check([key]) else (
        "it has compiled nothing so far")
    return f"{_named(absent)} has compiled nothing in the {seconds:g} s since this process compiled {title}; {last}"


def _difference(some: list[int], most: list[int], titles: list[str], text: str, other: str) -> str:
    """Two texts differ, or they would have one digest."""
    first = next(pair for pair in zip_longest(text.split("\n"), other.split("\n"), fillvalue="nothing more")
                 if pair[0] != pair[1])
    what = f"{_named(some)} compiled {titles[0]} unlike {_named(most)}"
    what += f", which compiled {titles[1]}" * (titles[0] != titles[1])
    return f"{what}: there it has\n  {first[0]}\nand else\n  {first[1]}"
