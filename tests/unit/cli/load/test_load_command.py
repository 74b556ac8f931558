"""The command as a user runs it: output, exit status, the picture, Ctrl-C, TLS and IPv6, with real sockets."""

import asyncio
import json
import os
import signal
import ssl
import sys
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import build
from tests.unit.certificates import Authority
from tests.unit.cli.load.fake_server import FakeOpenAi, FakeRequest, listening, whole

ROOT = Path(__file__).resolve().parents[4]
MAIN = "from cli.main import main; main()"
QUICK = ("--prefill-speed", "100000", "--decode-step-ms", "5")  # no measurement before the load


async def start(*arguments: str, code: str = MAIN, **environment: str) -> asyncio.subprocess.Process:
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("BATON_", "OPENAI_"))}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-c", code, "bench", "load", *arguments),
        env=clean | {"PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"} | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def bench(*arguments: str, **environment: str) -> tuple[int, str, str]:
    return await finish(await start(*arguments, **environment))


async def finish(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def shape(*more: str, requests: int = 6) -> tuple[str, ...]:
    return ("--shape", "short", "--requests", str(requests), "--rate", "200", *more)


async def test_a_run_ends_with_one_json_object_and_a_picture(tmp_path: Path) -> None:
    server = FakeOpenAi(first_seconds=0.02, gap_seconds=0.001, tiers=(1, 2))
    async with listening(server.answers) as address:
        picture = tmp_path / "run.svg"
        limits = ("--ttft-ms", "60000", "--tpot-ms", "60000", "--itl-ms", "60000")
        more = ("--json", "--picture", str(picture), "--api-key", "k-1")
        status, out, err = await bench(*shape(*limits, *more), "--url", f"http://{address}/v1")
    assert status == 0, err
    report = json.loads(out)
    assert report["requests"] == {"finished": 6, "failed": 0, "unfinished": 0}
    for name, least in (("ttft", 20.0), ("tpot", 1.0), ("itl", 0.0), ("e2e", 20.0)):
        latency = report[name]
        assert latency["unit"] == "ms" and least <= latency["p50"] <= latency["p90"] <= latency["p99"]
    assert report["goodput"]["share"] == 1.0 and report["goodput"]["limits_ms"]["ttft"] == 60000
    assert report["split"]["assumed"]["workers"] == 3 and report["split"]["assumptions"]
    assert report["notes"] == []
    assert "6/6" in err and ET.parse(picture).getroot().tag.endswith("svg")
    sent = [each for each in server.requests if each.path == "/v1/completions"]
    assert all(each.headers["authorization"] == "Bearer k-1" for each in sent)
    prompts = [json.dumps(each.fields["prompt"][:8]) for each in sent]
    assert len(set(prompts)) == len(prompts)  # no prompt, not even of the preparation, begins like another


async def test_failed_requests_give_status_1_and_are_counted_by_kind() -> None:
    server, served = FakeOpenAi(first_seconds=0.0, gap_seconds=0.0), 0

    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        nonlocal served
        if request.path == "/v1/completions":
            served += 1
            if served > 4:
                yield whole(503, {"error": {"message": "no worker"}})
                return
        async for piece in server.answers(request):
            yield piece

    async with listening(answers) as address:
        status, out, _ = await bench(*shape(*QUICK, "--verbose"), "--url", f"http://{address}")
    assert status == 1
    assert "2 finished, 4 failed" in out and "error      4 × HTTP 503: no worker" in out
    assert "A split into tiers is" in out and "assumed    one worker prefills 100,000 tokens/s" in out


async def test_ctrl_c_prints_what_it_has() -> None:
    server, slow = FakeOpenAi(first_seconds=0.0, gap_seconds=0.0), asyncio.Event()

    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        if len([each for each in server.requests if each.path == "/v1/completions"]) >= 4:
            slow.set()
            await asyncio.sleep(600)
        async for piece in server.answers(request):
            yield piece

    async with listening(answers) as address:
        order = ("--shape", "short", "--requests", "6", "--concurrency", "1", "--json")  # the third waits for two
        process = await start(*order, *QUICK, "--url", f"http://{address}")
        await slow.wait()
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    report = json.loads(out)
    assert process.returncode == 130 and report["interrupted"]
    assert report["requests"] == {"finished": 2, "failed": 0, "unfinished": 1}


async def test_ctrl_c_before_the_load_ends_with_a_message() -> None:
    waiting = asyncio.Event()

    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        waiting.set()
        await asyncio.sleep(600)
        yield b""

    async with listening(answers) as address:
        process = await start(*shape(), "--url", f"http://{address}")
        await waiting.wait()
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130 and b"interrupted before the first request" in err


async def test_https_is_checked_against_the_trusted_authorities(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = authority.sign(tmp_path / "tls")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files / "certificate.pem", files / "key.pem")
    async with listening(FakeOpenAi(first_seconds=0.0, gap_seconds=0.0).answers, tls=tls) as address:
        order = (*shape(*QUICK, requests=2), "--url", f"https://{address}/v1")
        trusted = await bench(*order, SSL_CERT_FILE=str(authority.certificate))
        refused = await bench(*order)
    assert trusted[0] == 0, trusted[2]
    assert refused[0] == 2 and "TLS failed: CERTIFICATE_VERIFY_FAILED" in refused[2]


async def test_an_address_of_ipv6_is_reached_where_the_machine_has_one() -> None:
    try:
        async with listening(FakeOpenAi(first_seconds=0.0, gap_seconds=0.0).answers, "::1") as address:
            order = (*shape(*QUICK, requests=2), "--url", f"http://{address}/v1", "--endpoint", "chat")
            status, out, err = await bench(*order)
        assert status == 0 and "2 finished" in out, err
    except OSError:
        status, _, err = await bench(*shape(), "--url", "http://[::1]:9/v1")
        assert status == 2 and "http://[::1]:9/v1: cannot connect" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --shape"),
        (["--shape", "short", "--url", "nowhere"], "'nowhere' is no base URL"),
        (["--shape", "short", "--decode-step-ms", "5"], "belong together"),
        (["--shape", "short", "--picture", "/no/such/folder/x.svg"], "there is no folder /no/such/folder"),
        (["--shape", "short", "--api-key", "a\nb"], "--api-key holds characters"),
        (["--trace", "/no/such/trace"], "/no/such/trace: cannot be read"),
    ],
)
def test_wrong_usage_gives_status_2_and_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(build("bench"), ["bench", "load", *arguments])
    assert result.exit_code == 2 and message in result.output


