"""Orders of one process of a test mesh, as they travel in one JSON argument.

`settings` are the product's own keys. The other fields are what no operator can configure: timers with other values,
guards replaced by mutants, and pushes made slow enough to be interrupted. Slow pushes change neither what is pushed,
nor by whom, nor what happens when a push breaks."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mesh.rules import RULES, Rules


@dataclass(frozen=True, slots=True)
class Orders:
    tier: str  # gateway, prefill or decode
    settings: Mapping[str, str]
    parent: int  # id of the process whose end ends this one
    rules: Mapping[str, float | int] = field(default_factory=dict)  # timers and counts that differ from the product's
    mutants: tuple[str, ...] = ()  # rules whose guards are replaced by their mutants (tests/mutants)
    bytes_per_second: float | None = None  # rate of pushes over TCP
    span_pause_seconds: float = 0.0  # pause after each span that the shared-memory copy kernel has copied
    resume: bool = True  # False: the gateway ends a request at its first loss
    notices: bool = True  # False: the gateway goes on with requests whose clients have gone
    drains: bool = False  # SIGTERM makes a worker drain, as the product does; False: it ends at once
    damage: float = 0.0  # share of decode's checks of spans before which a page is damaged (tests/harness/damage.py)
    delays: bool = False  # the window's command `delay` can put a delay into a stage (tests/harness/delays.py)

    def pack(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def unpack(cls, text: str) -> "Orders":
        raw = json.loads(text)
        return cls(**raw | {"mutants": tuple(raw["mutants"])})

    def changed_rules(self) -> Rules:
        return dataclasses.replace(RULES, **self.rules)  # type: ignore[arg-type]
