"""`python -m framesmith cache`: list, explain, prune, verify and clear the disk cache; save and load bundles of it."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from framesmith import cache
from framesmith.pipeline import Generated
from framesmith.runtime.cache import Cache, library_key, machine
from framesmith.runtime.entries import SOURCE, Entry
from framesmith.runtime.memory import texts
from framesmith.runtime.toolchain import find
from framesmith.util.errors import CompilerMissing, FramesmithError

_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_WIDE = 160
"""Columns of what is no terminal."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def main(arguments: list[str]) -> int:
    """Return the command line."""
    options = _parser().parse_args(arguments or ["list"])
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    try:
        return options.run(options, console)
    except (FramesmithError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m framesmith cache", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace, Console], int]) -> argparse.ArgumentParser:
        made = commands.add_parser(run.__name__.strip("_"), help=(run.__doc__ or "").partition("\n")[0])
        made.add_argument("--folder", help="the cache folder; by default the one that compile uses")
        made.set_defaults(run=run)
        return made

    listed = command(_list)
    listed.add_argument("--kind", help="of this kind alone")
    listed.add_argument("--program", default="", help="made for programs whose name contains this")
    command(_explain).add_argument("key", help="the key of an entry, or how it begins")
    pruned = command(_prune)
    pruned.add_argument("--max-bytes", type=_bytes, help="how much may be left: 500M, 2G")
    pruned.add_argument("--max-age", type=_seconds, help="since the last use: 12h, 30d")
    saved, loaded = command(_save), command(_load)
    for one in (saved, loaded):
        one.add_argument("bundle")
        one.add_argument("--key-file", type=Path, help="the file of the secret that signs a bundle")
    loaded.add_argument("--digest", help="the SHA-256 that `save` printed")
    loaded.add_argument("--trust", action="store_true", help="it is from where you would take a program")
    command(_verify)
    command(_clear)
    return parser


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: 500M, 2G")
    return int(float(found[1]) * _BYTES[found[2]])


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: 12h, 30d")
    return float(found[1]) * _SECONDS[found[2]]


# ------------------------------------------------------------------------------------------------------------- commands


def _list(options: argparse.Namespace, console: Console) -> int:
    """show what is in the cache"""
    found = [e for e in cache.entries(options.folder)
             if options.kind in (None, e.kind) and options.program in e.program]
    table = Table(title=f"{cache.folder_of(options.folder)}", title_justify="left")
    for name in ("kind", "key", "program"):
        table.add_column(name)
    for name in ("size", "age", "last use", "uses"):
        table.add_column(name, justify="right", no_wrap=True)
    for e in found:
        table.add_row(e.kind, e.key[:12], escape(e.program), size_text(e.size), _ago(e.made), _ago(e.used), str(e.uses))
    console.print(table)
    by_kind: dict[str, list[Entry]] = defaultdict(list)
    for e in found:
        by_kind[e.kind].append(e)
    for kind, some in by_kind.items():
        console.print(f"{kind}: {_total(some)}", highlight=False)
    for memory in sorted(cache.folder_of(options.folder).glob("*.json")):
        console.print(f"{memory.name}: {len(texts(memory))} measured or seen", highlight=False)
    return 0


def _explain(options: argparse.Namespace, console: Console) -> int:
    """show what an entry is, and what its key stands for"""
    found = [e for e in cache.entries(options.folder) if e.key.startswith(options.key)]
    if len(found) != 1:
        console.print(f"{len(found)} entries begin with {escape(options.key)}")
        return 1
    (entry,) = found
    rows = {
        "kind": entry.kind, "key": entry.key, "file": str(entry.path), "made for": entry.program or "?",
        "size": size_text(entry.size), "made": f"{_ago(entry.made)} ago", "last use": f"{_ago(entry.used)} ago",
        "uses": f"by {entry.uses} processes that did not make it", "whole": "yes" if entry.whole else "no: damaged",
    }
    rows |= _CONTENTS.get(entry.suffix, lambda e, folder: {})(entry, options.folder)
    rows["here"] = "; ".join(f"{name} {value}" for name, value in machine().items())
    table = Table(show_header=False)
    for name, text in rows.items():
        table.add_row(name, escape(text))
    console.print(table)
    return 0


def _code(entry: Entry, folder: str | None) -> dict[str, str]:
    where = Cache(folder or entry.path.parents[1])
    code = where.load(entry.key)
    if not isinstance(code, Generated):
        return {"holds": type(code).__name__}
    calls = Counter(str(call.name) for call in code.plan.externs)
    rows = {
        "kernels": ", ".join(k.name for k in code.kernels) or "none",
        "operators": ", ".join(sorted({operators for work in code.work for operators, _ in work})) or "none",
        "calls": ", ".join(f"{count} × {name}" for name, count in calls.items()) or "none",
        "sizes that vary": ", ".join(map(str, code.symbols)) or "none",
        "constants": str(code.plan.constants), "device": "CPU" if code.plan.device < 0 else f"cuda:{code.plan.device}",
        "text": size_text(sum(map(len, code.units))),
        "its key": "framesmith, the graph, the options, the C++ compiler and flags, threads, the device",
    }
    try:
        library = library_key(find(), code.units)
    except CompilerMissing:
        return rows
    there = any(e.key == library for e in cache.entries(folder))
    return {**rows, "library": library if there else "none that this machine's compiler would give"}


def _library(entry: Entry, folder: str | None) -> dict[str, str]:
    source = entry.path.with_suffix(SOURCE)
    return {"its key": "its C++ text without comments, and the C++ compiler, flags, processor and PyTorch",
            "C++ text": str(source) if source.exists() else "not kept"}


def _account(entry: Entry, folder: str | None) -> dict[str, str]:
    parts = Cache(folder or entry.path.parents[1]).load(entry.key, entry.suffix)
    return {"parts": "; ".join(f"{name} {digest}" for name, digest in parts.items()) if parts else "?",
            "its use": "to tell why code of the same graph is not found"}


_CONTENTS: dict[str, Callable[[Entry, str | None], dict[str, str]]] = {".plan": _code, ".so": _library,
                                                                       ".parts": _account}
"""Suffix of an entry -> what is in it, by name."""


def _prune(options: argparse.Namespace, console: Console) -> int:
    """remove what is old, or was used least recently"""
    if options.max_bytes is None and options.max_age is None:
        console.print("say --max-bytes or --max-age")
        return 2
    console.print(f"removed: {_total(cache.prune(options.max_bytes, options.max_age, options.folder))}")
    return 0


def _save(options: argparse.Namespace, console: Console) -> int:
    """write the cache into one file, and print its SHA-256"""
    digest = cache.save(options.bundle, key=_key(options), folder=options.folder)
    console.print(f"{digest}  {escape(options.bundle)}", highlight=False)
    return 0


def _load(options: argparse.Namespace, console: Console) -> int:
    """add what a bundle has to the cache"""
    done = cache.load(options.bundle, digest=options.digest, key=_key(options), trust=options.trust,
                      folder=options.folder)
    console.print(f"{done.added} entries added ({size_text(done.bytes)}), {done.known} known")
    return 0


def _verify(options: argparse.Namespace, console: Console) -> int:
    """remove entries that are damaged"""
    damaged = cache.verify(options.folder)
    for e in damaged:
        console.print(f"removed {e.path}: damaged", highlight=False)
    console.print(f"whole: {_total(cache.entries(options.folder))}")
    return int(bool(damaged))


def _clear(options: argparse.Namespace, console: Console) -> int:
    """remove everything"""
    console.print(f"removed: {_total(cache.clear(options.folder))}")
    return 0


# ----------------------------------------------------------------------------------------------------------------- text


def _key(options: argparse.Namespace) -> bytes | None:
    return None if options.key_file is None else options.key_file.read_bytes().strip()


def _total(some: Sequence[Entry]) -> str:
    return f"{len(some)} entries, {size_text(sum(e.size for e in some))}"


def size_text(count: int) -> str:
    """Bytes in words."""
    unit, amount = "B", float(count)
    for larger in ("KiB", "MiB", "GiB"):
        if amount >= 1024:
            unit, amount = larger, amount / 1024
    return f"{amount:.1f} {unit}" if unit != "B" else f"{count} B"


def _ago(when: float) -> str:
    seconds = max(time.time() - when, 0.0)
    for unit in ("w", "d", "h", "m"):
        if seconds >= 2 * _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
