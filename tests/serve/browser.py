"""A headless Chromium, driven over the DevTools protocol through two pipes: no driver, no port."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check",
    "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions",
    "--disable-component-update", "--disable-sync", "--mute-audio", "--hide-scrollbars",
)  # fmt: skip
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
"""Number and text of a key."""


def program():
    """The browser's program. Raises where there is none: a test of the page must not be skipped unnoticed."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "the page's tests need Chromium: apt-get install chromium"
    return found


class Browser:
    """One browser process with one tab."""

    def __init__(self, profile):
        """`profile` is a folder for the browser's own files."""
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium refuses to run as root with it, and CI often is root
        # DevTools' pipe is file descriptors 3 and 4, whatever their numbers are here.
        plumbing = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", plumbing, "bash", program(), *flags, "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._numbers, self._answers = itertools.count(1), {}
        self._news, self._session = threading.Condition(), None
        self.complaints = []
        """Errors and warnings of the console, and exceptions that nobody caught."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._attach()

    def _attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError):
            os.write(self._to, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)

    def call(self, method, timeout=30, **params):
        """One command of the protocol, and what it answers."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        with self._news:
            assert self._news.wait_for(lambda: number in self._answers, timeout), f"{method}: no answer"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def _listen(self):
        rest = b""
        with os.fdopen(self._from, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                *messages, rest = (rest + data).split(b"\0")
                for message in map(json.loads, messages):
                    with self._news:
                        self._take(message)
                        self._news.notify_all()

    def _take(self, message):
        if "id" in message:
            self._answers[message["id"]] = message
            return
        params, method = message["params"], message["method"]
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(arg.get("value", arg)) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    # ---- what a person does

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
            userGesture=True,
        )  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression, timeout=30.0):
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + timeout
        while not (value := self.run(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)
        return value

    def click(self, selector):
        """A real click in the middle of what the selector finds."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{where}.scrollIntoView({{block: 'nearest'}})")
        # A click goes by the frame that is on the screen: wait until that is the newest.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        x, y = self.run(
            f"(() => {{ const r = {where}.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        """Text into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        number, text = KEYS[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screen(self, width, height, *, dark=False, phone=False):
        """The size of the screen, and the system's colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=phone,
            deviceScaleFactor=2 if phone else 1,
        )  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path):
        """A PNG of the screen."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
