"""One port for all gateways of a run, as the processes of one gateway have it: the kernel gives each new connection to
one of the listening sockets. A process that leaves hands its sockets to one that stays, and a process that starts gets
its own one back. gateway/process/listeners.py does this with real sockets; here the product's drain decides when."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.process.leaving import ClientPorts, OwnPorts
from tests.sim.seeds.processes import GatewayProcess

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet

STAYS_SECONDS = 3.0  # a process that is there for so long is found by one that leaves


class PortOfAll:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._owners: dict[str, GatewayProcess] = {}  # by the process whose socket it is: who accepts from it

    def began(self, process: GatewayProcess) -> None:
        self._owners[process.name] = process

    def connect(self) -> GatewayProcess | None:
        """The process that a new connection comes to. A stopped one takes it too, and lets its client wait."""
        owners = [each for each in self._owners.values() if each.alive and not each.replaced]
        return self._fleet.random.choice(owners) if owners else None

    def ports(self, process: GatewayProcess) -> ClientPorts:
        return PortsOfOne(self, process) if self._fleet.world.one_port else OwnPorts()

    def hand_over(self, process: GatewayProcess) -> bool:
        heir = next((each for each in self._fleet.gateways.values() if each.runs and each.leaves_at is None), None)
        if heir is None:
            return False
        for name, owner in self._owners.items():
            if owner is process:
                self._owners[name] = heir
        self._fleet.coverage.reach("a gateway hands its port to another process")
        return True

    def someone_stays(self) -> bool:
        """Whether there is a process that one which leaves must have found by now."""
        return any(self._stays(each) for each in self._fleet.gateways.values())

    def _stays(self, process: GatewayProcess) -> bool:
        since = self._fleet.loop.world - STAYS_SECONDS
        troubled = any(each.name == process.name and each.ended >= since for each in self._fleet.troubles)
        return process.runs and process.leaves_at is None and process.began <= since and not troubled


@dataclass
class PortsOfOne:
    port: PortOfAll
    process: GatewayProcess

    async def hand_over(self, seconds: float) -> bool:
        return self.port.hand_over(self.process)

    @property
    def quiet(self) -> bool:
        return not self.process.calls

    async def close(self) -> None:
        """The sockets end with the process."""
