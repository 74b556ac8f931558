"""The token that `baton up` draws: in a file of its user alone while the command runs, and never on a command line."""

import multiprocessing
import os
import signal
import stat
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from cli.local_mesh.drawn_token import drawn_token
from cli.local_mesh.ports import free_address
from cli.local_mesh.services import services_of
from mesh.config.services import MeshConfig
from mesh.config.settings import read_settings
from mesh.network.mesh_token import MeshToken


def mesh_in(folder: Path, **settings: str) -> MeshConfig:
    addresses = {f"gateway.{name}_address": free_address() for name in ("http", "grpc", "worker")}
    return read_settings(overrides={"cache_folder": str(folder), **addresses, **settings}).mesh()


def test_a_token_is_drawn_for_one_command(tmp_path: Path) -> None:
    mesh, seen = mesh_in(tmp_path / "cache"), set[str]()
    for _ in range(2):
        with drawn_token(mesh) as settings:
            file = Path(settings["mesh_token_file"])
            assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.parent == tmp_path / "cache"
            ((_, token),) = MeshToken(file).metadata
            seen.add(token)
        assert not file.exists()
    assert len(seen) == 2 and all(len(token) == 64 for token in seen)


def test_every_service_gets_the_file_and_no_command_line_shows_the_token(tmp_path: Path) -> None:
    mesh = mesh_in(tmp_path)
    with drawn_token(mesh) as settings:
        token = Path(settings["mesh_token_file"]).read_text().strip()
        services = services_of(mesh, file=None, overrides=settings, otlp_endpoint="")
        assert len(services) == 1 + mesh.workers
        for service in services:
            assert f"mesh_token_file={settings['mesh_token_file']}" in service.arguments
            assert not any(token in part for part in service.arguments)


def test_a_token_or_tls_of_the_settings_is_used_instead(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 32)
    mesh = mesh_in(tmp_path, mesh_token_file=str(tmp_path / "token"))
    with drawn_token(mesh) as settings:
        assert settings == {}
    encrypted = mesh_in(tmp_path)
    object.__setattr__(encrypted.gateway, "tls_ca", tmp_path / "token")
    with drawn_token(encrypted) as settings:
        assert settings == {}
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def _hold(mesh: MeshConfig, ready: Connection) -> None:
    with drawn_token(mesh) as settings:
        ready.send(settings["mesh_token_file"])
        signal.pause()


def test_the_file_of_a_killed_command_is_removed_by_the_next_one_and_that_of_a_running_one_stays(
    tmp_path: Path,
) -> None:
    mesh, context = mesh_in(tmp_path), multiprocessing.get_context("spawn")
    held = list[tuple[int, Path]]()
    processes = []
    for _ in range(2):
        mine, theirs = context.Pipe()
        process = context.Process(target=_hold, args=(mesh, theirs))
        process.start()
        assert mine.poll(120)
        processes.append(process)
        held.append((process.pid or 0, Path(mine.recv())))
    try:
        os.kill(held[0][0], signal.SIGKILL)
        processes[0].join()
        assert held[0][1].exists()
        with drawn_token(mesh):
            assert [path.exists() for _, path in held] == [False, True]
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    mesh = mesh_in(tmp_path)
    mesh = replace(mesh, gateway=replace(mesh.gateway, cache_folder=tmp_path / "file" / "below"))
    with drawn_token(mesh) as settings:
        assert Path(settings["mesh_token_file"]).parent == tmp_path / "temporary"
