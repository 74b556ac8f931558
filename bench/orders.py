"""What the process of a benchmark's or fault test's mesh is told: it travels as one JSON argument.

`settings` are the product's own keys. The rest is what no operator can ask for: rules switched off to show what they
prevent, and pushes made slow enough to be interrupted (bytes per second over TCP, a pause after every span that shared
memory's copy kernel has copied). None of it changes what is pushed, by whom, or what happens when it breaks."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mesh.rules import RULES, Rules


@dataclass(frozen=True, slots=True)
class Orders:
    tier: str  # gateway, prefill, decode
    settings: Mapping[str, str]
    parent: int  # the process dies with this one
    rules: Mapping[str, bool | float | int] = field(default_factory=dict)  # other than the product's
    bytes_per_second: float | None = None
    span_pause_seconds: float = 0.0
    resume: bool = True  # False: a gateway that gives a request up at its first loss

    def pack(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def unpack(cls, text: str) -> "Orders":
        return cls(**json.loads(text))

    def changed_rules(self) -> Rules:
        return dataclasses.replace(RULES, **self.rules)  # type: ignore[arg-type]
