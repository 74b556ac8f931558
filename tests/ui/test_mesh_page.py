"""The page `/ui` in a real browser, over a mesh of real processes: a chat, its waterfall, a death, and pictures."""

import asyncio
import signal
from pathlib import Path

import pytest

from engine.builtin import DRAFT, MODEL
from tests.harness.mesh import process_mesh
from tests.ui.browser import Tab
from tests.ui.conftest import traffic
from tests.ui.page import CARDS, LIVE

pytestmark = [pytest.mark.ui, pytest.mark.timeout(280)]

SETTINGS = {
    "model": str(MODEL),
    "draft": str(DRAFT),
    "served_name": "baton-tiny",
    "worker.pool_pages": "480",
    "worker.speculation": "off",
}
SPANS = "[...document.querySelectorAll('.span-name')].map((name) => name.firstChild.nextSibling.textContent)"


async def test_a_chat_travels_through_the_mesh_and_shows_where_its_time_went(tab: Tab, shots: Path) -> None:
    async with process_mesh(prefills=2, decodes=2, settings=SETTINGS | {"gateway.local": "never"}) as mesh:
        await tab.open(f"http://{mesh.http}/ui")
        await tab.until(LIVE)
        assert await tab.evaluate(CARDS) == ["prefill-0", "prefill-1", "decode-0", "decode-1"]
        await tab.screenshot(shots / "idle-light.png")
        await tab.evaluate("document.querySelector('.ask textarea').focus()")
        await tab.type("What is the hand-off?")
        await tab.press("Enter")
        await tab.until("document.querySelector('.measured')?.textContent.includes('where the time went')")
        await tab.until("document.querySelector('.verdict')")
        await tab.until(f"{SPANS}.includes('generate')")
        spans = await tab.evaluate(SPANS)
        assert {"prefill", "compute", "kv.send", "decode", "kv.receive", "generate"} <= set(spans), spans
        await tab.until("document.querySelector('#requests button.row')")
        await tab.evaluate("document.querySelector('[role=treeitem]').focus()")
        await tab.press("ArrowDown")
        assert await tab.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
        before = await tab.evaluate(
            "[...document.querySelectorAll('[role=treeitem]')].filter((r) => r.checkVisibility()).length"
        )
        await tab.press("ArrowLeft")
        after = await tab.evaluate(
            "[...document.querySelectorAll('[role=treeitem]')].filter((r) => r.checkVisibility()).length"
        )
        assert after < before, "the left arrow closes a span's children"
        assert tab.problems == []


async def test_a_death_under_load_is_seen_resumed_and_photographed(tab: Tab, shots: Path) -> None:
    async with process_mesh(prefills=2, decodes=2, settings=SETTINGS) as mesh:
        await tab.open(f"http://{mesh.http}/ui")
        await tab.until(LIVE)
        async with traffic(mesh.http, 4):
            await tab.until("document.querySelectorAll('#requests .dot[data-status=ok]').length >= 6")
            await tab.until("document.querySelector('.verdict')")
            for name, width, height, dark in (
                ("load-light", 1440, 1190, False),
                ("load-dark", 1440, 1190, True),
                ("phone-light", 400, 860, False),
                ("phone-dark", 400, 860, True),
            ):
                await tab.look(width=width, height=height, dark=dark)
                await asyncio.sleep(1)
                await tab.screenshot(shots / f"{name}.png")
            await tab.look(width=1440, height=1190, dark=True)
            running = "document.querySelector('[data-tier=decode][data-state=busy] .worker-name')?.textContent"
            await tab.until(running)
            name = await tab.evaluate(running)
            next(worker for worker in mesh.decodes if worker.name == name).send_signal(signal.SIGKILL)
            await tab.until(f"document.getElementById('feed').textContent.includes('{name} is lost')")
            await tab.screenshot(shots / "lost-dark.png")
        assert tab.problems == []
