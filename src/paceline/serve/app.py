"""The HTTP application: paths, and how errors are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from paceline import __version__
from paceline.serve.chat_completions import ChatAnswer
from paceline.serve.completions import CompletionAnswer
from paceline.serve.errors import ApiError
from paceline.serve.fields import HEADER, header_value, ignored_fields, param_of
from paceline.serve.guards import OPEN_PATHS, KeyGuard, SizeGuard
from paceline.serve.page import Page
from paceline.serve.protocol import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generate,
    ResponsesRequest,
    TokenizeChat,
    TokenizePrompt,
)
from paceline.serve.responses import ResponsesAnswer
from paceline.serve.stream import ClientGoneError, EventStream, unless_gone
from paceline.serve.tokens import detokenize, tokenize

if TYPE_CHECKING:
    from paceline.config.server import ServerConfig
    from paceline.engine.request import Request as EngineRequest
    from paceline.serve.engine import EngineClient
    from paceline.serve.service import Service

logger = logging.getLogger("paceline.serve")

T = TypeVar("T")

CLIENT_CLOSED = 499  # nginx's status for a client that did not wait; nobody receives it


class Backend:
    """What the application runs on; `service` is None until the engine is ready."""

    def __init__(self, client: EngineClient):
        self.client = client
        self.service: Service | None = None
        self._named: set[str] = set()
        self._worker = ThreadPoolExecutor(1, "prepare")

    def ready(self) -> Service:
        """The service. Raises `ApiError` (503) where the engine cannot generate now."""
        illness = self.client.illness()
        if illness is not None or self.service is None:
            raise ApiError(illness or "the engine is loading", 503, code="engine_unavailable")
        return self.service

    async def in_turn(self, work: Callable[[], T]) -> T:
        """Do what may take long, such as reading a large prompt, beside the event loop.

        One at a time: tokenizers do not like two callers at once.
        """
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def ignored(self, body: Body) -> dict[str, str]:
        """The header that names a request's fields without effect; each is logged once."""
        names = ignored_fields(body)
        if self.service is not None:
            names += self.service.format.unread(body)
        if not names:
            return {}
        for name in sorted(set(names) - self._named):
            if len(self._named) < 1000:  # names come from clients
                self._named.add(name)
                logger.warning("requests carry %r, which has no effect here", name[:64])
        return {HEADER: header_value(names)}


def make_app(backend: Backend, config: ServerConfig) -> Any:
    """The application, guards included."""
    app = FastAPI(title="paceline", version=__version__, docs_url=None, redoc_url=None)
    page = Page.packaged()
    page.add_to(app)
    _add_probes(app, backend)
    _add_tokens(app, backend)
    _add_generation(app, backend)
    _add_errors(app)
    guarded: Any = SizeGuard(app, int(config.max_body_mib * 2**20))
    if config.api_key is None:
        return guarded
    return KeyGuard(guarded, config.api_key, OPEN_PATHS | page.paths)


def _add_probes(app: FastAPI, backend: Backend) -> None:
    @app.get("/health")
    @app.get("/ping", include_in_schema=False)
    async def health() -> Response:
        backend.ready()
        return Response(status_code=200)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        service = backend.service
        return Response(b"" if service is None else service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        backend.ready().client.forget_prefixes()
        return Response(status_code=200)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        service = backend.ready()
        data = [
            {
                "id": name,
                "object": "model",
                "created": service.created,
                "owned_by": "paceline",
                "root": service.names[0],
                "parent": None,
                "max_model_len": service.info.max_model_len,
                "paceline": service.abilities(),
            }
            for name in service.names
        ]
        return {"object": "list", "data": data}


def _add_tokens(app: FastAPI, backend: Backend) -> None:
    @app.post("/tokenize")
    async def to_tokens(body: TokenizePrompt | TokenizeChat, response: Response) -> dict[str, Any]:
        service = backend.ready()
        service.check_model(body.model)
        response.headers.update(backend.ignored(body))
        return await backend.in_turn(lambda: tokenize(service, body))

    @app.post("/detokenize")
    async def to_text(body: DetokenizeRequest, response: Response) -> dict[str, str]:
        service = backend.ready()
        service.check_model(body.model)
        response.headers.update(backend.ignored(body))
        return await backend.in_turn(lambda: detokenize(service, body))


def _add_generation(app: FastAPI, backend: Backend) -> None:
    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service = backend.ready()
        model = service.check_model(body.model)
        return await _generate(backend, lambda: CompletionAnswer(service, body, model), body, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        service = backend.ready()
        model = service.check_model(body.model)
        return await _generate(backend, lambda: ChatAnswer(service, body, model), body, request)

    @app.post("/v1/responses")
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        service = backend.ready()
        model = service.check_model(body.model)
        return await _generate(backend, lambda: ResponsesAnswer(service, body, model), body, request)


async def _generate(
    backend: Backend,
    make: Callable[[], CompletionAnswer | ChatAnswer | ResponsesAnswer],
    body: Generate,
    request: Request,
) -> Response:
    """Run a request and answer it, whole or as a stream."""
    if body.stream_options is not None and not body.stream:
        raise ApiError("stream_options needs stream: true", param="stream_options")
    headers = backend.ignored(body)

    def prepare() -> tuple[CompletionAnswer | ChatAnswer | ResponsesAnswer, list[EngineRequest]]:
        making = make()
        return making, making.requests()

    making, requests = await backend.in_turn(prepare)
    answer = await backend.ready().open(requests)
    if body.stream:
        return EventStream(making.chunks(answer), answer.close, headers)
    try:
        return JSONResponse(await unless_gone(request, making.whole(answer)), headers=headers)
    finally:
        answer.close()


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def known(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), error.status, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type", "")
        if "json" not in kind:
            return await known(request, ApiError(f"content-type must be application/json, not {kind!r}"))
        return await known(request, _invalid(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})  # such as Allow
        return await known(request, ApiError(str(error.detail), error.status_code, headers=headers))

    @app.exception_handler(ClientGoneError)
    async def gone(request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        return await known(request, ApiError("the server has made a mistake; its log says more", 500))


def _invalid(error: RequestValidationError) -> ApiError:
    """Pydantic's first complaint as one line about one field."""
    details = error.errors()
    detail = details[0]
    if detail["type"] == "json_invalid":
        return ApiError(f"the body is not readable JSON: {detail.get('ctx', {}).get('error', '')}")
    # Every branch of a union complains; the one that got furthest into the body is the one that was meant.
    same = [d for d in details if d["loc"][:2] == detail["loc"][:2]]
    param = max((_param(d, error.body) for d in same), key=lambda path: len(path or ""))
    detail = next(d for d in same if _param(d, error.body) == param)
    what = f"{param}: " if param else "the body must be a JSON object: "
    return ApiError(f"{what}{detail['msg']}", param=param)


def _param(detail: dict[str, Any], body: Any) -> str | None:
    return param_of(detail["loc"][1:], body, missing=detail["type"] == "missing")
