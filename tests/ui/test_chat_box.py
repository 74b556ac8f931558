"""The chat box of the page `/ui` in a real browser: which model it asks, what it shows, and the key that it sends."""

import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mesh.messages.jobs import Tier
from tests.ui.browser import Tab
from tests.ui.conftest import MadeUpMesh
from tests.ui.page import CARDS, opened

pytestmark = [pytest.mark.ui, pytest.mark.timeout(180)]


async def test_with_several_models_the_chat_box_asks_which_one_and_cards_name_theirs(tab: Tab, made_up) -> None:
    mesh: MadeUpMesh = await made_up("first", "second")
    mesh.add(Tier.DECODE, name="decode-0", model="first")
    mesh.add(Tier.DECODE, name="decode-1", model="second")
    asked = list[str]()

    async def chat(request: Request) -> Response:
        asked.append((await request.json())["model"])
        return Response('{"error": {"message": "made up"}}', 503, media_type="application/json")

    async with mesh.served(also=[Route("/v1/chat/completions", chat, methods=["POST"])]) as address:
        await opened(tab, address)
        assert await tab.evaluate("document.getElementById('model').textContent") == "first, second"
        choice = "document.querySelector('#chat select')"
        assert await tab.evaluate(f"[...{choice}.options].map((one) => one.value)") == ["first", "second"]
        await tab.evaluate(f"{choice}.value = 'second'; document.querySelector('#chat .idea').click()")
        await tab.until("document.getElementById('chat').textContent.includes('made up')")
        mesh.add(Tier.DECODE, name="decode-2", model="first")
        await tab.until(f"{CARDS}.length === 3")
        assert await tab.evaluate(f"{choice}.value") == "second", "news of the mesh changes no choice"
    assert asked == ["second"]


async def test_what_a_model_answers_is_text_whatever_it_contains(tab: Tab, made_up) -> None:
    answer = "<img src=x onerror='window.harmed = 1'><b>bold</b>"

    async def chat(request: Request) -> Response:
        lines = [f"data: {json.dumps({'choices': [{'delta': {'content': part}}]})}\n\n" for part in answer.split("|")]
        return StreamingResponse(iter([*lines, "data: [DONE]\n\n"]), media_type="text/event-stream")

    mesh: MadeUpMesh = await made_up()
    mesh.add(Tier.DECODE, name="<b>worker</b>")
    async with mesh.served(also=[Route("/v1/chat/completions", chat, methods=["POST"])]) as address:
        await opened(tab, address)
        await tab.evaluate("document.querySelector('.ask textarea').focus()")
        await tab.type("Be harmful")
        await tab.press("Enter")
        await tab.until("document.querySelector('.said.model')?.textContent.includes('bold')")
        assert await tab.evaluate("document.querySelector('.said.model').textContent") == answer
        assert await tab.evaluate("document.querySelectorAll('.said.model *').length") == 0
        assert await tab.evaluate(CARDS) == ["<b>worker</b>"]
        assert await tab.evaluate("window.harmed") is None


async def test_clear_during_an_answer_begins_a_conversation_without_it(tab: Tab, made_up) -> None:
    asked, bodies = list[list[str]](), list[dict]()

    async def chat(request: Request) -> Response:
        bodies.append(await request.json())
        asked.append([message["content"] for message in bodies[-1]["messages"]])

        async def parts():
            yield f"data: {json.dumps({'choices': [{'delta': {'content': 'an answer'}}]})}\n\n"
            await asyncio.sleep(0 if len(asked) > 1 else 60)
            yield "data: [DONE]\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def ask(text: str) -> None:
        await tab.until("!document.querySelector('.ask button.main').disabled")
        await tab.evaluate("document.querySelector('.ask textarea').focus()")
        await tab.type(text)
        await tab.press("Enter")

    mesh: MadeUpMesh = await made_up()
    mesh.add(Tier.DECODE)
    async with mesh.served(also=[Route("/v1/chat/completions", chat, methods=["POST"])]) as address:
        await opened(tab, address)
        assert await tab.evaluate("document.querySelector('.most input').max") == "512", "the model's context"
        await ask("first")
        await tab.until("document.querySelector('.said.model')?.textContent === 'an answer'")
        await tab.evaluate("document.querySelector('.ask button.quiet').click()")
        await tab.evaluate("document.querySelector('.most input').value = '5000'")
        await ask("second")
        await tab.until("document.querySelector('.said.model')?.textContent === 'an answer'")
        assert [body.get("max_tokens") for body in bodies] == [200, None], "above the context: as many as fit"
        await ask("third")
        await tab.until("document.querySelectorAll('.said.model').length === 2")
    assert asked == [["first"], ["second"], ["second", "an answer", "third"]]


@pytest.mark.parametrize("dark", [False, True])
async def test_a_gateway_that_asks_for_a_key_gets_the_one_that_is_typed(tab: Tab, made_up, shots, dark: bool) -> None:
    keys, said = list[str | None](), list[str]()

    async def chat(request: Request) -> Response:
        keys.append(request.headers.get("authorization"))
        if keys[-1] != "Bearer right-key":
            return Response('{"error": {"message": "no such key"}}', 401, {"www-authenticate": "Bearer"})
        said.extend(message["content"] for message in (await request.json())["messages"])
        lines = [f"data: {json.dumps({'choices': [{'delta': {'content': 'welcome'}}]})}\n\n", "data: [DONE]\n\n"]
        return StreamingResponse(iter(lines), media_type="text/event-stream")

    mesh: MadeUpMesh = await made_up()
    mesh.add(Tier.DECODE)
    field, shown = "document.querySelector('.api-key input')", "document.querySelector('.api-key').checkVisibility()"
    async with mesh.served(also=[Route("/v1/chat/completions", chat, methods=["POST"])]) as address:
        await tab.look(width=1440, height=1190, dark=dark)
        await opened(tab, address)
        assert not await tab.evaluate(shown), "a gateway without keys shows no field for one"
        await tab.evaluate("document.querySelector('.ask textarea').focus()")
        await tab.type("hello")
        await tab.press("Enter")
        await tab.until(f"{shown} && document.activeElement === {field}")
        assert "asks for a key: enter yours below." in await tab.evaluate("document.querySelector('.talk').textContent")
        for key, told in (("wrong-key", "no such key"), ("schlüssel", "only ASCII")):
            await tab.evaluate(f"{field}.value = ''")
            await tab.type(key)
            await tab.press("Enter")
            await tab.until(f"document.querySelector('.talk').lastChild.textContent.includes('{told}')")
            await tab.until("!document.querySelector('.ask button.main').disabled")
        await tab.screenshot(shots / f"key-{'dark' if dark else 'light'}.png")
        await tab.evaluate(f"{field}.value = ''")
        await tab.type("right-key")
        await tab.press("Enter")
        await tab.until("document.querySelector('.said.model')?.textContent === 'welcome'")
        assert await tab.evaluate("document.querySelectorAll('.said.you').length") == 1
        assert await tab.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        await tab.open(f"http://{address}/ui")
        await tab.until("document.querySelector('.api-key input')")
        assert await tab.evaluate(f"{field}.value") == "" and not await tab.evaluate(shown)
    assert keys == [None, "Bearer wrong-key", "Bearer right-key"] and said == ["hello"]
