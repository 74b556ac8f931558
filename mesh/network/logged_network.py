"""A network whose streams write down what goes over them: the one place where a process's messages are logged.

It wraps any network (`mesh/network/interface.py`), so services and sessions know nothing of it, and without the setting
`message_log` it is not there."""

import asyncio
from pathlib import Path

from mesh.messages.message import Message
from mesh.messages.reports import Register
from mesh.network.interface import Accept, Channel, Listening, Network, OnRegister, Stream, StreamClosed
from mesh.network.message_log import MessageLog, open_message_log


class LoggedStream:
    def __init__(self, stream: Stream, log: MessageLog, channel: Channel, *, dialled: bool) -> None:
        self.peer = stream.peer
        self._inner, self._log, self._number = stream, log, log.new_stream()
        self._closed = self._ended = False
        log.note("open", stream=self._number, channel=channel.value, dialled=dialled)

    def send(self, message: Message) -> None:
        if not self._closed:
            self._log.message("send", self._number, message)
        self._inner.send(message)

    async def receive(self) -> Message:
        try:
            message = await self._inner.receive()
        except StreamClosed:
            if not self._ended:
                self._ended = True
                self._log.note("end", stream=self._number)
            raise
        if not self._closed:  # else the session handles it no more
            self._log.message("receive", self._number, message)
        return message

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._log.note("close", stream=self._number)
        self._inner.close()


class LoggedNetwork:
    """The network of one process."""

    def __init__(self, network: Network, log: MessageLog) -> None:
        self._network, self._log = network, log

    async def listen(
        self, address: str, accept: dict[Channel, Accept], on_register: OnRegister | None = None
    ) -> Listening:
        logged = {channel: self._logs(channel, serve) for channel, serve in accept.items()}
        return await self._network.listen(address, logged, on_register)

    def _logs(self, channel: Channel, serve: Accept) -> Accept:
        async def accept(stream: Stream) -> None:
            await serve(LoggedStream(stream, self._log, channel, dialled=False))

        return accept

    async def dial(self, address: str, channel: Channel) -> Stream:
        return LoggedStream(await self._network.dial(address, channel), self._log, channel, dialled=True)

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        return await self._network.resolve(gateway)

    async def register(self, gateway: str, message: Register) -> None:
        await self._network.register(gateway, message)


def with_message_log(network: Network, folder: Path | None, *, tier: str, name: str, incarnation: int) -> Network:
    """The network as it is, or with a log in this folder. The event loop's clock is that of the whole host."""
    if folder is None:
        return network
    clock = asyncio.get_running_loop().time
    return LoggedNetwork(network, open_message_log(folder, tier=tier, name=name, incarnation=incarnation, clock=clock))
