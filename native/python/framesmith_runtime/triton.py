"""A package behind Triton Inference Server's Python backend: `python -m framesmith triton` writes a model repository
whose `model.py` takes this class. Requests that Triton has put into one batch, and that have the same other sizes, are
one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as backend

from framesmith_runtime import RuntimeFailure, load


class TritonPythonModel:
    """One instance of a package, as the backend makes, calls and ends it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the package beside `model.py`; the server reports what is wrong with it."""
        self._package = load(Path(args["model_repository"], args["model_version"], "model.fsm"))
        manifest = self._package.model.manifest
        self._inputs, self._outputs = ([t["name"] for t in manifest[part]] for part in ("inputs", "outputs"))
        self._joins = json.loads(args["model_config"])["max_batch_size"] > 0

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return an answer, or an error, for each request, in order."""
        given = [[backend.get_input_tensor_by_name(r, name).as_numpy() for name in self._inputs] for r in requests]
        groups: dict[Any, list[int]] = {}
        for k, arrays in enumerate(given):
            groups.setdefault(tuple(x.shape[1:] for x in arrays) if self._joins else k, []).append(k)
        answers: dict[int, Any] = {}
        for members in groups.values():
            answers.update(zip(members, self._run([given[k] for k in members]), strict=True))
        return [self._response(request, answers[k]) for k, request in enumerate(requests)]

    def _run(self, group: list[list[np.ndarray]]) -> list[Any]:
        """Return the outputs of each request of a group, or what was wrong with it."""
        try:
            if len(group) == 1:
                return [self._package(*group[0])]
            ends = np.cumsum([arrays[0].shape[0] for arrays in group])[:-1]
            outputs = self._package(*[np.concatenate(parts) for parts in zip(*group, strict=True)])
            return list(zip(*[np.split(x, ends) for x in outputs], strict=True))
        except RuntimeFailure as e:
            return [str(e)] if len(group) == 1 else [self._run([arrays])[0] for arrays in group]

    def _response(self, request: Any, answer: Any) -> Any:
        if isinstance(answer, str):
            error = backend.TritonError(answer, backend.TritonError.INVALID_ARG)
            return backend.InferenceResponse(output_tensors=[], error=error)
        wanted = request.requested_output_names()
        return backend.InferenceResponse(output_tensors=[
            backend.Tensor(name, np.ascontiguousarray(x))
            for name, x in zip(self._outputs, answer, strict=True) if name in wanted])
