"""Ray Serve in front of services: replicas on one or many machines, each with a `Service` of its own.

    serve run framesmith.serve.ray_adapter:application package=/models/model.fsm name=model

Ray's proxy speaks HTTP; the routes are those of the Open Inference Protocol. Ray sends requests to replicas that have
been warmed up, counts and replaces them; each batches what it is sent.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from ray import serve
from starlette.responses import Response

from framesmith.serve.interface import BAD_REQUEST
from framesmith.serve.metrics import Metrics
from framesmith.serve.protocol import answer, decode, metadata
from framesmith.serve.service import Options, Service
from framesmith.util.errors import RequestRefused

NOT_FOUND = 404
app = FastAPI()


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


@serve.deployment
@serve.ingress(app)
class Replica:
    """One replica. Ray calls it ready when `__init__` has ended."""

    async def __init__(self, package: str, name: str, options: Options) -> None:  # type: ignore[misc]
        self._service, self._name = Service(package, options, Metrics()), name
        await self._service.start()

    @app.get("/v2/health/live")
    @app.get("/v2/health/ready")
    async def ready(self) -> Response:
        """Return an empty answer."""
        return Response()

    @app.get("/v2/models/{name}/ready")
    async def model_ready(self, name: str) -> Response:
        """Return an empty answer, if this is the model."""
        return Response(status_code=200 if name == self._name else NOT_FOUND)

    @app.get("/v2/models/{name}")
    async def metadata(self, name: str) -> Response:
        """Names, datatypes and shapes."""
        if name != self._name:
            return _error(NOT_FOUND, f"the model is {self._name}, not {name}")
        return JSONResponse(metadata(name, self._service.interface))

    @app.post("/v2/models/{name}/infer")
    async def infer(self, name: str, request: Request) -> Response:
        """Return the answer, or what is wrong with the request."""
        if name != self._name:
            return _error(NOT_FOUND, f"the model is {self._name}, not {name}")
        try:
            body = await request.json()
            arrays = {x["name"]: decode(x["name"], x["datatype"], x["shape"], x["data"]) for x in body["inputs"]}
            wanted = [x["name"] for x in body.get("outputs", ())]
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            return _error(BAD_REQUEST, f"this is no request: {type(e).__name__}: {e}")
        except RequestRefused as e:
            return _error(e.status, str(e))
        try:
            return JSONResponse({"id": body.get("id"), **answer(name, await self._service.infer(arrays), wanted)})
        except RequestRefused as e:
            return _error(e.status, str(e))

    async def check_health(self) -> None:
        """Ray replaces a replica for which this raises."""
        if not self._service.ready:
            raise RuntimeError("the service has stopped")


def application(arguments: Mapping[str, Any]) -> serve.Application:
    """Return the application for `serve run` and `serve deploy`. `package`: a path on every machine; `name`: of the
    model in requests; `replicas`: their number; other arguments, from a file, which has types, are fields of
    `Options`."""
    given = dict(arguments)
    package, name, replicas = given.pop("package"), given.pop("name", "model"), int(given.pop("replicas", 1))
    deployment: Any = Replica
    return deployment.options(num_replicas=replicas).bind(package, name, replace(Options(), **given))
