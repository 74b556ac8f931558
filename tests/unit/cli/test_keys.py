"""`baton keys`: draws keys, writes their hashes, and leaves other lines of the file as they are."""

import json
import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import build
from gateway.tenants.keys import KeyFile
from gateway.tenants.rows import KeyTable, Tenant

KEY = "a-key-from-elsewhere-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.txt"


def keys(file: Path, *arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(build("keys"), ["keys", *arguments, "--file", str(file)], input=input)


def table(file: Path) -> KeyTable:
    return KeyFile(file).table


def added(file: Path, name: str, *arguments: str) -> tuple[str, Tenant | None]:
    done = keys(file, "add", name, *arguments)
    assert done.exit_code == 0, done.output
    key = done.stdout.strip()
    return key, table(file).by_key(key.encode())


def test_a_drawn_key_gets_in_and_the_file_holds_its_hash_only(file: Path) -> None:
    key, tenant = added(file, "alice", "--tokens-per-minute", "600", "--concurrent", "3", "--priorities", "-5..9")
    assert tenant is not None and (tenant.name, tenant.tokens_per_minute, tenant.concurrent) == ("alice", 600, 3)
    assert tenant.priorities == (-5, 9) and key.startswith("baton-") and len(key) > 40
    assert key not in file.read_text() and key[6:] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other, ops = added(file, "ops", "--operator", "--priority", "-10")
    assert other != key and ops is not None and ops.operator and ops.priority == -10
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no draft is left"


def test_a_second_key_of_a_tenant_shares_its_limits_until_the_first_one_goes(file: Path) -> None:
    first, tenant = added(file, "alice", "--concurrent", "3")
    second, _ = added(file, "alice")
    assert table(file).by_key(second.encode()) == tenant
    listed = json.loads(keys(file, "list", "--json").stdout)["keys"]
    assert [row["limits"] for row in listed] == [["concurrent=3"], []] and first not in str(listed)
    assert keys(file, "remove", "alice", "--id", listed[0]["id"]).exit_code == 0
    left = table(file)
    assert left.by_key(first.encode()) is None
    assert (rest := left.by_key(second.encode())) is not None and rest.concurrent == 3
    assert keys(file, "add", "alice", "--concurrent", "4").exit_code == 2, "its limits stand in its first line"


def test_a_tenant_goes_with_all_its_keys_and_comments_stay(file: Path) -> None:
    key, _ = added(file, "alice")
    added(file, "alice")
    added(file, "bob")
    file.write_text(file.read_text() + "# the end\n")
    file.chmod(0o640)
    assert keys(file, "remove", "alice").exit_code == 0
    assert list(table(file).tenants) == ["bob"] and file.read_text().endswith("# the end\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert keys(file, "remove", "bob").exit_code == 0
    assert table(file).by_key(key.encode()) is None and file.read_text().startswith("#")
    assert keys(file, "remove", "bob").exit_code == 2


def test_a_key_from_elsewhere_and_a_certificate_can_be_added(file: Path) -> None:
    done = keys(file, "add", "alice", "--stdin", input=f"{KEY}\n")
    assert done.exit_code == 0 and KEY not in done.output
    assert table(file).by_key(KEY.encode()) is not None
    assert keys(file, "add", "bob", "--stdin", input=f"{KEY}\n").exit_code == 2, "another tenant has it"
    assert keys(file, "add", "bob", "--certificate", "bob.internal").exit_code == 0
    assert table(file).by_certificate(frozenset({"bob.internal"})) is not None
    assert "bob.internal" in keys(file, "list").stdout and KEY not in keys(file, "list").stdout


@pytest.mark.parametrize("key", ["", "short", "x" * 23, "with a space in it, and long enough", "ü" * 30])
def test_a_weak_key_is_refused(file: Path, key: str) -> None:
    assert keys(file, "add", "alice", "--stdin", input=f"{key}\n").exit_code == 2
    assert not file.exists()


@pytest.mark.parametrize(
    "arguments",
    [["al ice"], ["alice", "--burst-tokens", "5"], ["alice", "--priorities", "9"], ["a", "--concurrent=-1"]],
)
def test_a_wrong_row_leaves_the_file_as_it_was(file: Path, arguments: list[str]) -> None:
    added(file, "bob")
    before = file.read_bytes()
    assert keys(file, "add", *arguments).exit_code == 2
    assert file.read_bytes() == before and [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_missing_file_or_folder_is_named(file: Path) -> None:
    assert keys(file, "list").exit_code == 2
    assert keys(file.parent / "none" / "keys", "add", "alice").exit_code == 2


def test_a_link_keeps_leading_to_the_file(file: Path) -> None:
    link = file.parent / "link"
    link.symlink_to(file)
    key, tenant = added(link, "alice")
    assert tenant is not None and link.is_symlink() and table(file).by_key(key.encode()) == tenant


def test_commands_at_one_time_lose_no_row(file: Path) -> None:
    from cli.keys import _rewriting
    from gateway.tenants.rows import hash_of

    def write(number: int) -> None:
        with _rewriting(file) as lines:
            lines.append(f"tenant-{number} {hash_of(f'key {number}')}\n")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table(file).tenants) == 12


def test_commands_show_the_key_of_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from cli.connecting.api_key import api_key_headers
    from mesh.config.settings import read_settings

    monkeypatch.delenv("BATON_API_KEY", raising=False)
    assert api_key_headers() == {}
    monkeypatch.setenv("BATON_API_KEY", " k \n")
    assert api_key_headers() == {"authorization": "Bearer k"}
    assert read_settings(None, {"BATON_API_KEY": "k"}).values == (), "it is no setting of a service"
