"""A small HTTP/1.1 client for asyncio: what a load client needs, and little of its time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

LIMIT = 1 << 20
"""Longest line or chunk, in bytes."""


class Connection:
    """One connection, one request at a time. A request that was not read to its end needs `close`."""

    def __init__(self, host: str, port: int):
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._headers: dict[str, str] = {}
        self.status = 0
        """Status of the last answer."""

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Send a request; connects where there is no connection."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=LIMIT)
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def head(self) -> int:
        """Read status and headers; returns the status. Raises `ConnectionError` where the server is gone."""
        assert self._reader is not None
        line = await self._reader.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        self.status = int(line.split(b" ", 2)[1])
        self._headers = {}
        while (line := await self._reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            self._headers[name.strip().lower()] = value.strip()
        return self.status

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        assert self._reader is not None
        if self._headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(self._headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readline()

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send JSON and read the answer: its status, and its JSON, or its text where it is none."""
        await self.send(method, path, b"" if body is None else json.dumps(body).encode())
        status = await self.head()
        text = await self.body()
        kind = self._headers.get("content-type", "")
        return status, json.loads(text) if "json" in kind else text.decode()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events of an answer whose head was read, up to `[DONE]`."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n\n")
            for event in whole:
                data = event[event.index(b"data: ") + 6 :]
                if data != b"[DONE]":
                    yield json.loads(data)

    def close(self) -> None:
        """Cut the connection, whatever is still to come."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
