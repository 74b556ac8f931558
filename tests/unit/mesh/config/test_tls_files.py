"""The files of TLS: what is read, what is refused at start by its key, and what is warned about."""

import logging
from pathlib import Path
from typing import Any

import pytest

from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig
from mesh.config.worker_config import DecodeConfig
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.tls import tls_files
from tests.unit.certificates import Authority, files_in, openssl
from tests.unit.mesh.tls_port import served


def test_files_that_do_not_fit_together_are_not_used(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.files(tmp_path / "server")
    before = files.current()
    authority.sign(tmp_path / "next")
    (tmp_path / "next" / "key.pem").replace(tmp_path / "server" / "key.pem")
    with caplog.at_level(logging.WARNING):
        assert files.current() is before and files.current() is before
    assert caplog.text.count("tls_certificate") == 1
    (tmp_path / "next" / "certificate.pem").replace(tmp_path / "server" / "certificate.pem")
    assert files.current() is not before


def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path, authority: Authority) -> None:
    files = authority.files(tmp_path / "server")
    before = files.current()
    (tmp_path / "server" / "ca.pem").rename(tmp_path / "ca.pem")
    assert files.current() is before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("certificate.pem", "nonsense", "tls_certificate: .*certificate.pem"),
        ("key.pem", "nonsense", "tls_certificate: .*key.pem"),
        ("ca.pem", "nonsense", "tls_ca: .*ca.pem"),
    ],
)
def test_files_that_cannot_be_used_at_start_are_named_by_their_key(
    tmp_path: Path, authority: Authority, name: str, content: str, message: str
) -> None:
    folder = authority.sign(tmp_path / "server")
    (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        files_in(folder)


def test_the_settings_name_the_files_of_every_service(tmp_path: Path, authority: Authority) -> None:
    folder = authority.sign(tmp_path / "server")
    tls = {
        "tls_certificate": folder / "certificate.pem",
        "tls_key": folder / "key.pem",
        "tls_ca": folder / "ca.pem",
        "tls_name": "baton.internal",
    }
    for config in (GatewayConfig(**tls), DecodeConfig(**tls)):
        files = tls_files(config)
        assert files is not None
        assert files.name == "baton.internal"
        assert files.current().authority == authority.certificate.read_bytes()
    assert tls_files(GatewayConfig()) is None


def test_an_encrypted_key_is_refused_and_no_passphrase_is_asked_for(tmp_path: Path, authority: Authority) -> None:
    folder = authority.sign(tmp_path / "server")
    openssl(f"ec -in {folder}/key.pem -aes128 -passout pass:secret -out {folder}/encrypted.pem")
    (folder / "encrypted.pem").replace(folder / "key.pem")
    with pytest.raises(ConfigError, match=r"^tls_key: .*key.pem is encrypted.*openssl pkey"):
        files_in(folder)


def test_a_key_that_grpc_does_not_take_is_refused_at_start(tmp_path: Path, authority: Authority) -> None:
    folder = authority.sign(tmp_path / "server", key_of="-newkey ed25519 -nodes -days 2")
    with pytest.raises(ConfigError, match=r"^tls_certificate: .* uses Ed25519, .*sign one with a key of P-256"):
        files_in(folder)


async def test_files_with_comments_in_any_letters_and_windows_line_ends_are_read(
    tmp_path: Path, authority: Authority
) -> None:
    folder = authority.sign(tmp_path / "server")
    for name in ("certificate.pem", "key.pem", "ca.pem"):
        content = (folder / name).read_bytes().replace(b"\n", b"\r\n")
        (folder / name).write_bytes("Zürich\r\n".encode() + content)
    async with served(files_in(folder)) as port:
        await port.attach(GrpcNetwork(tls=files_in(folder)))


@pytest.mark.parametrize(
    ("fault", "name", "message"),
    [
        ({"days": -1}, "", "certificate has expired"),
        ({"usage": "serverAuth"}, "", "unsuitable certificate purpose"),
        ({}, "baton.internal", "not valid for 'baton.internal'"),
        ({}, "", ""),
    ],
)
def test_a_certificate_that_its_own_peers_would_refuse_is_warned_about_at_start(
    tmp_path: Path,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    fault: dict[str, Any],
    name: str,
    message: str,
) -> None:
    folder = authority.sign(tmp_path / "server", **fault)
    files_in(folder, name=name)
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == bool(message)
    assert all("tls_certificate" in warning and message in warning for warning in warnings)
