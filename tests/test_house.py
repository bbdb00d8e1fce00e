"""The house: who may import whom, what may never be imported, and how much code a folder may have."""

import ast
import functools
import io
import subprocess
import sys
import tokenize
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "framesmith"
FILES = sorted(PACKAGE.rglob("*.py"))
# From the top of the house down; rooms of one storey do not import each other.
HOUSE = [
    {"util"}, {"config"}, {"symbolic"}, {"graph"}, {"prims"}, {"fake"}, {"capture"}, {"autograd", "loops", "runtime"},
    {"lower"},
    {"schedule"}, {"codegen"}, {"tuning"}, {"passes", "targets"}, {"capture_cache"}, {"pipeline"},
    {"backends", "extensions"}, {"hot_sizes", "background", "agreement", "ledger", "frames"}, {"code_state"},
    {"capture_attempts", "verdicts"}, {"graph_compiler"}, {"compiler"},
    {"export", "shared_variants"}, {"distributed"}, {"package"}, {"tools", "onnx"}, {"wrapping", "buckets"},
    {"api"}, {"inspection"}, {"exc", "testing", "peers", "cache", "drop_in", "dynamo_backend"},
    {"takeover", "running", "site", "bench", "serve"},
    {"reporting", "cache_command"},
    {"__init__", "__main__"},
]
STOREY = {room: n for n, rooms in enumerate(HOUSE) for room in rooms}
COMPILED = {"_C"}
BANNED = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "torch._decomp", "torch._refs",
    "torch._prims",
    "torch.fx.experimental.symbolic_shapes", "torch.fx.experimental.proxy_tensor", "torch.export",
    "torch._higher_order_ops", "torch.jit",
    "torch.compile",
)
PEERS = PACKAGE / "peers.py"
"""The contenders of a benchmark: it calls other compilers, and nothing but the benchmark imports it."""
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
CPP = ("csrc/*.cpp", "csrc/*.h", "codegen/cpp/*.h", "package/code/*")
BUDGET = {
    "util": 1175, "symbolic": 1955, "graph": 2135, "prims": 2990, "fake": 4840, "capture": 20625, "autograd": 2610,
    "loops": 1490, "runtime": 2245, "lower": 5400, "schedule": 2300, "codegen": 4790, "tuning": 490, "tools": 2630,
    "capture_cache": 1125, "distributed": 1350, "export": 2945, "onnx": 2340, "package": 815, "serve": 1170, "site": 50,
    ".": 3690, "csrc": 12385,
}
"""Lines of code that each folder may have, without blank lines, comments and docstrings; of C++ all lines count."""


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


@functools.cache
def imports_of(path):
    """(line, dotted module, is inside a function) of each import, for type checkers alone or not; a `from` import also
    names what it takes."""
    tree, found = ast.parse(path.read_text()), []
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))
              for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((node.lineno, alias.name, id(node) in inside))
        elif isinstance(node, ast.ImportFrom):
            base = [node.module or ""]
            if node.level:
                here = ("framesmith", *path.relative_to(PACKAGE).parts)
                base = [*here[: -node.level], *([node.module] if node.module else [])]
            for alias in node.names:
                found.append((node.lineno, ".".join([*base, alias.name]), id(node) in inside))
    return found


def own_module(dotted):
    """The parts below `framesmith` of the module that an import loads, or None for another package's."""
    parts = dotted.split(".")
    if parts[0] != "framesmith":
        return None
    while parts[1:]:
        path = PACKAGE.joinpath(*parts[1:])
        if path.with_suffix(".py").exists() or path.is_dir():
            break
        if parts[1] in COMPILED:
            return None
        parts.pop()
    return tuple(parts[1:]) or ("__init__",)


