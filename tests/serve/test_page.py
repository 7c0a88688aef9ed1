"""The page's files as the server hands them out: which paths, under which policy, and what is not in them."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files

import httpx2
import pytest

from tests.serve.scripted import Scripted

WEB = files("paceline.serve") / "web"
NAMES = sorted(item.name for item in WEB.iterdir())
FILE_LINES = 300


@pytest.fixture(scope="module")
def scripted(folder, tmp_path_factory):
    return Scripted(folder, tmp_path_factory.mktemp("template") / "t.jinja", api_key="secret")


def get(scripted, path, method="GET"):
    async def ask():
        async with httpx2.AsyncClient(transport=scripted.transport, base_url="http://server") as client:
            return await client.request(method, path)

    return asyncio.run(ask())


def path_of(name):
    return "/" if name == "index.html" else f"/page/{name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_answered_without_a_key(scripted, name):
    response = get(scripted, path_of(name))
    assert response.status_code == 200 and response.content == (WEB / name).read_bytes()
    assert response.headers["x-content-type-options"] == "nosniff"
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert response.headers["content-type"].startswith(kind[name.rsplit(".", 1)[1]])


def test_a_browser_may_load_and_ask_nothing_but_this_server(scripted):
    header = get(scripted, "/").headers["content-security-policy"]
    policy = dict(part.strip().split(" ", 1) for part in header.split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"


@pytest.mark.parametrize("path", ["/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/none.js"])
def test_no_other_path_is_opened(scripted, path):
    assert get(scripted, path).status_code == 401  # unknown paths are behind the key, as all else is


def test_head_is_answered_and_post_is_not(scripted):
    assert get(scripted, "/", "HEAD").status_code == 200
    assert get(scripted, "/", "POST").status_code == 405


@pytest.mark.parametrize("name", NAMES)
def test_files_are_short_and_name_no_other_host(name):
    text = (WEB / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < FILE_LINES
    hosts = [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if url != "http://www.w3.org/2000/svg"]
    assert not hosts


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_no_text_can_become_markup_or_code(name):
    text = (WEB / name).read_text(encoding="utf-8")
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser"
    assert not re.search(ways, text)


def test_markup_has_no_inline_code_and_every_name_that_scripts_look_up():
    markup = (WEB / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|<style|<script(?![^>]*\ssrc=)", markup)
    scripts = "".join((WEB / name).read_text(encoding="utf-8") for name in NAMES if name.endswith(".js"))
    asked = set(re.findall(r"(?:\$|getElementById)\([\"']([\w-]+)[\"']\)", scripts))
    assert len(asked) > 30 and asked <= set(re.findall(r'\sid="([\w-]+)"', markup))
