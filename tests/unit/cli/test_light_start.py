"""The modules that a service loads when it starts: none of torch, and in the gateway none that computes.

import-linter reads our own imports; these tests look into the process, and so see the imports of other packages too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMPUTES = {"torch", "numpy", "transformers", "safetensors", "engine", "kvtransfer", "baton_kernels"}
COLUMNS = {"numpy"}  # the router compares a thousand workers as columns of numbers
OTLP = {"opentelemetry"}  # only reads in tests what mesh/telemetry/otlp_bytes.py writes


def loaded(*modules: str) -> set[str]:
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys, {', '.join(modules)}\nprint(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (("cli.local_mesh.serve", "cli.local_mesh.loop", "gateway.main"), COMPUTES - COLUMNS | OTLP),
        (
            ("cli.local_mesh.serve", "cli.local_mesh.loop", "prefill_svc.main"),
            {"torch", "transformers", "safetensors"} | OTLP,
        ),
        (
            ("cli.local_mesh.serve", "cli.local_mesh.loop", "decode_svc.main"),
            {"torch", "transformers", "safetensors"} | OTLP,
        ),
        (("cli.local_mesh.up",), COMPUTES | OTLP | {"grpc"}),
    ],
    ids=["gateway", "prefill", "decode", "up"],
)
def test_a_process_loads_only_what_it_needs(modules: tuple[str, ...], unwanted: set[str]) -> None:
    assert not unwanted & loaded(*modules)


def test_what_a_process_loads_would_be_noticed() -> None:
    assert loaded("bench.span_sink") >= OTLP and loaded("engine.loading.loaded") >= {"numpy", "engine", "baton_kernels"}
