"""The real clients of `make clients`, in the order in which they run.

A client has a script in tests/clients/scripts, with_ and its name, and pins: a file of its name in
tests/clients/requirements, or package.json for node. The first line of a script says what it tries."""

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PACKAGE_JSON = FOLDER / "package.json"


@dataclass(frozen=True, slots=True)
class RealClient:
    name: str
    pins: str = ""  # another client's requirements; empty: its own
    node: bool = False
    seconds: float = 300.0  # its time limit

    @property
    def script(self) -> Path:
        return FOLDER / "scripts" / f"with_{self.name}.{'mjs' if self.node else 'py'}"

    @property
    def requirements(self) -> Path:
        return PACKAGE_JSON if self.node else FOLDER / "requirements" / f"{self.pins or self.name}.txt"

    @property
    def tries(self) -> str:
        """What the script tries: its first line."""
        text = self.script.read_text()
        if self.node:
            return text.partition("\n")[0].removeprefix("// ").rstrip(".")
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].rstrip(".")


CLIENTS = (
    RealClient("openai"),
    RealClient("agent_loop", pins="openai"),
    RealClient("anthropic"),
    RealClient("ollama"),
    RealClient("ollama_js", node=True),
    RealClient("litellm"),
    RealClient("langchain"),
    RealClient("instructor"),
    RealClient("pydantic_ai"),
    RealClient("openai_agents"),
    RealClient("smolagents"),
    RealClient("lm_eval", seconds=600.0),
    RealClient("vercel", node=True),
    RealClient("stubs"),
    RealClient("health"),
    RealClient("aiperf", seconds=300.0),
    RealClient("guidellm", seconds=300.0),
)
