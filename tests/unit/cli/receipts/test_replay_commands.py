"""The commands `baton replay` and `baton receipt`: what they print, what they ask the mesh, and their exit statuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cli.errors import MeshError
from cli.receipts import ask
from cli.receipts import replay as command
from cli.receipts.ask import OtherClass, ReplayMesh
from cli.receipts.receipt import receipt as show_receipt
from gateway.receipts.canonical import read_receipt
from gateway.receipts.shape import Receipt, ReceiptNumerics
from gateway.receipts.signing import SigningKey
from tests.unit.cli.signed_receipts import CLASS, KEY, answer_with_receipt, raw_receipt, receipt_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(raw_receipt(), indent=2))
    return path


def answer_with(monkeypatch: pytest.MonkeyPatch, outcome: Receipt | Exception) -> None:
    async def answer(self: ReplayMesh, body: Any, model: str) -> Receipt:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(ReplayMesh, "answer", answer)


def run(file: Path, **options: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        command.replay(file, **({"prompt": "Once", "json": True} | options))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("source", ["request", "prompt"])
def test_half_a_character_is_refused_with_status_2(
    source: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": "hi \ud800"}]}))
    given: dict[str, Any] = {"prompt": None, "request": body} if source == "request" else {"prompt": "hi \ud800"}
    assert run(file, **given) == 2
    assert "has \\ud800, half of a character" in capsys.readouterr().err


def test_status_0_means_that_every_token_is_equal_and_that_the_given_key_signed(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, receipt_of())
    assert run(file, key=KEY.public) == 0
    assert json.loads(capsys.readouterr().out) == {
        "equal": True,
        "receipt": "rcpt-1",
        "prompts": 1,
        "choices": 1,
        "tokens": 3,
        "differences": [],
        "key": KEY.public,
        "trusted": True,
        "answer": "none",
        "changes": [],
    }


OTHER = SigningKey(Ed25519PrivateKey.generate())


def test_status_3_means_that_nobody_said_whose_signature_it_must_be(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger has signed the receipt anew, and the answer that it carries."""
    answer_with(monkeypatch, receipt_of())
    file.write_text(json.dumps(answer_with_receipt(key=OTHER)))
    assert (run(file, json=False), verify(file)) == (3, 3)
    out = capsys.readouterr().out
    assert out.count(f"signed by {OTHER.public}: this check has no key") == 2 and "equal: 3 tokens" in out
    assert (run(file, key=KEY.public), verify(file, key=KEY.public)) == (2, 1)
    assert (run(file, key=OTHER.public), verify(file, key=OTHER.public)) == (0, 0)


def test_a_changed_field_is_named_by_both_commands_before_a_mesh_is_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, AssertionError("asked"))
    forged = answer_with_receipt()
    forged["choices"][0]["text"] = "Twice"
    file.write_text(json.dumps(forged | {"usage": {"prompt_tokens": 1}}))
    for key in ("", KEY.public):
        assert run(file, key=key, json=False) == 1
        assert verify(file, key=key) == 1
        out = capsys.readouterr().out
        assert out.count("choices[0].text was changed") == out.count("usage.prompt_tokens was added") == 2
    assert run(file) == 1
    (first, _) = json.loads(capsys.readouterr().out)["changes"]
    assert first == {"field": "choices[0].text", "how": "changed"}


@pytest.mark.parametrize("salt", [None, "6" * 32, 7])
def test_without_its_salt_an_answer_is_refused(file: Path, salt: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(json.dumps(answer_with_receipt() | {"receipt_salt": salt}))
    assert verify(file, key=KEY.public) == 1
    assert "receipt_salt was" in capsys.readouterr().out


def test_status_4_means_that_an_older_receipt_does_not_cover_the_answer_around_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, receipt_of())
    file.write_text(json.dumps({"choices": [{"text": "anything"}], "receipt": raw_receipt()}))
    for key in ("", KEY.public):
        assert (verify(file, key=key), run(file, key=key, json=False)) == (4, 4)
        assert capsys.readouterr().out.count("covers the tokens alone") == 2
    assert verify(file, key=KEY.public, json=True) == 4
    assert json.loads(capsys.readouterr().out)["valid"] is False
    answer_with(monkeypatch, receipt_of(([1, 2], [[7, 8, 10]])))
    assert run(file, key=KEY.public) == 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_file_is_read_as_shells_write_it(file: Path, encoding: str, ends: str) -> None:
    file.write_bytes(json.dumps(answer_with_receipt({"id": "ü"}), indent=1).replace("\n", ends).encode(encoding))
    assert verify(file, key=KEY.public) == 0


def test_a_file_with_two_receipts_is_none(file: Path) -> None:
    file.write_text(f"data: {json.dumps(answer_with_receipt())}\n\n" * 2)
    assert verify(file, key=KEY.public) == 2


def test_status_1_says_what_differs(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, receipt_of(([1, 2], [[7, 8, 10]])))
    assert run(file, json=False) == 1
    assert "choice 0: token 2 is another" in capsys.readouterr().out


