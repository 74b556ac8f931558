"""The page `/ui` in a real browser, over a gateway whose workers the test makes up."""

import asyncio
from contextlib import AsyncExitStack

import httpx2 as httpx
import pytest

from gateway.core.interface import ChoiceRequest
from gateway.observability.broadcast import MOST_OF_PEER
from mesh.messages.jobs import Sampling, Tier
from tests.ui.browser import Tab
from tests.ui.conftest import MadeUpMesh
from tests.ui.page import CARDS, LIVE, opened

pytestmark = [pytest.mark.ui, pytest.mark.timeout(180)]

CONTROLS = """[...document.querySelectorAll('a[href], button, input, textarea, [tabindex="0"]')]
    .filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex >= 0).length"""
FOCUSED = """(() => {
    const one = document.activeElement;
    one.seen = true;
    const style = getComputedStyle(one);
    return {body: one === document.body, name: one.getAttribute('aria-label') || one.textContent || one.id,
            ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0};
})()"""


async def test_sixty_four_workers_are_shown_and_the_console_stays_empty(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    for number in range(32):
        mesh.add(Tier.PREFILL, name=f"prefill-{number}")
        mesh.add(Tier.DECODE, name=f"decode-{number}", pages=100_000)
    async with mesh.served() as address:
        await opened(tab, address)
        names = await tab.evaluate(CARDS)
        assert names == [f"{tier}-{number}" for tier in ("prefill", "decode") for number in range(32)]
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off sideways"
        await tab.look(width=390, height=800)
        await asyncio.sleep(0.3)
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "on a phone neither"
    assert tab.problems == [] or all("ERR_" in problem for problem in tab.problems)


async def test_page_maps_say_in_words_what_they_show(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    mesh.add(Tier.DECODE, pages=200)
    async with mesh.served() as address:
        await opened(tab, address)
        await tab.until("document.querySelector('canvas.pages').getAttribute('aria-label').includes('quarantined')")
        label = await tab.evaluate("document.querySelector('canvas.pages').getAttribute('aria-label')")
        assert label == "Pages of decode-1: 92 free, 50 cached, 50 in use, 6 landing, 2 quarantined"
        colours = """(() => { const c = document.querySelector('canvas.pages'), n = new Set();
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) n.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
            return n.size; })()"""
        assert await tab.evaluate(colours) >= 5, "each state has a colour of its own"


async def test_a_mesh_without_workers_says_what_to_do(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    async with mesh.served() as address:
        await opened(tab, address, until="document.getElementById('status').textContent === 'no workers'")
        text = await tab.evaluate("document.getElementById('mesh').textContent")
        assert "baton serve decode" in text and "baton serve prefill" in text


async def test_the_keyboard_reaches_every_control_and_shows_where_it_is(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    for tier in (Tier.PREFILL, Tier.PREFILL, Tier.DECODE, Tier.DECODE):
        mesh.add(tier)
    async with mesh.served() as address:
        await opened(tab, address)
        controls, stops = await tab.evaluate(CONTROLS), []
        for _ in range(controls + 5):
            await tab.press("Tab")
            focus = await tab.evaluate(FOCUSED)
            if focus["body"]:
                break
            stops.append(focus["name"])
            assert focus["ring"], f"{focus['name']} has the focus and does not show it"
        unseen = """[...document.querySelectorAll('a[href], button, input, textarea')].filter((one) =>
            one.checkVisibility() && !one.disabled && one.tabIndex >= 0 && !one.seen).map((one) => one.outerHTML)"""
        assert await tab.evaluate(unseen) == [], stops
        assert any("prefill-1" in stop for stop in stops) and not any("prefill-2" in stop for stop in stops)
        await tab.evaluate("document.querySelector('#prefill button').focus()")
        await tab.press("ArrowDown")
        assert "prefill-2" in (await tab.evaluate(FOCUSED))["name"], "arrow keys move among the workers of a tier"
        await tab.press("Enter")
        assert await tab.evaluate("!document.querySelectorAll('#prefill .details')[1].hidden"), "Enter opens details"


async def test_numbers_and_addresses_are_written_as_people_and_gateways_read_them(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    async with mesh.served() as address:
        await tab.open(f"http://{address}/ui")
        seconds = [0.00094, 0.00996, 0.9994, 0.9996, 9.996, 59.94, 59.96, 60, 119.4, 119.7, 3599.6]
        texts = await tab.evaluate(f"import('/ui/format.js').then((m) => {seconds}.map(m.duration))")
        assert texts == [
            *("940 µs", "10 ms", "999 ms", "1.00 s", "10.0 s", "59.9 s"),
            *("1 min 0 s", "1 min 0 s", "1 min 59 s", "2 min 0 s", "60 min 0 s"),
        ]
        found = await tab.evaluate("import('/ui/format.js').then((m) => [m.spansOf('a/b?', 'ff'), m.spansOf('a')])")
        assert found == ["/debug/requests/a%2Fb%3F?trace_id=ff", "/debug/requests/a"]


async def test_a_page_whose_place_a_newer_one_took_says_so_and_waits(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    mesh.add(Tier.DECODE)
    async with (
        mesh.served() as address,
        httpx.AsyncClient(trust_env=False, timeout=None) as http,
        AsyncExitStack() as stack,
    ):
        await opened(tab, address)
        for _ in range(MOST_OF_PEER):
            await stack.enter_async_context(http.stream("GET", f"http://{address}/ui/events"))
        await tab.until("document.getElementById('status').textContent === 'reconnecting'")
        why = await tab.evaluate("document.getElementById('status').title")
        assert "a newer page took its place" in why and "in 30 s" in why


async def test_a_request_that_waits_is_described_in_words(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    mesh.gateway.submit(ChoiceRequest("mine", "made-up", (1, 2), (), Sampling(max_tokens=5)))
    label = "document.querySelector('#requests button.row')?.getAttribute('aria-label')"
    async with mesh.served() as address:
        await tab.open(f"http://{address}/ui")
        await tab.until(label)
        assert (await tab.evaluate(label)).startswith("Request mine: waits for a worker, 0 tokens")


async def test_a_worker_that_is_lost_is_shown_and_reported(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up()
    mesh.add(Tier.DECODE, name="decode-1")
    mesh.add(Tier.DECODE, name="decode-2")
    async with mesh.served() as address:
        await opened(tab, address)
        mesh.remove("decode-2")
        await tab.until("document.querySelector('.card[data-state=lost] .worker-name')?.textContent === 'decode-2'")
        await tab.until("document.getElementById('feed').textContent.includes('decode-2 is lost')")
        mesh.add(Tier.DECODE, name="decode-2")
        await tab.until("!document.querySelector('.card[data-state=lost]')")


async def test_the_page_connects_again_when_the_gateway_comes_back(tab: Tab, made_up) -> None:
    first: MadeUpMesh = await made_up()
    first.add(Tier.DECODE, name="decode-1")
    async with first.served() as address:
        await opened(tab, address)
    await tab.until("document.getElementById('status').textContent === 'reconnecting'")
    second: MadeUpMesh = await made_up()
    second.add(Tier.DECODE, name="decode-9")
    async with second.served(address):
        await tab.until(LIVE)
        assert await tab.evaluate(CARDS) == ["decode-9"]


@pytest.mark.parametrize("still", [True, False])
async def test_nothing_moves_for_those_who_prefer_stillness(tab: Tab, made_up, still: bool) -> None:
    mesh: MadeUpMesh = await made_up()
    mesh.add(Tier.PREFILL)
    mesh.add(Tier.DECODE)
    await tab.look(width=1440, height=1190, still=still)
    async with mesh.served() as address:
        await opened(tab, address)
        assert (
            await tab.evaluate("document.getElementById('motion').getAttribute('aria-pressed')")
            == str(not still).lower()
        )


async def test_the_theme_follows_the_system_until_a_choice_is_made(tab: Tab, made_up) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    mesh: MadeUpMesh = await made_up()
    async with mesh.served() as address:
        await opened(tab, address, until="document.getElementById('theme').textContent")
        light = await tab.evaluate(background)
        await tab.look(width=1440, height=1190, dark=True)
        dark = await tab.evaluate(background)
        assert light != dark
        await tab.evaluate("document.getElementById('theme').click()")
        assert await tab.evaluate(background) == light, "the first choice is light, though the system is dark"
        await tab.open(f"http://{address}/ui")
        await tab.until("document.getElementById('theme').textContent")
        assert await tab.evaluate(background) == light, "the choice is remembered"
