"""What stands before every endpoint: the key, and the size of headers and body."""

from __future__ import annotations

import hmac
import json

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})
"""Paths for probes and scrapers, which carry no key. They tell nothing of any request."""


MAX_HEADER_BYTES = 64 * 1024
"""Of a request's path and headers."""


class KeyGuard:
    """Lets in who sends the key as `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, key: str, open_paths: frozenset[str] = OPEN_PATHS):
        """`open_paths` need no key."""
        self._app, self._key, self._open = app, key.encode(), open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in self._open and not self._knows(scope):
            error = ApiError("the API key is missing or wrong", 401, code="invalid_api_key")
            await answer_error(send, error, {"www-authenticate": "Bearer"})
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        """Compared in constant time, so that the answer's delay tells nothing of the key."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, key = given.partition(b" ")
        return hmac.compare_digest(key.strip(), self._key) and kind.lower() == b"bearer"


class SizeGuard:
    """Refuses headers that are larger than allowed, and bodies, announced or not."""

    def __init__(self, app: ASGIApp, most: int):
        """`most` is in bytes."""
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 431 (headers) or 413 (body)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = len(scope["path"]) + len(scope["query_string"])
        if head + sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            text = f"path and headers are larger than {MAX_HEADER_BYTES} bytes"
            await answer_error(send, ApiError(text, 431, code="headers_too_large"))
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._most:
            await answer_error(send, self._error())
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most:
                raise HTTPException(413, str(self._error()))
            return message

        await self._app(scope, counted, send)

    def _error(self) -> ApiError:
        return ApiError(f"the body is larger than {self._most} bytes", 413, code="body_too_large")


async def answer_error(send: Send, error: ApiError, headers: dict[str, str] | None = None) -> None:
    """Send an error without a framework's help."""
    body = json.dumps(error.body()).encode()
    lines = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    pairs = [(name.encode(), value.encode()) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