def test_a_folder_imports_only_what_stands_above_it():
    wrong = []
    for path in FILES:
        room = module_of(path)[0]
        assert room in STOREY, f"{path} has no place in the house"
        for line, dotted, _ in imports_of(path):
            target = own_module(dotted)
            if target and target[0] != room and STOREY[target[0]] >= STOREY[room]:
                wrong.append(f"{path.relative_to(PACKAGE)}:{line} imports {dotted}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles():
    graph = {module_of(p): {t for _, d, _ in imports_of(p) if (t := own_module(d)) and t != module_of(p)}
             for p in FILES}
    done, path = set(), []

    def visit(module):
        if module in done or module not in graph:
            return
        assert module not in path, " -> ".join(".".join(m) for m in [*path[path.index(module):], module])
        path.append(module)
        for target in sorted(graph[module]):
            visit(target)
        path.pop()
        done.add(module)

    for module in graph:
        visit(module)


def test_no_framesmith_import_inside_a_function():
    wrong = [f"{p.relative_to(PACKAGE)}:{line} imports {d}" for p in FILES for line, d,
             inside in imports_of(p) if inside and own_module(d)]
    assert not wrong, "\n".join(wrong)


def is_banned(dotted):
    return any(dotted == b or dotted.startswith(b + ".") for b in BANNED)


def attribute_chains(tree):
    for node in ast.walk(tree):
        names, inner = [], node
        while isinstance(inner, ast.Attribute):
            names.append(inner.attr)
            inner = inner.value
        if names and isinstance(inner, ast.Name) and inner.id == "torch":
            yield node.lineno, ".".join(["torch", *reversed(names)])


def test_source_has_no_banned_import():
    wrong = []
    for path in FILES:
        if path == PEERS:
            continue
        wrong += [f"{path.relative_to(PACKAGE)}:{line} {d}" for line, d, _ in imports_of(path) if is_banned(d)]
        wrong += [f"{path.relative_to(PACKAGE)}:{line} {d}" for line, d, _ in imports_of(path)
                  if own_module(d) == ("peers",) and path.stem != "bench"]
        wrong += [f"{path.relative_to(PACKAGE)}:{line} {d}" for line,
                  d in attribute_chains(ast.parse(path.read_text())) if is_banned(d)]
    assert not wrong, "\n".join(wrong)


LOADED = """
import sys
{first}
{then}
banned = {banned!r}
print([m for m in sorted(sys.modules) if any(m == b or m.startswith(b + '.') for b in banned)])
"""
COMPILE = """
import framesmith
framesmith.compile(lambda x: torch.relu(x) + x.sum())(torch.randn(4, 5))
framesmith.compile(torch.nn.Linear(5, 3))(torch.randn(4, 5))
"""
TRAIN = """
import framesmith, torch.nn.functional as F
from torch.nn import BatchNorm2d, Conv2d, MaxPool2d, ReLU, Sequential
net = Sequential(Conv2d(3, 8, 3), BatchNorm2d(8), ReLU(), MaxPool2d(2), Conv2d(8, 4, 1))
classes, pairs = torch.zeros(2, 7, 7, dtype=torch.int64), torch.tensor([0, 1])
def loss(x):
    y = net(x)
    flat = y.flatten(1)
    named = F.cross_entropy(y, classes) + F.cross_entropy(flat, pairs) + F.nll_loss(flat.log_softmax(1), pairs)
    coins = F.binary_cross_entropy(flat.sigmoid(), torch.ones_like(flat)) + F.binary_cross_entropy_with_logits(y, y)
    return named + coins + F.mse_loss(y, y * 2) + F.huber_loss(y, y * 3) + flat[pairs, pairs].sum()
framesmith.compile(loss, fullgraph=True)(torch.randn(2, 3, 16, 16)).backward()
"""
EXPORT = """
import framesmith
from torch.nn import BatchNorm2d, Conv2d, Flatten, MaxPool2d, ReLU, Sequential
net = Sequential(Conv2d(3, 8, 3), BatchNorm2d(8), ReLU(), MaxPool2d(2), Flatten()).eval()
program = framesmith.export(net, (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: framesmith.Dim("batch")},))
program.verify()
"""
IMPORT = "import importlib\nfor name in {!r}: importlib.import_module(name)"
OPTIONAL = {"framesmith.serve.mlserver_adapter": "mlserver", "framesmith.serve.mlserver_grpc": "mlserver",
            "framesmith.serve.ray_adapter": "ray"}
"""Modules that cannot be imported without a package of an extra."""
NAMES = [name for p in FILES if module_of(p)[-1] not in ("__init__", "__main__")
         if (name := ".".join(("framesmith", *module_of(p)))) not in OPTIONAL or find_spec(OPTIONAL[name])]
LIBRARIES = {
    "framesmith.onnx": "import torch, onnx_ir, onnxscript.optimizer, onnx_ir.tensor_adapters",
    "framesmith.distributed.dtensors": "import torch, torch.distributed.tensor",
}
"""Modules whose libraries load SymPy, and what is imported first: nothing else imports them."""
OF_LIBRARIES = {part: [name for name in NAMES if name.startswith(part)] for part in LIBRARIES}
EVERY_MODULE = IMPORT.format([name for name in NAMES if not name.startswith(tuple(LIBRARIES))])


@functools.cache
def loaded_banned(then, first="import torch"):
    code = LOADED.format(first=first, then=then, banned=(*BANNED, "sympy"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=300)
    assert not done.returncode, done.stderr
    return set(ast.literal_eval(done.stdout.strip().splitlines()[-1]))


@pytest.mark.parametrize("program", [EVERY_MODULE, COMPILE, TRAIN, EXPORT],
                         ids=["import", "compile", "train", "export"])
def test_nothing_banned_is_loaded_beyond_what_torch_itself_loads(program):
    assert not loaded_banned(program) - loaded_banned("")


@pytest.mark.parametrize("part", LIBRARIES)
def test_nothing_banned_is_loaded_beyond_what_libraries_load(part):
    libraries = LIBRARIES[part]
    assert not loaded_banned(IMPORT.format(OF_LIBRARIES[part]), libraries) - loaded_banned("", libraries)


def code_lines(text):
    """How many lines hold code: neither blank, nor a comment, nor a part of a docstring."""
    documents = {line for n in ast.walk(ast.parse(text))
                 if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
                 for line in range(n.lineno, n.end_lineno + 1)}
    rows = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            rows.update(range(token.start[0], token.end[0] + 1))
    return len(rows - documents)


def test_each_folder_keeps_its_budget():
    counts = Counter()
    for path in FILES:
        counts[module_of(path)[0] if path.parent != PACKAGE else "."] += code_lines(path.read_text())
    counts["csrc"] = sum(len(p.read_text().splitlines()) for pattern in CPP for p in PACKAGE.glob(pattern))
    print("\n".join(f"{room:10} {count:6} of {BUDGET[room]:6}" for room, count in counts.items()))
    assert counts.keys() == BUDGET.keys()
    assert all(count <= BUDGET[room] for room, count in counts.items()), counts


def test_lines_have_at_most_120_columns():
    """Of what no linter holds to it: C++, and the files that say how to build and test."""
    files = [*(p for pattern in CPP for p in PACKAGE.glob(pattern)),
             *(PACKAGE.parent / name for name in ("Makefile", "pyproject.toml"))]
    wrong = [f"{p.relative_to(PACKAGE.parent)}:{n}" for p in files
             for n, line in enumerate(p.read_text().splitlines(), 1) if len(line) > 120]
    assert not wrong, "\n".join(wrong)


def test_no_bare_except():
    wrong = [f"{p.relative_to(PACKAGE)}:{n.lineno}" for p in FILES for n in ast.walk(ast.parse(p.read_text()))
             if isinstance(n, ast.ExceptHandler) and n.type is None]
    assert not wrong, "\n".join(wrong)
