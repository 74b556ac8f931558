"""`baton replay` makes a request of a receipt and of what the receipt has only a hash of."""

from typing import Any

import msgspec
import pytest

from cli.receipts.requests import bodies, message, prompts_of
from gateway.receipts.canonical import ReceiptError
from tests.unit.cli.signed_receipts import CLASS, receipt_of


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


def test_a_request_with_a_grammar_gets_no_min_tokens() -> None:
    receipt = receipt_of(grammar="ab", min_tokens=3)
    (body,) = bodies(receipt, {"prompt": "x", "structured_outputs": {"regex": "a"}}, None, chat=False)
    assert "min_tokens" not in body
    assert not message(receipt, {"text": "x"}, None, chat=False).stop.HasField("min_tokens")
