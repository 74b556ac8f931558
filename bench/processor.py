"""The name of this machine's processor, as every result gives it."""

from pathlib import Path


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    kinds = [kind for kind in ("amx_bf16", "avx512_bf16", "avx2") if kind in facts.get("flags", "").split()]
    return f"{facts.get('model name', 'unknown processor').strip()} ({kinds[0] if kinds else 'no vector units known'})"
