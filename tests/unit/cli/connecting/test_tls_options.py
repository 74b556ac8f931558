"""The clients of a mesh with TLS against a small real gRPC server that asks for a certificate."""

import asyncio
import shlex
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from baton.client import Client
from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from cli.connecting.tls_options import client_config, tls_arguments
from cli.main import build
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.tls import tls_files
from tests.harness.client import MeshClient, TokenRequest
from tests.unit.certificates import Authority, files_in


class Parrot(pb_grpc.InferenceServiceServicer):
    """Answers with the prompt."""

    async def StreamGenerate(self, wrapped: Any, context: Any) -> AsyncIterator[pb.StreamGenerateResponse]:
        request = wrapped.request
        text = request.text or "".join(message.content for message in request.chat.messages)
        yield pb.StreamGenerateResponse(delta=pb.Delta(text=text))
        yield pb.StreamGenerateResponse(finished=pb.Finished())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def folder(tmp_path: Path, authority: Authority) -> Path:
    """The files of a client."""
    return authority.sign(tmp_path / "client")


@pytest.fixture
def gateway(tmp_path: Path, authority: Authority) -> Iterator[str]:
    """The address of a server in a thread with a loop of its own; its certificate names the mesh, not the host."""
    files = authority.files(tmp_path / "server", names="DNS:baton.internal")
    loop = asyncio.new_event_loop()

    def add(server: grpc.aio.Server) -> Sequence[str]:
        pb_grpc.add_InferenceServiceServicer_to_server(Parrot(), server)
        return ()

    async def start() -> Any:
        return await GrpcNetwork(tls=files, also=add).listen("127.0.0.1:0", {})

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield listening.address
    asyncio.run_coroutine_threadsafe(listening.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def options(folder: Path) -> list[str]:
    return [
        *("--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem")),
        *("--tls-ca", str(folder / "ca.pem"), "--tls-name", "baton.internal"),
    ]


def written(folder: Path) -> Path:
    """A mesh's configuration file, with relative paths and settings that a client does not read."""
    file = folder / "baton.toml"
    lines = ("tls_certificate = 'certificate.pem'", "tls_key = 'key.pem'", "tls_ca = 'ca.pem'")
    file.write_text("\n".join((*lines, "model = '/only/on/the/servers'", "[gateway]", "tls_name = 'baton.internal'")))
    return file


def generate(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(build("generate"), ["generate", "once upon", *arguments], env=env)


def test_generate_takes_the_files_as_options(gateway: str, folder: Path) -> None:
    result = generate("--address", gateway, *options(folder))
    assert (result.exit_code, result.stdout) == (0, "once upon\n"), result.output


def test_generate_takes_the_files_from_the_configuration_of_the_mesh(gateway: str, folder: Path) -> None:
    result = generate("--address", gateway, "--config", str(written(folder)))
    assert (result.exit_code, result.stdout) == (0, "once upon\n"), result.output


def test_generate_takes_the_files_from_the_environment(gateway: str, folder: Path) -> None:
    files = {"CERTIFICATE": "certificate.pem", "KEY": "key.pem", "CA": "ca.pem"}
    env = {f"BATON_TLS_{key}": str(folder / name) for key, name in files.items()}
    result = generate("--address", gateway, env=env | {"BATON_TLS_NAME": "baton.internal"})
    assert (result.exit_code, result.stdout) == (0, "once upon\n"), result.output


def test_chat_takes_the_files_as_options(gateway: str, folder: Path) -> None:
    arguments = ["chat", "--address", gateway, *options(folder)]
    result = CliRunner().invoke(build("chat"), arguments, input="hello there\n")
    assert result.exit_code == 0 and "hello there" in result.output


def test_a_client_in_plain_text_is_told_which_settings_the_mesh_wants(gateway: str) -> None:
    result = generate("--address", gateway)
    assert result.exit_code == 1
    assert "set tls_certificate, tls_key and tls_ca" in result.stderr


def test_a_client_that_expects_another_name_learns_of_tls_name(gateway: str, folder: Path) -> None:
    result = generate("--address", gateway, *options(folder), "--tls-name", "other.internal")
    assert result.exit_code == 1
    assert "does not carry 'other.internal' (tls_name)" in result.stderr


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_half_of_the_files_are_refused_before_anything_is_sent(folder: Path, command: str) -> None:
    arguments = [command, *(["hello"] if command == "generate" else []), "--tls-ca", str(folder / "ca.pem")]
    result = CliRunner().invoke(build(command), arguments, input="hello\n")
    assert result.exit_code == 2
    assert "tls_certificate: is missing beside tls_ca" in result.stderr


def test_up_shows_the_options_that_a_client_of_its_mesh_takes(folder: Path) -> None:
    spaced = folder.rename(folder.parent / "with space")
    config = client_config(written(spaced), None, None, None, None)
    assert shlex.split(tls_arguments(config)) == options(spaced)
    assert tls_arguments(client_config(None, None, None, None, None)) == ""


async def test_the_client_of_the_stubs_takes_credentials_and_the_name(gateway: str, folder: Path) -> None:
    files = files_in(folder)
    async with Client(gateway, credentials=files.channel_credentials(), server_name="baton.internal") as client:
        assert await client.generate_text("once upon") == "once upon"
    async with Client(gateway, credentials=files.channel_credentials(), patience_seconds=0.0) as client:
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await client.generate_text("once upon")


async def test_the_client_of_the_tests_takes_the_files_too(gateway: str, folder: Path) -> None:
    client = MeshClient(gateway, tls_files(client_config(written(folder), None, None, None, None)))
    assert (await client.ask(TokenRequest("one", (33,), 1))).error == ""
    await client.aclose()
