"""A real browser to open pages in, for programs and tests."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A headless Chromium, driven by the DevTools protocol: JSON messages that end in NUL, through two pipes."""

    def __init__(self, profile: Path) -> None:
        """Start a browser.

        Args:
            profile: an empty folder for the browser's own files.

        Raises:
            FileNotFoundError: if no Chromium is installed.
        """
        binary = find_browser()
        if binary is None:
            raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        command = (
            f'exec "{binary}" --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking '
            f'--user-data-dir="{profile}" --remote-debugging-pipe about:blank 3<&{to_child} 4>&{from_child}'
        )
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command], pass_fds=(to_child, from_child), stdout=quiet, stderr=quiet
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer. Events that arrive in between are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise EOFError("the browser closed the connection")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, fragment: str = "", width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file as if for the first time."""
        self.look_at(path.resolve().as_uri() + fragment, width, height, dark)

    def look_at(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load an address as if for the first time, in a window of the given size in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + 20
        while self.run("document.readyState + location.protocol") != f"complete{address.partition(':')[0]}:":
            assert time.monotonic() < deadline, "the page does not finish loading"
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"ArrowRight": 39, "ArrowLeft": 37}.get(key) or ord(key.upper())
        text_fields: Mapping[str, Any] = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text_fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def text(self, element: str) -> str:
        return self.run(f"document.getElementById({json.dumps(element)}).textContent")

    def picture(self, path: Path) -> None:
        """Save a PNG picture of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._in)
        os.close(self._out)
