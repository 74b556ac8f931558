"""Message logs of simulated processes, in memory; the product's own network writes them
(mesh/network/logged_network.py).

Instead of times they carry the order of all lines, so that clocks which drift confuse no reader."""

from itertools import count

from mesh.network.interface import Network
from mesh.network.logged_network import LoggedNetwork
from mesh.network.message_log import MessageLog


class SimLogs:
    def __init__(self) -> None:
        self.lines: list[list[bytes]] = []  # log lines of each process
        self.over = False  # the run has ended, and what is left of its processes is cleared away
        self._order = count()

    def network(self, network: Network, *, tier: str, name: str, incarnation: int | None) -> Network:
        """The network of one process, which logs from now on."""
        own = len(self.lines) if incarnation is None else incarnation
        self.lines.append(lines := [])

        def write(line: bytes) -> None:
            if not self.over:
                lines.append(line)

        def clock() -> float:
            return float(next(self._order))

        return LoggedNetwork(network, MessageLog(write, tier=tier, name=name, incarnation=own, clock=clock))

    @property
    def texts(self) -> list[bytes]:
        return [b"".join(lines) for lines in self.lines]


def logged_host(logs: SimLogs | None, host: Network, tier: str, name: str, incarnation: int | None = None) -> Network:
    """The network as a process sees it; None: it logs nothing."""
    return host if logs is None else logs.network(host, tier=tier, name=name, incarnation=incarnation)
