"""The options of one compilation: a frozen value that is passed down, never a global that is written."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from framesmith.util import log
from framesmith.util.errors import FramesmithError
from framesmith.util.inductor import known_names, own_options

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
RECORDING = frozenset({"reduce-overhead", "max-autotune"})
NUMERICS = ("default", "eager")


@dataclass(frozen=True)
class Config:
    """The user's options. Each field can be set by `FRAMESMITH_<NAME>` in the environment.

    What is compiled:
    - `fullgraph`: raise `exc.Unsupported` at the first graph break.
    - `dynamic`: None: sizes of tensors that have changed are symbols from the next compile on, and dynamic Python
      numbers become inputs of the graph; True: all sizes except 0 and 1 are symbols from the first compile on; False:
      each size and each number makes a variant.
    - `data_symbols`: sizes and integers computed from data (`nonzero`, `x[mask]`, `.item()`) are symbols of the graph;
      otherwise they break it.
    - `max_variants`: the limit of compiled variants of one code object, for each module that it is called with; further
      calls run in plain Python.
    - `hot_sizes`: the number of sizes of a dynamic graph that get specialised kernels if they dominate its calls and
      these are measured to be faster; another thread compiles them.
    - `keep_graphless`: keep variants without tensor operations; otherwise a code object that twice had none runs in
      plain Python.
    - `max_instructions`: a frame that takes more interpreted instructions to capture runs in plain Python.
    - `standard_library`: capture frames of the standard library, too.
    - `background`: calls run in eager while code is compiled by another thread; `deadline`: the seconds that a call
      waits for its code.
    - `agreement`: the seconds that a compile waits for the other processes of the default process group to compile the
      same; one that does not is named by `exc.DivergedRanks`; 0: they are not compared.
    - `suppress_errors`: after an internal error, run the frame in eager, with a warning.

    Where it is kept and what is reported:
    - `cache`: use the disk cache; `cache_dir`: its folder, None for the user's; `cache_limit`: its maximal size in
      bytes, checked once a day, with the least recently used entries removed first, 0 for no limit.
    - `packed_limit`: the maximal size in bytes of packed weights in the cache, which other processes map instead of
      packing (see docs/runtime.md); 0: none are kept.
    - `keep_sizes`: keep in the cache which sizes have changed, so that other processes have symbols from their first
      compile on.
    - `keep_captures`: keep captures in the cache, so that other processes need not capture the same functions again
      (see docs/capture-cache.md).
    - `warn`: tell the user, once for each place, what runs in plain Python.
    - `progress`: show compiles that take longer than a second, if stderr is a terminal.

    How code is generated:
    - `numerics`: "eager" rounds each operator's bfloat16 and float16 results before the next operator reads them, as
      eager does; by default values computed in float32 stay so within a kernel. Random numbers are eager's in both
      cases.
    - `fusion`: fuse loop nests; `fusion_limit`: only the first so many of a graph, None for all.
    - `vectorize`: use vectors on the CPU; `tiling`: on a GPU, use two-dimensional tiles where accesses are contiguous
      along two axes.
    - `parallel_threshold`: elements of work in a kernel below which it runs on one thread; otherwise kernels use as
      many threads as torch.
    - `library_choice`: choose kernels of contractions by measurement, otherwise eager's; `packing`: pack frozen
      weights.
    - `freezing`: evaluate expressions of parameters once; `weight_caching`: keep their values (casts, packed weights)
      between calls.
    - `sharing`: merge kernels that differ only in sizes (in the modes that measure kernels: only in places of memory).
    - `partitioner`: choose which values a forward saves; otherwise all that the backward reads; `activation_budget`:
      the fraction, from 0 to 1, of these bytes that may be saved, while the rest is recomputed.
    - `scoped_memory`: allocate large values of a graph from their first write to their last use, and let inputs that
      the caller releases die as early; otherwise values are in one arena (graphs of training always have this on).
    - `recordings`: in the modes "reduce-overhead" and "max-autotune", the number of CUDA graphs kept for one graph (by
      sizes, addresses of inputs and stream); the least recently used is dropped first, 0: none.
    - `compiler`: the C++ compiler; `compiler_flags`: further flags; `build_jobs`: the number of translation units
      compiled at once.
    - `without`: names of passes (see `pipeline.PASSES`) to skip, separated by commas.
    - `verify`: check the invariants of graphs and of the scheduled program after every pass.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    data_symbols: bool = True
    backend: str | Callable[..., Any] = "native"
    mode: str = "default"
    cache_dir: str | None = None
    cache_limit: int = 4 << 30
    packed_limit: int = 2 << 30
    cache: bool = True
    fusion: bool = True
    fusion_limit: int | None = None
    library_choice: bool = True
    packing: bool = True
    vectorize: bool = True
    freezing: bool = True
    weight_caching: bool = True
    tiling: bool = True
    sharing: bool = True
    without: str = ""
    partitioner: bool = True
    activation_budget: float = 1.0
    scoped_memory: bool = False
    numerics: str = "default"
    recordings: int = 16
    max_variants: int = 8
    hot_sizes: int = 0
    keep_sizes: bool = True
    keep_captures: bool = True
    parallel_threshold: int = 32768
    compiler: str | None = None
    compiler_flags: str = ""
    build_jobs: int | None = None
    verify: bool = False
    suppress_errors: bool = True
    max_instructions: int = 2_000_000
    keep_graphless: bool = False
    background: bool = False
    deadline: float = 0.0
    agreement: float = 0.0
    standard_library: bool = False
    warn: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise FramesmithError(f"unknown mode {self.mode!r}; known: {', '.join(MODES)}")
        if self.numerics not in NUMERICS:
            raise FramesmithError(f"unknown numerics {self.numerics!r}; known: {', '.join(NUMERICS)}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
        """Return the defaults, overridden by the environment's values, then by `overrides` that are not None."""
        env = os.environ if environ is None else environ
        values = {f.name: _READERS[str(f.type)](f.name, text) for f in fields(cls)
                  if (text := env.get("FRAMESMITH_" + f.name.upper())) is not None}
        names = frozenset(f.name for f in fields(cls))
        unknown = overrides.keys() - names
        if unknown:
            close = {c for name in unknown for c in difflib.get_close_matches(name, (*names, *known_names()), 2)}
            raise FramesmithError(f"unknown options {sorted(unknown)}" + (f"; did you mean {', '.join(sorted(close))}?"
                                                                          if close else ""))
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)

    @classmethod
    def asked(cls, options: Mapping[str, Any], **given: Any) -> Config:
        """Return the configuration that `compile` was asked for: `options` by our names or torch.compile's, and its
        other arguments, which take precedence."""
        own, ignored = own_options(dict(options), frozenset(f.name for f in fields(cls)))
        if ignored:
            text = ", ".join(sorted(ignored))
            log.warn_once(f"options:{text}", f"framesmith: options of torch.compile's that change nothing here: {text}")
        if given.get("backend") == "cudagraphs":
            own.setdefault("mode", "reduce-overhead")
        return cls.from_env(**{**own, **{name: value for name, value in given.items() if value is not None}})

    def code_key(self) -> str:
        """Return the options that change generated code, as text for cache keys."""
        c = self
        return (f"{c.fusion} {c.vectorize} {c.scoped_memory} {c.parallel_threshold} {c.build_jobs} {c.numerics} "
                f"{c.tiling} {c.sharing} {c.without} {c.fusion_limit}")

    def capture_key(self) -> str:
        """Return the options that change what is captured, and code, as text for cache keys."""
        return " ".join([f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name not in _ASIDE])

    @property
    def left_out(self) -> frozenset[str]:
        """The names of passes that do not run."""
        return frozenset(filter(None, map(str.strip, self.without.split(","))))

    @property
    def rounding(self) -> bool:
        """Return whether 16-bit results are rounded between fused operators."""
        return self.numerics == "eager"

    @property
    def autotune(self) -> bool:
        """Return whether kernels are chosen by measurement on the device."""
        return self.mode.startswith("max-autotune")

    @property
    def records(self) -> bool:
        """Return whether calls on a CUDA device are recorded."""
        return self.recordings > 0 and self.mode in RECORDING

    def with_(self, **changes: Any) -> Config:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)


