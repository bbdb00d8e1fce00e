"""Requests by gRPC between their bytes and arrays. MLServer's own way makes a Python number of each element."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from grpc import aio
from mlserver.grpc import dataplane_pb2 as messages
from mlserver.grpc.converters import InferTensorContentsConverter
from mlserver.grpc.dataplane_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from mlserver.grpc.interceptors import PromServerInterceptor
from mlserver.grpc.model_repository import ModelRepositoryServicer
from mlserver.grpc.model_repository_pb2_grpc import add_ModelRepositoryServiceServicer_to_server
from mlserver.grpc.server import GRPCServer
from mlserver.grpc.servicers import InferenceServicer
from mlserver.grpc.utils import handle_mlserver_error
from mlserver.types import Datatype, TensorData

from framesmith.serve.interface import BAD_REQUEST
from framesmith.serve.protocol import DATATYPES, decode, decode_raw, wanted
from framesmith.util.errors import RequestRefused


def arrays_of(request: Any) -> dict[str, np.ndarray]:
    """Return the inputs of a request by name: of `raw_input_contents`, in order, where an input has no contents of its
    own. Raises `RequestRefused`."""
    raw = list(reversed(request.raw_input_contents))
    arrays = {}
    for x in request.inputs:
        if raw and not x.HasField("contents"):
            arrays[x.name] = decode_raw(x.name, x.datatype, x.shape, raw.pop())
        else:
            arrays[x.name] = decode(x.name, x.datatype, x.shape, InferTensorContentsConverter.to_types(x.contents).root)
    if raw:
        raise RequestRefused(BAD_REQUEST, f"the request has {len(request.raw_input_contents)} raw contents for "
                                          f"{len(request.inputs)} inputs")
    return arrays


def response(request: Any, outputs: Mapping[str, np.ndarray]) -> Any:
    """Return the answer with the outputs that the request asks for: raw where its inputs are raw, and for float16,
    which has no other form. Raises `RequestRefused`."""
    arrays = wanted(outputs, [x.name for x in request.outputs])
    raw = bool(request.raw_input_contents) or any(x.dtype == np.float16 for x in arrays.values())
    made = messages.ModelInferResponse(model_name=request.model_name, model_version=request.model_version,
                                       id=request.id)
    for name, x in arrays.items():
        tensor = made.outputs.add(name=name, datatype=DATATYPES[x.dtype.name], shape=x.shape)
        if raw:
            made.raw_output_contents.append(x.tobytes())
        else:
            data = TensorData(x.ravel().tolist())
            tensor.contents.CopyFrom(InferTensorContentsConverter.from_types(data, Datatype(tensor.datatype)))
    return made


class ArrayServicer(InferenceServicer):
    """MLServer's, but for requests of inference, which pass arrays."""

    @handle_mlserver_error
    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        """Return the answer to a request. Raises `MLServerError`."""
        async with self._data_plane._infer_contextmanager(request.model_name, request.model_version) as model:
            return await model.infer_arrays(lambda: arrays_of(request), lambda outputs: response(request, outputs))


class ArrayServer(GRPCServer):
    """MLServer's server of gRPC with our servicer."""

    def _create_server(self) -> Any:
        self._server = aio.server(ThreadPoolExecutor(1), options=self._get_options(),
                                  interceptors=[PromServerInterceptor(enable_handling_time_histogram=True)])
        add_GRPCInferenceServiceServicer_to_server(
            ArrayServicer(self._data_plane, self._model_repository_handlers), self._server)
        add_ModelRepositoryServiceServicer_to_server(
            ModelRepositoryServicer(self._model_repository_handlers), self._server)
        self._server.add_insecure_port(f"{self._settings.host}:{self._settings.grpc_port}")
        return self._server
