"""An ASGI application's requests, refused where their body is too large or compressed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
TOO_LARGE, UNSUPPORTED = 413, 415


class BodyLimit:
    """Middleware: a body has at most `limit` bytes. Compressed ones, whose size shows too late, are refused."""

    def __init__(self, app: Any, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if headers.get(b"content-encoding", b"identity") != b"identity":
            await _refuse(send, UNSUPPORTED, "compressed requests are not taken")
            return
        length = headers.get(b"content-length", b"0")
        body = await self._read(receive) if length.isdigit() and int(length) <= self._limit else None
        if body is None:
            await _refuse(send, TOO_LARGE, f"the request is too large: at most {self._limit} bytes are taken")
            return
        begin = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return begin.pop() if begin else await receive()

        await self._app(scope, replayed, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the whole body, or None if it is too large: one in chunks does not tell its length."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                return None
            more = message.get("more_body", False)
        return b"".join(parts)


async def _refuse(send: Send, status: int, text: str) -> None:
    await send({"type": "http.response.start", "status": status,
                "headers": [(b"content-type", b"application/json"), (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": json.dumps({"error": text}).encode()})
