"""Prompts have their planned length in the server's own count, and equal blocks of a trace become equal tokens."""

import json
from collections.abc import AsyncIterator

import pytest

from cli.load.calibration import LOW_IDS, find_form
from cli.load.form import Endpoint, RequestForm
from cli.load.plan import BLOCK_TOKENS, LoadError, LoadRequest
from cli.load.prompts import TextUnit, TokenPrompts, WordPrompts
from cli.load.record import MeasuredRequest
from cli.load.server_facts import ServerFacts, look_at
from tests.sim.loop import run_virtual
from tests.unit.cli.load.fake_server import FakeOpenAi, FakeRequest, Hangup, target, whole


def tokens(maker: TokenPrompts, number: int, request: LoadRequest) -> list[int]:
    found: list[int] = json.loads(maker.prompt(number, request))
    return found


def test_prompts_of_tokens_are_exact_and_share_nothing_but_their_blocks() -> None:
    maker = TokenPrompts(LOW_IDS, 0)
    one = tokens(maker, 1, LoadRequest(2 * BLOCK_TOKENS + 9, 1, 0.0, (5, 6)))
    two = tokens(maker, 2, LoadRequest(BLOCK_TOKENS + 50, 1, 0.0, (5, 8)))
    assert (len(one), len(two)) == (2 * BLOCK_TOKENS + 9, BLOCK_TOKENS + 50)
    assert one[:BLOCK_TOKENS] == two[:BLOCK_TOKENS]
    assert one[BLOCK_TOKENS : BLOCK_TOKENS + 50] != two[BLOCK_TOKENS:]
    assert tokens(maker, 3, LoadRequest(40, 1)) != tokens(maker, 4, LoadRequest(40, 1))
    assert set(one) <= set(LOW_IDS)


def test_equal_seeds_make_equal_prompts_and_other_seeds_others() -> None:
    request = LoadRequest(40, 1, 0.0, (5,))
    assert TokenPrompts(LOW_IDS, 3).prompt(0, request) == TokenPrompts(LOW_IDS, 3).prompt(0, request)
    assert TokenPrompts(LOW_IDS, 3).prompt(0, request) != TokenPrompts(LOW_IDS, 4).prompt(0, request)


@pytest.mark.parametrize("length", [30, 31, 600, BLOCK_TOKENS + 7])
def test_prompts_of_words_cost_what_is_planned_where_a_word_costs_one_token(length: int) -> None:
    maker = WordPrompts([TextUnit(" a", 1), TextUnit(" bb", 2), TextUnit(" ccc", 3)], 25, 0)
    units = maker.units(0, LoadRequest(length, 1, 0.0, (1, 2)))
    assert sum(unit.tokens for unit in units) + 25 == length
    text = json.loads(maker.prompt(0, LoadRequest(length, 1, 0.0, (1, 2))))
    assert text == "".join(unit.text for unit in units)


def test_prompts_of_words_share_the_text_of_their_blocks() -> None:
    maker = WordPrompts([TextUnit(" a", 1), TextUnit(" b", 1)], 10, 0)
    texts = [json.loads(maker.prompt(number, LoadRequest(BLOCK_TOKENS + 60, 1, 0.0, (7,)))) for number in (1, 2)]
    assert texts[0][: 2 * BLOCK_TOKENS] == texts[1][: 2 * BLOCK_TOKENS] and texts[0] != texts[1]


# ---- what a server accepts


def found(server: FakeOpenAi, endpoint: Endpoint, lengths: tuple[int, ...] = (100,)) -> tuple[list[int], list[str]]:
    """The server's count of prompts of these lengths, and the notes."""

    async def main() -> tuple[list[int], list[str]]:
        sender = target(server.answers)

        async def ask(form: RequestForm, request: LoadRequest, number: int = -1) -> MeasuredRequest:
            record = MeasuredRequest(number, 0.0, 0.0, request.input_tokens, request.output_tokens)
            await sender.perform(form.path, form.body(number, request), record)
            return record

        facts = await look_at(sender, None)
        form, notes = await find_form(sender, facts, endpoint, seed=0, ask=ask)
        records = [await ask(form, LoadRequest(length, 1), number) for number, length in enumerate(lengths)]
        assert not any(record.error for record in records)
        return [record.prompt_tokens or 0 for record in records], notes

    return run_virtual(main())


