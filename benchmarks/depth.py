"""What a first call costs as equal layers are added, beside torch.compile in the same run.

    python -m benchmarks.depth [--models bert,gpt2] [--layers 6,48] [--modes inference,training] [--alone] [--out FILE]

Each figure is what the first call (in training: forward and backward) takes longer than the fastest of four later ones,
which compute the same, in a process of its own: with an empty cache, then in another process with the cache that it
left. `--alone` leaves the peer out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import child

RESULTS = Path(__file__).parent / "results"
LENGTH = 128


def _model(name: str, layers: int, batch: int) -> tuple[Any, dict[str, Any]]:
    """An encoder of the base size with random weights, and its inputs."""
    import torch

    from benchmarks import models

    models.declare_torchvision_operators()
    import transformers  # after the operators that its imports look for

    torch.manual_seed(0)
    if name == "bert":
        model: Any = transformers.BertModel(transformers.BertConfig(
            num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    else:
        model = transformers.GPT2Model(transformers.GPT2Config(
            n_layer=layers, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return model, {"input_ids": torch.arange(batch * LENGTH).remainder(1000).reshape(batch, LENGTH)}


def _first_call(peer: str, name: str, layers: int, mode: str, batch: int) -> None:
    """Time it, and print a line of JSON: its seconds, its processor time without child processes, the seconds of the
    fastest of four later calls, and those of each stage of ours."""
    import torch

    model, inputs = _model(name, layers, batch)
    model.train(mode == "training")
    if peer == "framesmith":
        import framesmith
        from framesmith.util import timing

        compiled = framesmith.compile(model)
    else:
        compiled = torch.compile(model, dynamic=False)
    def call() -> tuple[float, float]:
        start = time.perf_counter(), time.process_time()
        if mode == "training":
            compiled(**inputs).last_hidden_state.square().mean().backward()
        else:
            with torch.no_grad():
                compiled(**inputs)
        model.zero_grad(set_to_none=True)
        return time.perf_counter() - start[0], time.process_time() - start[1]

    seconds, processor = call()
    again = min(call()[0] for _ in range(4))
    stages = timing.by_stage(timing.stages()) if peer == "framesmith" else {}
    print(json.dumps({"seconds": seconds, "processor": processor, "again": again, "stages": stages}))


def figures(peers: list[str], names: list[str], depths: list[int], modes: list[str],
            batch: int) -> list[dict[str, Any]]:
    """A row for each peer, model, mode and depth: the cold and the warm first call."""
    rows = []
    for name, mode, layers, peer in itertools.product(names, modes, depths, peers):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            arguments = ("benchmarks.depth", "--one", peer, name, str(layers), mode, str(batch))
            cold, warm = [child.report_of(*arguments, environment=child.caches(Path(folder))) for _ in range(2)]
        rows.append({"model": name, "mode": mode, "layers": layers, "peer": peer, "cold": cold, "warm": warm})
        print({k: v for k, v in rows[-1].items() if k not in ("cold", "warm")}, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """A line for each peer, model and mode: the seconds at each depth, and how often the first depth's the last's
    are."""
    depths = list(dict.fromkeys(row["layers"] for row in rows))
    made = Table(title="what a first call takes longer than a later one, by number of equal layers (seconds)")
    for column in ("model", "mode", "peer", "cache", *[f"{d} layers" for d in depths], "last / first"):
        made.add_column(column)
    groups = itertools.product(*[dict.fromkeys(row[key] for row in rows) for key in ("model", "mode", "peer")])
    for (model, mode, peer), cache in itertools.product(groups, ("cold", "warm")):
        found = {row["layers"]: row[cache]["seconds"] - row[cache]["again"] for row in rows
                 if (row["model"], row["mode"], row["peer"]) == (model, mode, peer) and "again" in row[cache]}
        seconds = [found.get(d) for d in depths]
        ratio = f"{seconds[-1] / seconds[0]:.2f}" if seconds[0] and seconds[-1] else "–"
        made.add_row(model, mode, peer, cache, *[f"{s:.2f}" if s else "fails" for s in seconds], ratio)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--models", default="bert,gpt2")
    parser.add_argument("--layers", default="6,48")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "depth.json")
    options = parser.parse_args()
    if options.one:
        peer, name, layers, mode, batch = options.one
        _first_call(peer, name, int(layers), mode, int(batch))
        return
    from benchmarks import machine

    peers = ["framesmith"] if options.alone else ["framesmith", "torch.compile"]
    depths = [int(n) for n in options.layers.split(",")]
    rows = figures(peers, options.models.split(","), depths, options.modes.split(","), options.batch)
    options.out.write_text(json.dumps({
        "date": time.strftime("%Y-%m-%d"), "machine": machine.describe(), "load": os.getloadavg()[0],
        "batch": options.batch, "rows": rows}, indent=1) + "\n")
    Console(width=120).print(table(rows))
    for row in rows:
        for cache in ("cold", "warm"):
            stages = row[cache].get("stages")
            if stages:
                text = ", ".join(f"{k} {s:.2f}" for k, s in stages.items() if s > 0.005)
                print(f"{row['model']} {row['mode']} {row['layers']} {cache}: {text}")


if __name__ == "__main__":
    main()
