"""Which rows there are, the most wanted first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.gpu.models import INFERENCE_ONLY, named
from benchmarks.gpu.row import ABLATION, KERNELS, Row
from benchmarks.gpu.task import PRECISIONS

KINDS = ("inference", "training")
SLOW_TO_COMPILE = ("rnn", "mobilenetv3", "swin", "diffusion", "resnet50", "convnext", "t5", "whisper")
"""They begin before the others of their group, so that the last process does not run alone."""
TUNED = ("bert_b16", "gpt2", "llama", "resnet50", "vit", "mobilenetv3", "convnext", "decoding")
"""Where templates have something to choose."""
ABLATED = ("bert_b16", "gpt2", "resnet50", "convnext", "bert_b1", "decoding")


def of(models: Iterable[str], kind: str, precision: str, modes: Iterable[str], peers: bool,
       rounds: int) -> Iterator[Row]:
    """A row a model that can be run so, the slowest to compile first."""
    found = [model for model in models if kind == "inference" or model not in INFERENCE_ONLY]
    for model in sorted(found, key=lambda model: (SLOW_TO_COMPILE.index(model) if model in SLOW_TO_COMPILE
                                                  else len(SLOW_TO_COMPILE))):
        yield Row(model, kind == "training", precision, tuple(modes), peers, rounds)


def everything(peers: bool, rounds: int) -> list[Row]:
    """All that the tables show: both precisions in the modes without tuning, then what options bring, then what
    templates bring."""
    rest = [model for model in named() if model not in TUNED]
    plain, tuned = ("default", "reduce-overhead"), ("max-autotune",)
    return [
        *of(named(), "training", "bf16", ("default",), peers, rounds),
        *of(named(), "inference", "bf16", plain, peers, rounds),
        kernels(),
        *of(named(), "inference", "tf32", plain, peers, rounds),
        *of(named(), "training", "tf32", ("default",), peers, rounds),
        *of(ABLATED, "inference", "bf16", (ABLATION,), False, rounds),
        *[row for models in (TUNED, rest) for precision in PRECISIONS
          for row in of(models, "inference", precision, tuned, peers, rounds)],
    ]


def kernels() -> Row:
    """Memory-bound kernels against a copy."""
    return Row(KERNELS, modes=("default",), peers=False)


def spelled(texts: Iterable[str], peers: bool, rounds: int) -> list[Row]:
    """Rows in the order of `texts`: "kernels", or KIND:PRECISION:MODE,MODE:MODEL,MODEL, of which the last part may be
    left out for all.

    Raises ValueError for a text that names none.
    """
    found: list[Row] = []
    for text in texts:
        if text == KERNELS:
            found.append(kernels())
            continue
        kind, precision, modes, *models = text.split(":")
        names = models[0].split(",") if models else list(named())
        if kind not in KINDS or precision not in PRECISIONS or set(names) - set(named()):
            raise ValueError(f"no such row: {text}")
        found += of(names, kind, precision, modes.split(","), peers and modes != ABLATION, rounds)
    return found
