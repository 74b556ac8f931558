"""`baton chat`: a conversation with a running mesh. Every turn sends the whole conversation; the mesh's prefix cache
keeps what was computed before.

The model may call the example tool: this process runs the call, appends its result and sends the conversation again."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import typer

from baton.inference.v1 import inference_pb2 as pb
from cli.clients.client import sampling, stream
from cli.clients.example_tools import MESH_STATUS, run_tool
from cli.clients.generate import Address, MaxTokens, Model, Seed, Temperature
from cli.connecting.tls_options import ConfigFile, TlsCa, TlsCertificate, TlsKey, TlsName, client_config
from cli.errors import MeshError, readable_errors
from cli.output import err, say, write, write_reasoning
from mesh.network.tls import TlsFiles, tls_files

CALLS_IN_A_ROW = 4  # tool calls after which a turn ends
CONTEXT_TOO_LONG = "CONTEXT_TOO_LONG"  # reason of the error when the conversation exceeds the context
PROMPT = "you › "
LAST_WORDS = ("/exit", "/quit", "/bye", "exit", "quit")  # a person at a terminal leaves with these


def chat(
    address: Address = "127.0.0.1:50051",
    http: Annotated[str, typer.Option(help="HTTP address of the gateway, for the tool.")] = "127.0.0.1:8000",
    system: Annotated[str | None, typer.Option(help="System message, the first of the chat.")] = None,
    tool: Annotated[bool, typer.Option("--tool/--no-tool", help="Let the model call the example tool.")] = True,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = None,
    seed: Seed = None,
    model: Model = None,
    config: ConfigFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_name: TlsName = None,
) -> None:
    """Hold a conversation with a running mesh. Ctrl-D or /exit ends it, Ctrl-C stops the current answer.

    The model can call one tool, mesh_status(tier), which runs in this process and counts the workers of the mesh. Try:
    How many decode workers run?

    Example: baton chat --system "You are Baton's guide."
    """
    with readable_errors():
        tls = tls_files(client_config(config, tls_certificate, tls_key, tls_ca, tls_name))
    tools = [MESH_STATUS] if tool else []
    conversation = Conversation(address, http, tls, max_tokens, temperature, seed, tools, model)
    if system:
        conversation.messages.append(pb.ChatMessage(role="system", content=system))
    read = _reader()
    if sys.stdin.isatty():
        with_tool = ", which may ask how many workers run" if tools else ""
        say(f"a chat with {model or 'the model'} at {address}{with_tool}; Ctrl-D or /exit ends it", style="dim")
    while True:
        try:
            question = read().strip()
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:
            say("\nCtrl-D ends the chat", style="dim")
            continue
        if question in LAST_WORDS and sys.stdin.isatty():
            return
        if question:
            with readable_errors():
                conversation.ask(question)


def _reader() -> Callable[[], str]:
    """Reads a question. In a terminal the arrow keys edit it and recall earlier ones, where Python has readline."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - input() uses it once it is imported

            return lambda: input(PROMPT)
    return lambda: err.input(PROMPT, markup=False)


@dataclass(slots=True)
class Conversation:
    address: str
    http_address: str
    tls: TlsFiles | None
    max_tokens: int
    temperature: float | None
    seed: int | None
    tools: list[pb.Tool]
    model: str | None = None
    messages: list[pb.ChatMessage] = field(default_factory=list)
    answered: bool = False  # the mesh has answered in this conversation

    def ask(self, question: str) -> None:
        """One turn. Ctrl-C ends the answer, which the conversation keeps as far as it is there. A turn that fails is
        withdrawn, and the conversation goes on."""
        self.messages.append(pb.ChatMessage(role="user", content=question))
        try:
            asyncio.run(self.turn())
            self.answered = True
        except KeyboardInterrupt:
            write("\n")
            self._close()
        except MeshError as error:
            if not self.answered:
                raise
            del self.messages[self._start() :]
            say(f"{error}\nthe question is withdrawn; the conversation before it is kept", style="red")

    async def turn(self) -> None:
        """Send the conversation until the model answers without a tool call."""
        for _ in range(CALLS_IN_A_ROW + 1):
            calls = await self._ask()
            if not calls:
                return
            for call in calls:
                result = await run_tool(call, self.http_address)
                say(f"{call.name} {call.arguments_json} → {result}", style="dim")
                self.messages.append(pb.ChatMessage(role="tool", content=result, tool_call_id=call.id))

    async def _ask(self) -> list[pb.ToolCall]:
        try:
            return await self._answer()
        except MeshError as error:
            self.messages.pop()
            if error.field == "chat.tools" and self.tools:
                say("this model takes no tools: the conversation continues without them", style="dim")
                self.tools.clear()
            elif error.reason != CONTEXT_TOO_LONG or not self._forget():
                raise
        return await self._ask()

    def _forget(self) -> bool:
        """Drop the oldest turn, because the context is full; False if there is only the current one."""
        turns = [at for at, message in enumerate(self.messages) if message.role == "user"]
        if len(turns) < 2:
            say("this question alone is too long for the model's context: shorten it, or lower --max-tokens")
            return False
        del self.messages[turns[0] : turns[1]]
        say("the model's context is full: the oldest turn is forgotten", style="dim")
        return True

    def _start(self) -> int:
        """Where the current turn begins."""
        return max(at for at, message in enumerate(self.messages) if message.role == "user")

    def _close(self) -> None:
        """Keep of an interrupted turn what the next can build on: nothing, if no word has come."""
        start = self._start()
        while len(self.messages) > start:
            last = self.messages[-1]
            if last.role == "assistant" and last.content:
                del last.tool_calls[:]  # they were not run
                return
            self.messages.pop()

    async def _answer(self) -> list[pb.ToolCall]:
        """The answer grows as a message of the conversation, which therefore keeps an interrupted answer too."""
        request = pb.GenerateRequest(model=self.model, chat=pb.Chat(messages=self.messages, tools=self.tools))
        sampling(request, max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)
        answer = pb.ChatMessage(role="assistant", content="")
        self.messages.append(answer)
        async for event in stream(self.address, request, self.tls):
            if event.WhichOneof("event") == "delta":
                if event.delta.reasoning:
                    answer.reasoning += event.delta.reasoning
                    write_reasoning(event.delta.reasoning)
                if event.delta.text and answer.reasoning and not answer.content:
                    say("")  # the answer begins on a line of its own
                answer.content += event.delta.text
                answer.tool_calls.extend(event.delta.tool_calls)
                write(event.delta.text)
        if answer.content:
            write("\n")
        return list(answer.tool_calls)
