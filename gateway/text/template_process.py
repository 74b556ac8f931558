"""The process that renders one chat template of a client for gateway/text/client_template.py: JSON in, JSON out.

Before it renders, the process gives up what a template could misuse: time, memory, files, sockets and children."""

import json
import resource
from collections.abc import Callable
from datetime import datetime
from typing import Any

from gateway.text.jinja import RENDER_ERRORS, CompiledTemplate, TemplateFault

CPU_SECONDS = 1
MEMORY_BYTES = 512 << 20
# Loads what rendering needs, errors included, while files can still be opened.
_WARM_UP = (
    "{{ strftime_now('%d %b %Y') }}{{ [1] | tojson }}{{ 'a b' | wordwrap(2) | striptags | urlize }}{{ lipsum(n=1) }}"
    "{{ 'a' | pprint }}{{ [1] | random }}{{ raise_exception('') }}"
)


def prepare() -> Callable[[bytes], bytes]:
    return answer


def answer(raw: bytes) -> bytes:
    task = json.loads(raw)
    _render({"now": "2026-01-01T00:00:00", "template": _WARM_UP, "variables": {}})
    limits = {
        resource.RLIMIT_CPU: CPU_SECONDS,
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))
    return json.dumps(_render(task)).encode()


def _render(task: dict[str, Any]) -> dict[str, str]:
    now = datetime.fromisoformat(task["now"]) if task["now"] else None
    try:
        text = CompiledTemplate(task["template"], None if now is None else lambda: now).render(task["variables"])
        return {"text": text}
    except TemplateFault as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except OSError:
        return {"error": "it wants to open a file"}
    except RENDER_ERRORS as error:
        return {"error": str(error)}
