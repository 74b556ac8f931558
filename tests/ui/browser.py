"""Headless Chromium, driven by the DevTools protocol over a pipe: no driver and no library besides the browser itself.

A tab collects what went wrong in its page: errors on the console, uncaught exceptions, refused loads."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --hide-scrollbars --mute-audio "
    "--force-color-profile=srgb --remote-debugging-pipe"
).split()
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "ArrowDown": 40,
    "ArrowUp": 38,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "End": 35,
}
PATIENCE_SECONDS = 60.0


def find_chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError("these tests need Chromium: apt-get install chromium, or put `chromium` into PATH")
    return found


class Tab:
    def __init__(self, browser: "Browser", session: str) -> None:
        self.problems: list[str] = []
        self._browser, self._session = browser, session

    async def call(self, method: str, **parameters: Any) -> Any:
        return await self._browser.call(method, self._session, **parameters)

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def evaluate(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, script: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until an expression is true."""
        try:
            async with asyncio.timeout(seconds):
                while not await self.evaluate(f"Boolean({script})"):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{script} did not become true in {seconds:g} s; problems: {self.problems}") from None

    async def look(self, *, width: int, height: int, dark: bool = False, still: bool = False) -> None:
        """The size of the window, and what the system prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        preferred = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def press(self, key: str, *, shift: bool = False) -> None:
        code = KEYS[key]
        text = {"Enter": "\r"}.get(key, "")
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        more = {"captureBeyondViewport": True} if whole else {}
        if whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            more["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = await self.call("Page.captureScreenshot", format="png", **more)
        path.write_bytes(base64.b64decode(answer["data"]))

    def notice(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(event["exceptionDetails"].get("exception", event["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(one.get("value", one)) for one in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.problems.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")


class Browser:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader, self._writer = reader, writer
        self._numbers, self._waiting = itertools.count(1), dict[int, asyncio.Future[Any]]()
        self._tabs: dict[str, Tab] = {}

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        self._writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._waiting[number]

    async def new_tab(self) -> Tab:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        return tab

    async def receive(self) -> None:
        """Hand every answer and event to whom it belongs, until the browser ends."""
        while True:
            try:
                raw = await self._reader.readuntil(b"\0")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            message = json.loads(raw[:-1])
            if (waiting := self._waiting.pop(message.get("id", 0), None)) is not None and not waiting.done():
                if "error" in message:
                    waiting.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    waiting.set_result(message["result"])
            elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.notice(message["method"], message["params"])


@asynccontextmanager
async def open_browser(folder: Path) -> AsyncIterator[Browser]:
    """A browser whose profile lies in the folder; it ends on the way out."""
    loop = asyncio.get_running_loop()
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    line = f'exec "$@" 3<&{to_read} 4>&{from_write}'  # the protocol's pipe has these two numbers
    command = ["bash", "-c", line, "bash", find_chromium(), *FLAGS, f"--user-data-dir={folder}"]
    process = await asyncio.create_subprocess_exec(
        *command, pass_fds=(to_read, from_write), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(from_write)
    reader = asyncio.StreamReader(limit=2**27)
    incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_read, "rb"))
    outgoing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(to_write, "wb"))
    browser = Browser(reader, outgoing)
    receiving = asyncio.ensure_future(browser.receive())
    try:
        yield browser
    finally:
        with contextlib.suppress(Exception):
            await browser.call("Browser.close")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 10)
        if process.returncode is None:
            process.kill()
            await process.wait()
        receiving.cancel()
        incoming.close()
        outgoing.close()