def test_a_server_that_does_not_listen_is_named(refusing_address: str) -> None:
    url = f"http://{refusing_address}/v1"
    result = CliRunner().invoke(build("bench"), ["bench", "load", "--shape", "short", "--url", url])
    assert result.exit_code == 2 and f"{url}: cannot connect: Connection refused" in result.output


async def test_requests_that_find_no_free_file_are_the_generators_fault() -> None:
    """The server holds every request of the load, so all of them are under way at once; 40 files are too few."""
    server = FakeOpenAi(first_seconds=0.0, gap_seconds=0.0)

    async def answers(request: FakeRequest) -> AsyncIterator[bytes]:
        if len([each for each in server.requests if each.path == "/v1/completions"]) == 2:
            await asyncio.sleep(600)
        async for piece in server.answers(request):
            yield piece

    async with listening(answers) as address:
        order = ("--shape", "short", "--requests", "60", "--rate", "2000", "--timeout", "5", "--json", *QUICK)
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); {MAIN}"
        status, out, err = await finish(await start(*order, "--url", f"http://{address}", code=limit))
    assert status == 1, err
    report = json.loads(out)
    assert report["errors"].keys() == {"generator limit", "timeout"} and report["generator"]["late"]
    assert "no free file or port" in report["generator"]["reasons"][0]


async def test_the_command_needs_the_base_dependencies_only() -> None:
    heavy = "{'torch', 'numpy', 'starlette', 'uvicorn', 'uvloop', 'msgspec', 'tokenizers', 'opentelemetry', 'grpc'}"
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    code = f"import sys, cli.load.command\nprint(*({heavy} & set(sys.modules)))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", code, env=os.environ | {"PYTHONPATH": path}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0 and out.strip() == b""
