"""A page in Chromium without a window, driven over two pipes by its own protocol, so that nothing else is needed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Browser:
    """One page, as wide as a phone."""

    def __init__(self, program: str, profile: Path, width: int) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        options = f"--headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir='{profile}'"
        command = f"exec '{program}' {options} about:blank 3<&{commands} 4>&{answers}"
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(commands, answers), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(commands)
        os.close(answers)
        self._unread = b""
        self._is_loaded = False
        self._calls = 0
        self._session: dict[str, str] = {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        self._call("Page.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=740, deviceScaleFactor=2, mobile=True)

    def prefer(self, scheme: str) -> None:
        """Prefer `light` or `dark` pages from here on."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, page: Path) -> None:
        """Open a file, and wait until it is loaded."""
        self._is_loaded = False
        self._call("Page.navigate", url=page.as_uri())
        while not self._is_loaded:
            self._read()

    def evaluate(self, expression: str) -> Any:
        """Return what an expression of JavaScript is in the page."""
        told = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"]["value"]

    def close(self) -> None:
        """End the browser."""
        os.close(self._commands)
        os.close(self._answers)
        self._process.kill()
        self._process.wait()

    def _call(self, method: str, **params: Any) -> Any:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._calls:
            pass
        assert "result" in answer, answer
        return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._unread:
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has ended"
            self._unread += more
        message, _, self._unread = self._unread.partition(b"\0")
        told = json.loads(message)
        self._is_loaded |= told.get("method") == "Page.loadEventFired"
        return told
