"""A headless Chromium, asked by its DevTools protocol through a pipe (--remote-debugging-pipe)."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT = 60  # seconds


class Browser:
    def __init__(self, profile_folder):
        (to_browser, self._out), (self._in, from_browser) = os.pipe(), os.pipe()
        # The program reads its orders from 3 and answers on 4.
        words = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        words += ["--remote-debugging-pipe", f"--user-data-dir={profile_folder}", "about:blank"]
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words], pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser), os.close(from_browser)
        self._next, self._text, self._session, self._is_loaded = 0, b"", None, False
        self.complaints = []  # what went to the console as an error, exceptions, failed loads
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def _read(self):
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self._text:
            if not select.select([self._in], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("chromium: no answer")
            part = os.read(self._in, 1 << 16)
            if not part:
                raise EOFError("chromium ended")
            self._text += part
        line, _, self._text = self._text.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params"))
        return message

    def _note(self, method, params):
        if method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.loadingFailed":
            self.complaints.append(params["errorText"])
        elif method == "Network.requestWillBeSent" and params["request"]["url"].startswith("http"):
            self.complaints.append(f"asks the network for {params['request']['url']}")

    def ask(self, method, **params):
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path):
        self._is_loaded = False
        self.ask("Page.navigate", url=path.absolute().as_uri())
        while not self._is_loaded:
            self._read()

    def value(self, script):
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)["result"]["value"]

    def set_dark(self, dark):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def screenshot(self):
        """PNG of the whole page."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self):
        os.killpg(self._process.pid, signal.SIGKILL)  # the processes of its pages, too
        self._process.wait()
        os.close(self._out), os.close(self._in)