def test_token_ids_are_exact_with_and_without_a_tokenizer() -> None:
    plain, knows = FakeOpenAi(), FakeOpenAi(tokenize=True)
    assert found(plain, Endpoint.COMPLETIONS, (1, 77)) == ([1, 77], [])
    assert found(knows, Endpoint.COMPLETIONS, (1, 77)) == ([1, 77], [])
    assert set(plain.requests[-1].fields["prompt"]) <= set(LOW_IDS)
    assert set(knows.requests[-1].fields["prompt"]) <= set(range(1000, 1050))


def test_a_chat_is_calibrated_to_its_template() -> None:
    server = FakeOpenAi(overhead_tokens=13)
    assert found(server, Endpoint.CHAT, (60, 61, 200)) == ([60, 61, 200], [])
    assert server.requests[-1].path == "/v1/chat/completions"


def test_words_of_several_tokens_come_as_near_as_they_can() -> None:
    assert found(FakeOpenAi(overhead_tokens=5, word_tokens=3), Endpoint.CHAT, (65, 66, 67)) == ([65, 65, 65], [])


def test_a_server_without_token_ids_gets_words() -> None:
    counts, notes = found(FakeOpenAi(takes_ids=False, overhead_tokens=1), Endpoint.COMPLETIONS, (50,))
    assert counts == [50] and "refuses prompts as token ids" in notes[0]


@pytest.mark.parametrize(
    ("refused", "note"),
    [(("ignore_eos",), "refuses ignore_eos"), (("stream_options",), "refuses stream_options")],
)
def test_a_field_that_the_server_refuses_is_left_out_and_told(refused: tuple[str, ...], note: str) -> None:
    server = FakeOpenAi(refused=refused)
    _, notes = found(server, Endpoint.COMPLETIONS)
    assert [note in each for each in notes] == [True]
    assert not set(refused) & set(server.requests[-1].fields)


def test_without_any_count_lengths_are_a_guess_and_that_is_told() -> None:
    _, notes = found(FakeOpenAi(usage=False), Endpoint.CHAT)
    assert any("a guess" in note for note in notes)


def test_a_server_that_refuses_everything_is_named_with_its_reason() -> None:
    with pytest.raises(LoadError, match=r"http://fake:80/v1/completions: HTTP 400: \['model'\] is not supported"):
        found(FakeOpenAi(refused=("model",)), Endpoint.COMPLETIONS)


# ---- what a server tells


def facts(server: FakeOpenAi, model: str | None = None) -> ServerFacts:
    async def main() -> ServerFacts:
        return await look_at(target(server.answers), model)

    return run_virtual(main())


def test_the_model_its_context_and_the_workers_of_a_gateway_are_read() -> None:
    assert facts(FakeOpenAi(tiers=(2, 3))) == ServerFacts("fake", 4096, (2, 3), ())
    unknown = facts(FakeOpenAi(context=None))
    assert unknown.context_tokens is None and unknown.workers is None and "does not tell" in unknown.notes[0]


def test_a_model_that_the_server_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(LoadError, match="does not serve 'other'; it serves fake"):
        facts(FakeOpenAi(), "other")


def test_a_url_that_is_no_api_is_refused_with_advice() -> None:
    async def main() -> None:
        server = FakeOpenAi()
        sender = target(server.answers)
        sender.url = type(sender.url)(False, "fake", 80, "/api")
        await look_at(sender, None)

    with pytest.raises(LoadError, match="HTTP 404 with no list of models; is this the base URL"):
        run_virtual(main())


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (b"", "connection lost: the server closed the connection without an answer"),
        (b"SSH-2.0\r\n", "broken HTTP"),
        (whole(401, {"error": {"message": "no key"}}), "HTTP 401: no key; give a key with --api-key"),
        (whole(200, {"data": "none"}), "no list of models; is this the base URL"),
        (b"HTTP/1.1 308 X\r\nlocation: https://b/v1\r\ncontent-length: 0\r\n\r\n", "redirects to https://b/v1"),
    ],
)
def test_a_server_that_is_no_api_is_refused_with_the_reason(piece: bytes, message: str) -> None:
    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        yield piece
        raise Hangup

    async def main() -> None:
        await look_at(target(answers), None)

    with pytest.raises(LoadError, match=message):
        run_virtual(main())
