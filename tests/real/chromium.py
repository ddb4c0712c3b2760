# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a screen, driven by Debian's chromedriver (W3C WebDriver over HTTP).

    with Chromium(w.dir / "browser") as page:
        page.open(url)
        page.wait_for("return document.title", lambda title: title == "TensorBoard")
        page.screenshot(path)
"""

import base64
import http.client
import json
import os
import struct
import subprocess
import time
import zlib

from harness import needs, wait_for
from registries import free_port, listens

START_S = 30
ANSWER_S = 60
SWITCHES = ["--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000",
            # What WebGL draws is missing from screenshots; without it pages draw otherwise.
            "--disable-gpu", "--disable-software-rasterizer"]


def shades_of(png):
    """Of a PNG of 8 bits a colour, as Chromium writes it."""
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    size, at, data = {2: 3, 6: 4}[kind], 8, b""
    while at < len(png):
        n, name = struct.unpack(">I4s", png[at:at + 8])
        data += png[at + 8:at + 8 + n] if name == b"IDAT" else b""
        at += n + 12
    data, stride, found = zlib.decompress(data), width * size, set()
    above = bytearray(stride)
    for y in range(height):
        row = bytearray(data[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i, form in enumerate([data[y * (stride + 1)]] * stride):
            left, up, corner = (row[i - size] if i >= size else 0), above[i], (above[i - size] if i >= size else 0)
            guess = left + up - corner
            near = min((left, up, corner), key=lambda value: abs(guess - value))
            row[i] = (row[i] + (0, left, up, (left + up) // 2, near)[form]) & 255
        found.update(row[1::size])
        above = row
    return found


class Chromium:
    def __init__(self, directory):
        directory.mkdir(exist_ok=True)
        driver, chromium = needs("chromedriver"), needs("chromium")
        self.port = free_port()
        self.log = open(directory / "log", "wb")
        # What Chromium starts ends with the group of the driver.
        self.driver = subprocess.Popen([driver, f"--port={self.port}"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                       env={**os.environ, "HOME": str(directory), "TMPDIR": str(directory)}, start_new_session=True)
        wait_for(lambda: listens(self.port), "chromedriver", START_S)
        options = {"binary": chromium, "args": [*SWITCHES, f"--user-data-dir={directory}/profile"]}
        always = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": always}})["sessionId"]

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        value = json.loads(answer.read())["value"]
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {value.get('error')}: {value.get('message', '')[:300]}")
        return value

    def here(self, method, path, body=None):
        return self.call(method, f"/session/{self.session}{path}", body)

    def open(self, url):
        self.here("POST", "/url", {"url": url})

    def run(self, script, *words):
        """What a script of JavaScript returns."""
        return self.here("POST", "/execute/sync", {"script": script, "args": list(words)})

    def wait_for(self, script, condition, what, seconds=ANSWER_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(script)
            if condition(value):
                return value
            time.sleep(0.1)
        raise AssertionError(f"not in the page within {seconds} s: {what}; it was {str(value)[:1000]}")

    def dark(self):
        """As where the user prefers dark pages."""
        self.here("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia",
                                                "params": {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}})

    def shades(self, selector):
        """How bright the pixels of an element are, 0 to 255, all the values that there are."""
        element, = self.here("POST", "/element", {"using": "css selector", "value": selector}).values()
        return shades_of(base64.b64decode(self.here("GET", f"/element/{element}/screenshot")))

    def screenshot(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.here("GET", "/screenshot")))

    def errors(self):
        """What the page's own scripts complained about."""
        return [entry for entry in self.here("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def close(self):
        try:
            self.here("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
