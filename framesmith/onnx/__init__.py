"""`framesmith.onnx.export(model, path, args, ...)`: a model as an ONNX file. Needs the packages of the extra `onnx`."""

import importlib.util

if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
    raise ModuleNotFoundError(f"framesmith.onnx needs {' and '.join(missing)}: pip install 'framesmith[onnx]'")

from framesmith.onnx.exporter import NoOnnxForm, export, initial_state  # noqa: E402

__all__ = ["NoOnnxForm", "export", "initial_state"]
