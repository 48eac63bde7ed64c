"""A headless Chromium over the DevTools protocol by pipe: no driver, no socket, nothing from elsewhere."""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    return os.environ.get("ATTN_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, profile, seconds=120):
        self.seconds, self.number, self.events, self.rest = seconds, 0, [], b""
        down_read, self.down = os.pipe()
        self.up, up_write = os.pipe()
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--disable-extensions", "--no-first-run", f"--user-data-dir={profile}"]

        # Chromium reads commands from descriptor 3 and writes to 4; above those first, so that neither closes the other.
        high = [os.dup(os.dup(fd)) for fd in (down_read, up_write)]

        def descriptors():
            a, b = (os.dup(fd) for fd in high)
            a, b = os.dup2(a, 100), os.dup2(b, 101)
            os.dup2(a, 3), os.dup2(b, 4)

        self.process = subprocess.Popen([find(), *options, "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, preexec_fn=descriptors, close_fds=False)
        for fd in (down_read, up_write, *high):
            os.close(fd)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(domain + ".enable")

    def receive(self, end):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.up], [], [], max(0, end - time.monotonic()))
            part = os.read(self.up, 1 << 16) if ready else b""
            assert part, "the browser does not answer"
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.down, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self.seconds
        while True:
            answer = self.receive(end)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width, height=900, dark=False):
        """Loads a file at a width; returns the errors and the addresses that it asked for."""
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=pathlib.Path(path).absolute().as_uri())
        end = time.monotonic() + self.seconds
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.receive(end))
        self.value("document.fonts.ready.then(() => 1)")
        errors = [e for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")]
        return errors, [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def shot(self, path, whole=True):
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(
            {"clip": {**self.value("({x: 0, y: 0, width: innerWidth, height: document.documentElement.scrollHeight, scale: 1})")}} if whole else {}))["data"])
        pathlib.Path(path).write_bytes(data)
        return data

    def close(self):
        os.close(self.down)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.up)
