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
import time
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch

from framesmith.util import events
from framesmith.util.errors import DivergedRanks
from framesmith.util.world import world_size


@dataclass(slots=True)
class _Member:
    """What this process has published in a default process group. `identity`: a name that no process had before.
    `number`: of compiles. `world`: a digest of the identities of all members, once all are known to have the same."""

    identity: str
    number: int = 0
    world: str = ""


_members: weakref.WeakKeyDictionary[Any, _Member] = weakref.WeakKeyDictionary()
POLL = 0.05
"""Seconds between two looks at the identities of the other processes, before all are known."""
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
    """Return a file's name without its folders: processes may run on several machines."""
    return os.path.basename(file)


def _compare(title: str, text: str, seconds: float) -> None:
    c10d: Any = torch.distributed.distributed_c10d
    group = c10d._get_default_group()
    root, ranks, rank = c10d.PrefixStore("framesmith", c10d._get_default_store()), range(group.size()), group.rank()
    if (member := _members.get(group)) is None:
        member = _members[group] = _Member(uuid.uuid4().hex)
        root.set(f"identity/{rank}", member.identity)
    member.number += 1
    number, end = member.number, time.monotonic() + seconds
    keys = [f"digest/{number}/{k}" for k in ranks]
    while True:
        world = member.world or _world(root, ranks)
        store = c10d.PrefixStore(world, root)
        store.set(f"text/{number}/{rank}", text)
        store.set(f"last/{rank}", title)
        store.set(keys[rank], json.dumps([title, _digest(text)]))
        left = max(end - time.monotonic(), 0.0)
        with contextlib.suppress(RuntimeError):
            store.wait(keys, timedelta(seconds=left if member.world else min(left, POLL)))
        absent = [k for k in ranks if not store.check([keys[k]])]
        if not absent:
            break
        if time.monotonic() >= end:
            raise DivergedRanks(_absence(store, absent, title, seconds))
    member.world = world
    told = [json.loads(store.get(key)) for key in keys]
    by_digest: dict[str, list[int]] = {}
    for rank, (_, digest) in enumerate(told):
        by_digest.setdefault(digest, []).append(rank)
    if len(by_digest) > 1:
        most, *others = sorted(by_digest.values(), key=lambda them: (-len(them), them))
        texts = [store.get(f"text/{number}/{them[0]}").decode() for them in (others[0], most)]
        raise DivergedRanks(_difference(others[0], most, [told[them[0]][0] for them in (others[0], most)], *texts))


def _world(store: Any, ranks: range) -> str:
    """Return a digest of the identities of all processes. A store may outlive its processes, and then has what those
    before have published (where torchrun has restarted them): nobody else has their digest with this process in it."""
    keys = [f"identity/{rank}" for rank in ranks]
    return _digest(" ".join([store.get(key).decode() if store.check([key]) else "none" for key in keys]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
