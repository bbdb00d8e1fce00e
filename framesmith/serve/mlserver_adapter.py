"""MLServer in front of a `Service`: the Open Inference Protocol by REST and gRPC, health, and metrics.

MLServer's own batching and workers are off: it joins requests by their number, not their rows, and its queue has no
end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from grpc import StatusCode
from mlserver import MLModel, MLServer
from mlserver.errors import MLServerError
from mlserver.grpc.utils import STATUS_CODE_MAPPING
from mlserver.handlers import custom_handler
from mlserver.settings import ModelSettings, Settings
from mlserver.types import (
    Datatype,
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    RequestInput,
)

from framesmith.serve.body_limit import BodyLimit
from framesmith.serve.canary import PROMOTED, ROLLED_BACK, Canary
from framesmith.serve.mlserver_grpc import ArrayServer
from framesmith.serve.protocol import answer, decode, metadata
from framesmith.serve.service import Service
from framesmith.util.errors import PackageError, RequestRefused

GRPC_STATUS = {503: StatusCode.UNAVAILABLE, 504: StatusCode.DEADLINE_EXCEEDED}
"""By HTTP's; MLServer knows the others."""
NOT_FOUND = 404
UNREAD = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
_servers: dict[str, PackageServer] = {}
"""By the name of the model: MLServer makes models itself, from their settings."""
_log = logging.getLogger("framesmith.serve")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Ports:
    """The addresses and limits of the server. `largest`: bytes of a request. `unread`: requests by gRPC that the
    process has not read yet; gRPC cancels more."""

    host: str = "127.0.0.1"
    http: int = 8080
    grpc: int = 8081
    metrics: int = 8082
    largest: int = 64 << 20
    unread: int = 256


class PackageModel(MLModel):
    """A package, as MLServer knows models."""

    @property  # type: ignore[override]
    def ready(self) -> bool:
        """From the end of the warm-up to the shutdown."""
        return _servers[self.name].service.ready

    @ready.setter
    def ready(self, value: bool) -> None:
        """MLServer says what `load` returned; the service knows better."""

    async def load(self) -> bool:
        """Start the service."""
        return await _servers[self.name].start_service()

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Return the answer to a request by REST. Raises `MLServerError` with HTTP's status."""
        return await self.infer_arrays(
            lambda: {x.name: _array(x) for x in payload.inputs},
            lambda found: InferenceResponse(**answer(self.name, found, [x.name for x in payload.outputs or ()])))

    async def infer_arrays(self, read: Callable[[], Mapping[str, np.ndarray]],
                           write: Callable[[Mapping[str, np.ndarray]], Answer]) -> Answer:
        """Return what `write` makes of the outputs for the inputs that `read` returns. Both may raise `RequestRefused`;
        raises `MLServerError` with HTTP's status."""
        try:
            return write(await _servers[self.name].service.infer(read()))
        except RequestRefused as e:
            raise MLServerError(str(e), e.status) from None

    @custom_handler(rest_path="/canary", rest_method="GET")
    async def canary(self) -> dict[str, Any]:
        """Return the report of the trial of a new version."""
        return self._canary().report()

    @custom_handler(rest_path="/canary/rollback")
    async def roll_back(self) -> dict[str, Any]:
        """Answer all requests by the version that served before, from the next one on."""
        return self._decided(ROLLED_BACK)

    @custom_handler(rest_path="/canary/promote")
    async def promote(self) -> dict[str, Any]:
        """Answer all requests by the new version, from the next one on."""
        return self._decided(PROMOTED)

    def _decided(self, state: str) -> dict[str, Any]:
        self._canary().decide(state, "by hand")
        return self._canary().report()

    def _canary(self) -> Canary:
        service = _servers[self.name].service
        if not isinstance(service, Canary):
            raise MLServerError("no new version is on trial", NOT_FOUND)
        return service

    async def metadata(self) -> MetadataModelResponse:
        """Names, dtypes and shapes; a size that varies is -1."""
        return MetadataModelResponse(**metadata(self.name, _servers[self.name].service.interface))


def _array(x: RequestInput) -> np.ndarray:
    datatype = x.datatype.value if isinstance(x.datatype, Datatype) else x.datatype
    return decode(x.name, datatype, x.shape, x.data.root)


class PackageServer(MLServer):
    """MLServer for one service."""

    def __init__(self, service: Service | Canary, name: str, ports: Ports) -> None:
        settings = Settings(
            debug=False, parallel_workers=0, server_name="framesmith", host=ports.host, http_port=ports.http,
            grpc_port=ports.grpc, metrics_port=ports.metrics, grpc_max_message_length=ports.largest,
            load_models_at_startup=False)
        settings._custom_grpc_server_settings = dict.fromkeys(UNREAD, ports.unread)
        super().__init__(settings)
        self._grpc_server = ArrayServer(settings, self._data_plane, self._model_repository_handlers)
        self.service, self._name = service, name
        self.failed = False
        self._stopping: asyncio.Task[None] | None = None
        _servers[name] = self
        self._rest_server._app.add_middleware(BodyLimit, limit=ports.largest)

    async def serve(self) -> None:
        """Serve until a signal comes, or the service cannot be started, which `failed` tells."""
        await self.start([ModelSettings(name=self._name, implementation=PackageModel)])

    async def start_service(self) -> bool:
        """Start the service and return whether it is ready; otherwise stop the server."""
        try:
            await self.service.start()
        except PackageError as e:
            if self._stopping is None:
                _log.error("%s", e)
                self.failed = True
                self._stopping = asyncio.create_task(self.stop())
        return self._stopping is None

    async def stop(self, sig: int | None = None) -> None:
        """Answer what has been accepted, then stop listening."""
        self._stopping = self._stopping or asyncio.current_task()
        await self.service.stop()
        await super().stop(sig)


def serve(service: Service | Canary, name: str, ports: Ports) -> int:
    """Serve it until SIGTERM or SIGINT; the exit status."""
    STATUS_CODE_MAPPING.update(GRPC_STATUS)

    async def main() -> bool:
        server = PackageServer(service, name, ports)
        logging.getLogger("mlserver.grpc").setLevel(logging.CRITICAL)  # it writes a traceback for each refusal
        await server.serve()
        return server.failed

    return int(asyncio.run(main()))