def test_a_mesh_of_another_model_is_named_by_the_hash_that_comes_nearest(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = CLASS.replace("aaaa", "bbbb"), CLASS.replace("aaaa", "cccc").replace("bf16", "fp32")
    answer_with(monkeypatch, OtherClass([ReceiptNumerics(far, "1"), ReceiptNumerics(near, "f00d")]))
    assert run(file) == 1
    (found,) = json.loads(capsys.readouterr().out)["differences"]
    assert (found["what"], found["text"]) == ("model_hash", "model hash: aaaa in the receipt, bbbb here")
    answer_with(monkeypatch, OtherClass([]))
    assert run(file) == 1


def test_status_2_means_that_nothing_was_compared(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, MeshError("no gateway answers"))
    assert run(file) == 2
    answer_with(monkeypatch, receipt_of())
    assert run(tmp_path / "missing.json") == 2
    assert run(file, prompt=None) == 2
    assert run(file, request=file) == 2
    assert run(file, key="0" * 64) == 2
    assert run(file, key=str(tmp_path / "missing.pem")) == 2
    assert run(file, key=KEY.public) == 0
    file.write_text(json.dumps(raw_receipt() | {"created": 2}))
    assert run(file) == 2
    assert "changed after it was signed" in capsys.readouterr().err
    file.write_text(json.dumps(KEY.signed({"format": "baton-receipt/1", "id": "x"})))
    assert run(file) == 2
    assert "not complete" in capsys.readouterr().err


def verify(file: Path, **options: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        show_receipt(file, **options)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_signature_is_verified_by_hex_by_pem_and_by_what_the_gateway_answers(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pem, page = tmp_path / "key.pem", tmp_path / "key.json"
    pem.write_text(KEY.public_pem)
    page.write_text(json.dumps({"algorithm": "ed25519", "key": KEY.public, "pem": KEY.public_pem}))
    other = SigningKey(Ed25519PrivateKey.generate())
    assert [verify(file, key=key) for key in (KEY.public, str(pem), str(page))] == [0, 0, 0]
    assert "the given key" in capsys.readouterr().out
    assert verify(file, key=other.public, json=True) == 1
    assert json.loads(capsys.readouterr().out)["reason"].startswith("the receipt is signed by the key")
    assert verify(file, key=page.read_text()) == verify(file, key=KEY.public_pem) == 0
    capsys.readouterr()
    assert verify(file) == 3
    assert "knows nothing about" in capsys.readouterr().out
    page.write_text("nothing")
    assert verify(file, key=str(page)) == 2


def test_a_changed_receipt_and_what_is_none_have_different_statuses(file: Path) -> None:
    file.write_text(json.dumps(raw_receipt() | {"model": "other"}))
    assert verify(file) == 1
    file.write_text("{}")
    assert verify(file) == 2
    read = read_receipt(json.dumps(raw_receipt()).encode())
    file.write_text(json.dumps({"choices": [0.5], "receipt": read}))
    assert verify(file) == 4


def test_a_change_of_class_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = receipt_of()
    (prompt,) = old.prompts
    (choice,) = prompt.choices
    moved = msgspec.structs.replace(choice, spans=[(0, 0), (2, 1)])
    old = msgspec.structs.replace(old, prompts=[msgspec.structs.replace(prompt, choices=[moved])])
    assert command.changes(old) == ["the receipt's choice 0 changed its class at token 2; the replay did not"]


def test_a_receipt_writes_no_control_characters_to_the_terminal(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {name: value for name, value in raw_receipt(name="\x1b[2J").items() if name not in ("signature", "key")}
    file.write_text(json.dumps(KEY.signed(raw | {"model": "\x1b]0;title\x07", "request_id": "a\nb"})))
    assert verify(file) == 3
    answer_with(monkeypatch, receipt_of(temperature="\x1b[31m"))
    assert run(file, json=False) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "a b" in out


@pytest.mark.parametrize("count", [0, 2])
def test_a_mesh_that_signs_other_prompts_than_it_was_sent_ends_in_an_error(count: int) -> None:
    raw = {name: value for name, value in raw_receipt().items() if name not in ("signature", "key")}
    with pytest.raises(MeshError, match=f"has {count} prompts"):
        ask.receipt_of(KEY.signed(raw | {"prompts": raw["prompts"] * count}))


@pytest.mark.parametrize("content", [None, [], "x", {}, {"format": "baton-receipt/1"}, {"format": "x", "a": 0.5}])
def test_an_answer_without_a_right_receipt_ends_in_an_error(content: Any) -> None:
    with pytest.raises(MeshError, match="receipt"):
        ask.receipt_of(content)


def test_a_class_that_nobody_asked_for_ends_in_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {name: value for name, value in raw_receipt().items() if name not in ("signature", "key")}
    file.write_text(json.dumps(KEY.signed(raw | {"numerics": []})))
    answer_with(monkeypatch, OtherClass([]))
    assert run(file) == 2


async def test_the_key_of_the_variable_is_sent_to_a_gateway_with_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = list[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{"key":"aa"}')
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.delenv("BATON_API_KEY", raising=False)
        assert await ReplayMesh(url).key() == "aa"
        monkeypatch.setenv("BATON_API_KEY", "of-the-variable")
        assert await ReplayMesh(url).key() == "aa"
    assert "uthorization" not in heads[0] and "authorization: bearer of-the-variable" in heads[1].lower()
