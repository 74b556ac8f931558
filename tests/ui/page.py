"""The page `/ui` as its tests open it, and what they read of it."""

from tests.ui.browser import Tab

LIVE = "document.getElementById('status').textContent === 'live'"
CARDS = "[...document.querySelectorAll('.worker-name')].map((name) => name.textContent)"


async def opened(tab: Tab, address: str, *, until: str = LIVE) -> None:
    await tab.open(f"http://{address}/ui")
    await tab.until(until)