_ASIDE = frozenset({"cache_dir", "cache", "packed_limit", "max_variants", "keep_sizes", "keep_captures", "verify",
                    "suppress_errors", "warn", "progress"})
"""Options of where things are kept and what is told."""

_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _bool(name: str, text: str) -> bool:
    value = _TRUTH.get(text.strip().lower())
    if value is None:
        raise FramesmithError(f"FRAMESMITH_{name.upper()}={text!r} is neither true nor false")
    return value


def _optional_bool(name: str, text: str) -> bool | None:
    return None if text.strip().lower() in ("", "none", "auto") else _bool(name, text)


def _int(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise FramesmithError(f"FRAMESMITH_{name.upper()}={text!r} is not an integer") from None


def _optional_int(name: str, text: str) -> int | None:
    return None if text.strip().lower() in ("", "none", "auto") else _int(name, text)


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FramesmithError(f"FRAMESMITH_{name.upper()}={text!r} is not a number") from None


def _text(name: str, text: str) -> str:
    return text


# One row per declared type of a field.
_READERS: dict[str, Callable[[str, str], Any]] = {
    "bool": _bool,
    "bool | None": _optional_bool,
    "int": _int,
    "float": _float,
    "int | None": _optional_int,
    "str": _text,
    "str | None": _text,
    "str | Callable[..., Any]": _text,
}
