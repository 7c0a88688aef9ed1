"""The page at `/`: plain files that travel with the package, answered from memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from fastapi import FastAPI

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of the page's files; a file of another kind is no part of it."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What a browser lets the page do: run its own files and talk to its own server, nothing else. Text of a
model that became markup by mistake could still not run or load anything."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Page:
    """The page's files. Only these paths are answered: no path of a request is ever opened."""

    def __init__(self, contents: dict[str, bytes]):
        """`contents` has each file's bytes by its path on the server."""
        self._contents = contents

    @classmethod
    def packaged(cls) -> Page:
        """The page that the package carries: `index.html` at `/`, the rest under `/page/`."""
        folder = files("paceline.serve") / "web"
        names = [item.name for item in folder.iterdir() if _suffix(item.name) in TYPES]
        return cls({_path(name): (folder / name).read_bytes() for name in sorted(names)})

    @property
    def paths(self) -> frozenset[str]:
        """Every path that is answered. None of them needs a key: they are the same for everybody."""
        return frozenset(self._contents)

    def add_to(self, app: FastAPI) -> None:
        """Answer the paths in `app`, beside the API and not part of its schema."""
        for path, content in self._contents.items():
            kind = TYPES.get(_suffix(path), TYPES[".html"])
            app.add_route(path, _answer(content, kind), methods=["GET"], include_in_schema=False)


def _answer(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return answer


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""


def _path(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"
