"""`baton chat`: a conversation with a running mesh; every turn sends all of it, and the prefix cache remembers."""

import asyncio
from typing import Annotated

import typer

from cli.client import Message, chat_request, sampling, stream
from cli.errors import readable_errors
from cli.generate import Address, MaxTokens, Seed, Temperature
from cli.output import err, say, write


def chat(
    address: Address = "127.0.0.1:50051",
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = None,
    seed: Seed = None,
) -> None:
    """Talk to a running mesh; Ctrl-D ends the conversation, Ctrl-C the current answer.

    Example: baton chat --system "You answer in one sentence."
    """
    messages: list[Message] = [("system", system)] if system else []
    while True:
        try:
            question = err.input("you › ", markup=False).strip()
        except (EOFError, KeyboardInterrupt):
            say("")
            return
        if not question:
            continue
        messages.append(("user", question))
        answer: list[str] = []
        try:
            with readable_errors():
                asyncio.run(_turn(address, messages, answer, max_tokens=max_tokens, temperature=temperature, seed=seed))
        except KeyboardInterrupt:
            pass
        write("\n")
        messages.append(("assistant", "".join(answer)))


async def _turn(
    address: str,
    messages: list[Message],
    answer: list[str],
    *,
    max_tokens: int,
    temperature: float | None,
    seed: int | None,
) -> None:
    """Append to `answer` what has come, also when it is interrupted."""
    request = sampling(chat_request(messages), max_tokens=max_tokens, temperature=temperature, seed=seed)
    async for event in stream(address, request):
        if event.WhichOneof("event") == "delta":
            answer.append(event.delta.text)
            write(event.delta.text)
