"""The sections on ONNX: the operators that have a form in it, and what the nets found."""

from __future__ import annotations

from collections import defaultdict

from benchmarks.document.markers import table
from benchmarks.document.summary import saved
from framesmith.onnx.covered import covered

ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
KINDS = ("equal", "different", "failed", "no kernel", "no form", "not exported")


def operators() -> str:
    """Print a row for each operator, with ONNX's operators that it is made of."""
    parts = []
    families: dict[str, list[list[str]]] = defaultdict(list)
    for family, name, made in covered():
        families[family].append([f"`{name}`", " ".join(made) or "a constant"])
    for family, rows in families.items():
        parts.append(f"### {family.capitalize()}\n\n{table([f'operator ({len(rows)})', 'ONNX'], rows)}")
    return "\n\n".join(parts)


def figures() -> str:
    """Print the shares of models and operators, and those that are not equal."""
    rows, wrong = [], []
    for suite in ("transformers", "timm"):
        results = saved(f"onnx-{suite}")
        found = results["summary"]
        rows.append([suite, *(str(found[k]) for k in ("models", "exported", "with a dynamic batch", *ENGINES))])
        for name, row in results["models"].items():
            wrong += [f"- `{name}`, export: {row['export']}: {_short(row)}"] if row["export"] != "exported" else [
                f"- `{name}`, {title}: {row[engine]}: {row[f'{engine} found'][:160]}"
                for engine, title in ENGINES.items() if row[engine] != "equal"]
    versions = f"ONNX Runtime {results['onnxruntime']}, OpenVINO {results['openvino']}, PyTorch {results['torch']}"
    heads = ["library", "models", "exported", "dynamic batch", *(f"equal in {title}" for title in ENGINES.values())]
    return "\n\n".join([f"{versions}.", table(heads, rows), "\n".join(wrong), _operators_found()])


def _short(row: dict[str, str]) -> str:
    return (row.get("found") or row.get("refused") or "")[:160]


def _operators_found() -> str:
    results = saved("onnx-operators")
    found = results["summary"]
    text = (f"Of {found['operators']} operators of `op_db`, {found['with a form']} have a form in ONNX. ONNX Runtime "
            f"has no kernel for {found['without a kernel']} of these, and is equal to eager in all samples of "
            f"{found['equal']}. `{results['run']}`:")
    counts = table(["of samples", *KINDS], [["", *(f"{found['samples'][k]:,}" for k in KINDS)]])
    wrong = [f"- `{name}`: {kind}: {row['found'][kind][:160]}" for name, row in results["operators"].items()
             for kind in ("different", "failed") if kind in row]
    return "\n\n".join([text, counts, "\n".join(wrong)])
