"""Finds out how this server takes prompts of exact lengths, and which optional fields it accepts.

Token ids are exact and need no tokenizer. Where the server has /tokenize, the ids come from a text, so they are
ordinary tokens of its model; else they are low ids, which every vocabulary has. A chat, and a server that refuses ids,
gets words whose cost the server's own count tells."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from cli.connecting.http_client import RequestFailed
from cli.load.form import Endpoint, RequestForm
from cli.load.plan import LoadError, LoadRequest
from cli.load.prompts import PromptMaker, TextUnit, TokenPrompts, WordPrompts
from cli.load.record import MeasuredRequest
from cli.load.server_facts import LOOK_SECONDS, ServerFacts
from cli.load.target import LoadTarget

Ask = Callable[[RequestForm, LoadRequest], Awaitable[MeasuredRequest]]

LOW_IDS = range(33, 97)
LEAST_IDS = 16  # fewer different tokens would make accidental prefixes
SAMPLE = (
    "A relay race has four runners. Each carries the baton for one leg of the way and hands it to the next, who is "
    "already running; no step is lost, and the time of the team is what counts at the end of the day."
)
WORDS = (" the", " and", " for", " with", " that", " from", " time", " year", " work", " house", " water", " life")
FEW, MANY = 8, 40  # words of a calibration request
REFUSED = frozenset({"HTTP 400", "HTTP 422", "HTTP 500"})  # answers to a field that a server does not know


async def find_form(
    target: LoadTarget, facts: ServerFacts, endpoint: Endpoint, *, seed: int, ask: Ask
) -> tuple[RequestForm, list[str]]:
    """The form of the run's requests, and notes for the report. LoadError where the server answers no request."""
    notes, refusal = list[str](), ""
    if endpoint is Endpoint.COMPLETIONS:
        ids = await _ordinary_ids(target, facts.model)
        form, refusal = await _accepted(facts.model, endpoint, TokenPrompts(ids or LOW_IDS, seed), ask)
        if form is not None:
            return form, [*notes, *_about(form)]
        notes.append(f"The server refuses prompts as token ids ({refusal}): prompts are words.")
    plain = WordPrompts([TextUnit(word, 1) for word in WORDS], 0, seed)
    form, words_refusal = await _accepted(facts.model, endpoint, plain, ask)
    if form is None:
        raise LoadError(f"{target.url}{RequestForm(facts.model, endpoint, plain).path}: {words_refusal or refusal}")
    prompts, more = await _calibrated(form, seed, ask)
    return replace(form, prompts=prompts), [*notes, *more, *_about(form)]


async def _ordinary_ids(target: LoadTarget, model: str) -> list[int]:
    """Tokens of SAMPLE; empty without /tokenize. vLLM and SGLang read `prompt`, llama.cpp reads `content`."""
    body = {"model": model, "prompt": SAMPLE, "content": SAMPLE, "add_special_tokens": False, "add_special": False}
    try:
        status, answer = await target.fetch("POST", "/tokenize", body, seconds=LOOK_SECONDS)
    except RequestFailed:
        return []
    tokens = answer.get("tokens") if status == 200 and isinstance(answer, dict) else None
    ids = sorted({token for token in tokens if type(token) is int and token >= 0}) if isinstance(tokens, list) else []
    return ids if len(ids) >= LEAST_IDS else []


async def _accepted(model: str, endpoint: Endpoint, prompts: PromptMaker, ask: Ask) -> tuple[RequestForm | None, str]:
    """The fullest form that the server answers, or None and why it refuses the last one."""
    why = ""
    for ignores_end, wants_usage in ((True, True), (False, True), (True, False), (False, False)):
        form = RequestForm(model, endpoint, prompts, ignores_end, wants_usage)
        record = await ask(form, LoadRequest(FEW, 2))
        if not record.error:
            return form, ""
        why = record.why
        if record.error not in REFUSED:
            raise LoadError(why)
    return None, why


async def _calibrated(form: RequestForm, seed: int, ask: Ask) -> tuple[WordPrompts, list[str]]:
    """Words with the tokens that the server counts for them."""

    async def counted(word: str, times: int) -> int | None:
        prompts = WordPrompts([TextUnit(word, 1)], 0, seed)
        return (await ask(replace(form, prompts=prompts), LoadRequest(times, 1))).prompt_tokens

    few, many = await counted(WORDS[0], FEW), await counted(WORDS[0], MANY)
    if few is None or many is None or many <= few:
        guess = WordPrompts([TextUnit(word, 1) for word in WORDS], 0, seed)
        return guess, ["The server counts no tokens: a word counts as one token, so prompt lengths are a guess."]
    overhead = round(few - FEW * (many - few) / (MANY - FEW))
    units = list[TextUnit]()
    for word in WORDS:
        count = await counted(word, MANY)
        if count is not None and count > overhead and (count - overhead) % MANY == 0:
            units.append(TextUnit(word, (count - overhead) // MANY))
    if not units:
        units = [TextUnit(WORDS[0], max(1, round((many - overhead) / MANY)))]
    return WordPrompts(units, max(0, overhead), seed), []


def _about(form: RequestForm) -> list[str]:
    notes = list[str]()
    if not form.ignores_end:
        notes.append("The server refuses ignore_eos: answers may be shorter than planned.")
    if not form.wants_usage:
        notes.append("The server refuses stream_options: it may send no usage.")
    return notes
