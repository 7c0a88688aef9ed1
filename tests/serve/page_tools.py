"""What the browser tests of the page share: a scripted server on a real port, and a person's moves."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import uvicorn

from tests.serve.browser import Browser

READY = "document.querySelector('#dot').dataset.state === 'ready'"
IDLE = "document.querySelector('article.assistant') && !document.querySelector('.busy')"


@contextmanager
def over_http(app):
    """The address of an application that listens on a port of this machine."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def a_browser(profile):
    """A browser for a `with` block; its console must stay silent."""
    browser = Browser(profile)
    try:
        browser.screen(1280, 800)
        yield browser
    finally:
        browser.close()


def visit(browser, url):
    """Open the page and wait until it has met the server."""
    browser.complaints.clear()
    browser.open(url)
    browser.until(READY)


def send(browser, text):
    """Type a message and press Enter."""
    browser.click("#input")
    browser.type(text)
    browser.press("Enter")


def ask(browser, text):
    """Send a message and wait for the whole answer."""
    send(browser, text)
    browser.until(IDLE)


def count(browser, selector):
    return browser.run(f"document.querySelectorAll('{selector}').length")


def text(browser, selector):
    """The text of the last element that the selector finds; None where there is none."""
    return browser.run(f"[...document.querySelectorAll('{selector}')].at(-1)?.textContent")


def shown(browser, selector):
    """Whether an element takes up room."""
    return browser.run(f"document.querySelector('{selector}').getClientRects().length > 0")
