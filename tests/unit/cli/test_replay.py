"""`baton replay` and `baton receipt`: what they send, what they find different, and their exit statuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cli import replay as command
from cli.errors import MeshError
from cli.receipt import receipt as show_receipt
from cli.receipts import ask
from cli.receipts.ask import OtherClass, ReplayMesh
from cli.receipts.compare import compare, first_other
from cli.receipts.requests import bodies, message, prompts_of
from gateway.receipts.canonical import ReceiptError, read_receipt
from gateway.receipts.hashes import digest, id_bytes, token_hashes
from gateway.receipts.shape import Receipt, ReceiptChoice, ReceiptNumerics, shaped
from gateway.receipts.signing import SigningKey

KEY = SigningKey(Ed25519PrivateKey.generate())
CLASS = "model=aaaa weights=bf16 kv=bf16 tp=1 path=pairs kernels=3"
PLAIN: dict[str, Any] = {
    "n": 1,
    "best_of": None,
    "temperature": "0.7",
    "top_p": "0.9",
    "top_k": 40,
    "min_p": "0.0",
    "max_tokens": 24,
    "min_tokens": 0,
    "frequency_penalty": "0.0",
    "presence_penalty": "0.5",
    "repetition_penalty": "1.0",
    "no_repeat_ngram": 0,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "eos_token_ids": "ff",
    "stop": None,
    "tools": None,
}


def choice_of(tokens: list[int], *, prompt: list[int], marks: int = 1024, index: int = 0) -> dict[str, Any]:
    hashes = token_hashes(id_bytes(prompt), id_bytes(tokens), marks)
    made = {"hash": hashes.whole, "marks_every": hashes.every, "marks": hashes.marks, "finish_reason": "stop"}
    return {"index": index, "tokens": len(tokens), "given": 0, "spans": [[0, 0]], **made}


def raw_receipt(
    *prompts: tuple[list[int], list[list[int]]], marks: int = 1024, seed: int = 5, name: str = CLASS, **parameters: Any
) -> dict[str, Any]:
    """A signed receipt: for each prompt its ids and those of its choices."""
    given = prompts or (([1, 2], [[7, 8, 9]]),)
    return KEY.signed(
        {
            "format": "baton-receipt/1",
            "id": "rcpt-1",
            "request_id": "r",
            "created": 1,
            "baton": "1",
            "model": "tiny",
            "model_hash": "aaaa",
            "numerics": [{"class": name, "fingerprint": "f00d"}],
            "parameters": PLAIN | parameters,
            "prompts": [
                {
                    "tokens": len(ids),
                    "hash": digest("prompt", id_bytes(ids)),
                    "seed": str(seed + number),
                    "choices": [
                        choice_of(tokens, prompt=ids, marks=marks, index=index) for index, tokens in enumerate(answers)
                    ],
                }
                for number, (ids, answers) in enumerate(given)
            ],
        }
    )


def receipt_of(*prompts: Any, **more: Any) -> Receipt:
    return shaped(raw_receipt(*prompts, **more))


# ---- what differs


def test_equal_receipts_have_no_difference() -> None:
    assert compare(receipt_of(), 0, receipt_of()) == []


@pytest.mark.parametrize(
    ("other", "what", "words"),
    [
        ({"name": CLASS.replace("aaaa", "bbbb")}, "model_hash", "aaaa in the receipt, bbbb here"),
        ({"name": CLASS.replace("pairs", "amx")}, "class", "path=pairs in the receipt, path=amx here"),
        ({"seed": 6}, "seed", "5 in the receipt, 6 here"),
        ({"temperature": "1.0"}, "parameter", "temperature: 0.7 in the receipt, 1.0 here"),
        ({"stop": "ab"}, "parameter", "stop: none in the receipt, set here"),
        ({"eos_token_ids": "ee"}, "parameter", "eos_token_ids: its hash is another"),
        ({"further": 1}, "parameter", "further: None in the receipt, 1 here"),
    ],
)
def test_each_difference_is_named_with_both_values(other: Any, what: str, words: str) -> None:
    (found,) = compare(receipt_of(), 0, receipt_of(**other))
    assert found.what == what and words in found.text


def test_a_fingerprint_counts_where_the_class_has_the_same_name() -> None:
    other = msgspec.structs.replace(receipt_of(), numerics=[ReceiptNumerics(CLASS, "cafe")])
    (found,) = compare(receipt_of(), 0, other)
    assert found.what == "fingerprint" and "f00d in the receipt, cafe here" in found.text


def test_another_prompt_comes_before_the_tokens_that_follow_from_it() -> None:
    found = compare(receipt_of(([1, 2], [[7]])), 0, receipt_of(([1, 2, 3], [[7]])))
    assert [each.what for each in found] == ["prompt", "tokens"] and "2 tokens in the receipt, 3 here" in found[0].text
    (first, _) = compare(receipt_of(([1, 2], [[7]])), 0, receipt_of(([1, 3], [[7]])))
    assert "2 tokens, but others" in first.text


def test_another_number_of_choices_is_a_difference() -> None:
    (found,) = compare(receipt_of(([1], [[7], [8]])), 0, receipt_of(([1], [[7]])))
    assert found.what == "choices"


def test_the_second_choice_is_compared_too() -> None:
    (found,) = compare(receipt_of(([1], [[7], [8, 9]])), 0, receipt_of(([1], [[7], [8, 10]])))
    assert (found.what, found.choice, found.positions) == ("tokens", 1, (1, 1)) and "token 1 is another" in found.text


def positions(old: list[int], new: list[int], marks: tuple[int, int] = (1024, 1024)) -> tuple[int, int]:
    choices = [
        msgspec.convert(choice_of(tokens, prompt=[1], marks=most), ReceiptChoice)
        for tokens, most in zip((old, new), marks, strict=True)
    ]
    return first_other(*choices)


def test_the_first_other_token_is_found_exactly_in_short_answers() -> None:
    base = list(range(100))
    for at in (0, 1, 50, 98, 99):
        assert positions(base, [*base[:at], 777, *base[at + 1 :]]) == (at, at)
    assert positions(base, base[:60]) == positions(base[:60], base) == (60, 60)
    assert positions([], [1]) == (0, 0)


@pytest.mark.parametrize("marks", [(16, 16), (16, 1024), (1, 16), (1, 1)])
def test_in_long_answers_the_other_token_lies_in_the_named_span(marks: tuple[int, int]) -> None:
    base = list(range(1000))
    for at in (0, 5, 63, 64, 500, 998, 999):
        first, last = positions(base, [*base[:at], 777, *base[at + 1 :]], marks)
        assert first <= at <= last < 1000 and last - first < 1000 // min(marks) * 2
    first, last = positions(base, base[:70], marks)
    assert first <= 70 <= last


def test_marks_that_make_no_sense_end_in_some_answer() -> None:
    old = msgspec.convert(choice_of([1, 2, 3], prompt=[1]), ReceiptChoice)
    for every, marks in ((1, ""), (3, "ab"), (10**12, "zz" * 50), (7, "é" * 9)):
        first, last = first_other(old, msgspec.structs.replace(old, hash="0", marks_every=every, marks=marks))
        assert 0 <= first <= last


# ---- what is sent


def test_a_text_gets_everything_else_from_the_receipt() -> None:
    (body,) = bodies(receipt_of(n=2), None, "Once", chat=False)
    assert body == {
        "prompt": "Once",
        "n": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.0,
        "max_tokens": 24,
        "min_tokens": 0,
        "presence_penalty": 0.5,
        "skip_special_tokens": True,
        "seed": 5,
        "numerics_class": {"name": CLASS, "fingerprint": "f00d"},
        "receipt": True,
    }
    (body,) = bodies(receipt_of(), None, "Once", chat=True)
    assert body["messages"] == [{"role": "user", "content": "Once"}] and "prompt" not in body


def test_a_request_keeps_what_it_says_and_is_never_streamed() -> None:
    request = {"messages": [], "temperature": 0.1, "max_completion_tokens": 3, "stream": True, "stream_options": {}}
    (body,) = bodies(receipt_of(), request, None, chat=False)
    assert (body["temperature"], body["max_completion_tokens"], body["seed"]) == (0.1, 3, 5)
    assert not {"stream", "stream_options", "max_tokens"} & body.keys()


def test_each_prompt_is_sent_alone_with_its_seed() -> None:
    receipt = receipt_of(([1], [[7]]), ([2], [[8]]))
    found = list(bodies(receipt, {"prompt": ["a", "b"]}, None, chat=False))
    assert [(body["prompt"], body["seed"]) for body in found] == [("a", 5), ("b", 6)]
    with pytest.raises(ReceiptError, match="2 prompts, the request has 1"):
        list(bodies(receipt, {"prompt": "a"}, None, chat=False))


def test_every_form_of_prompt_is_told_apart() -> None:
    assert prompts_of("a") == ["a"] and prompts_of(["a", "b"]) == ["a", "b"]
    assert prompts_of([1, 2]) == [[1, 2]] and prompts_of([[1], [2, 3]]) == [[1], [2, 3]]


def test_what_the_receipt_only_has_a_hash_of_must_come_with_the_request() -> None:
    with pytest.raises(ReceiptError, match="of stop, tools the receipt has a hash only"):
        list(bodies(receipt_of(stop="ab", tools="cd"), None, "Once", chat=False))
    assert list(bodies(receipt_of(stop="ab"), {"prompt": "Once", "stop": "."}, None, chat=False))


def test_an_answer_of_which_nothing_ran_cannot_be_replayed() -> None:
    receipt = msgspec.structs.replace(receipt_of(), parameters=None)
    with pytest.raises(ReceiptError, match="nothing to replay"):
        list(bodies(receipt, None, "x", chat=False))


@pytest.mark.parametrize("parameters", [{"temperature": None}, {"temperature": "hot"}, {"top_p": [1]}])
def test_broken_parameters_are_named(parameters: Any) -> None:
    with pytest.raises(ReceiptError, match="not complete"):
        list(bodies(receipt_of(**parameters), None, "x", chat=False))


def test_the_same_over_grpc() -> None:
    sent = message(receipt_of(n=2, ignore_eos=True), None, "Once", chat=False)
    assert (sent.text, sent.sampling.n, sent.sampling.seed, sent.sampling.top_k) == ("Once", 2, 5, 40)
    assert (sent.stop.max_tokens, sent.stop.ignore_eos, sent.receipt) == (24, True, True)
    assert (sent.numerics_class.name, sent.numerics_class.fingerprint) == (CLASS, "f00d")
    own = {"chat": {"messages": [{"role": "user", "content": "hi"}]}, "sampling": {"temperature": 0}}
    assert message(receipt_of(), own, None, chat=False).sampling.temperature == 0
    with pytest.raises(ReceiptError, match="no GenerateRequest"):
        message(receipt_of(), {"prompt": "x"}, None, chat=False)
    with pytest.raises(ReceiptError, match="use --url"):
        message(receipt_of(([1], [[7]]), ([2], [[8]])), own, None, chat=False)


# ---- the commands


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


def test_status_0_means_that_every_token_is_equal(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, receipt_of())
    assert run(file) == 0
    assert json.loads(capsys.readouterr().out) == {
        "equal": True,
        "receipt": "rcpt-1",
        "prompts": 1,
        "choices": 1,
        "tokens": 3,
        "differences": [],
    }


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
    assert verify(file) == 0
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
    assert verify(file) == 0


def test_a_change_of_class_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = receipt_of()
    (prompt,) = old.prompts
    (choice,) = prompt.choices
    moved = msgspec.structs.replace(choice, spans=[(0, 0), (2, 1)])
    old = msgspec.structs.replace(old, prompts=[msgspec.structs.replace(prompt, choices=[moved])])
    assert command.changes(old) == ["the receipt's choice 0 changed its class at token 2; the replay did not"]


def test_a_request_with_a_grammar_gets_no_min_tokens() -> None:
    receipt = receipt_of(grammar="ab", min_tokens=3)
    (body,) = bodies(receipt, {"prompt": "x", "structured_outputs": {"regex": "a"}}, None, chat=False)
    assert "min_tokens" not in body
    assert not message(receipt, {"text": "x"}, None, chat=False).stop.HasField("min_tokens")


def test_a_receipt_writes_no_control_characters_to_the_terminal(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {name: value for name, value in raw_receipt(name="\x1b[2J").items() if name not in ("signature", "key")}
    file.write_text(json.dumps(KEY.signed(raw | {"model": "\x1b]0;title\x07", "request_id": "a\nb"})))
    assert verify(file) == 0
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
