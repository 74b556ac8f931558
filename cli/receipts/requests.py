"""The requests that a replay sends: what the user gives, completed by what the receipt has.

A receipt may cover several prompts. Each has a seed of its own, so each becomes a request of its own."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format

from baton.inference.v1 import inference_pb2
from cli.receipts.dialects import as_openai
from gateway.receipts.canonical import ReceiptError
from gateway.receipts.parameters import HASHED
from gateway.receipts.shape import Receipt

Json = dict[str, Any]
# Numbers whose default may be another on another mesh, by their names in receipts; all are fields of both endpoints.
FRACTIONS = ("temperature", "top_p", "min_p")
PENALTIES = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}  # with what changes nothing
SENT = ("n", "best_of", "ignore_eos", "skip_special_tokens")  # besides, where the user gives no request
BUDGET = "thinking_token_budget"  # stands in the receipts of requests that have it
SAMPLING = (*FRACTIONS, "top_k", "seed", "n", "best_of", *PENALTIES, BUDGET)  # fields of SamplingOptions


def bodies(receipt: Receipt, request: Mapping[str, Any] | None, text: str | None, *, chat: bool) -> Iterator[Json]:
    """One body for each prompt of the receipt, or of the request if it has another number of them."""
    if request is None:
        given = text_body(receipt, text or "", chat=chat)
    else:
        whole = as_openai(request, (receipt.parameters or {}).get("max_tokens"))
        given = {name: value for name, value in whole.items() if name not in ("stream", "stream_options")}
        if (receipt.parameters or {}).get(BUDGET) is None:  # a message's budget, which a model without reasoning keeps
            given.pop(BUDGET, None)
    prompts = [None] if "messages" in given else prompts_of(given.get("prompt"))
    if len(prompts) != len(receipt.prompts):
        raise ReceiptError(f"the receipt has {len(receipt.prompts)} prompts, the request has {len(prompts)}")
    for number, prompt in enumerate(prompts):
        body = given | completed(receipt, number, given)
        yield body if prompt is None else body | {"prompt": prompt}


def text_body(receipt: Receipt, text: str, *, chat: bool) -> Json:
    """A request of this prompt and what the receipt says. ReceiptError where the receipt does not say it all."""
    parameters = receipt.parameters or {}
    hidden = [name for name in HASHED if parameters.get(name) is not None]
    if hidden:
        what = f"of {', '.join(hidden)} the receipt has a hash only: give the whole request with --request"
        raise ReceiptError(what)
    sent = {name: parameters[name] for name in SENT if parameters.get(name) not in (None, False)}
    prompt: Json = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    return prompt | sent | {"skip_special_tokens": parameters.get("skip_special_tokens") is not False}


def completed(receipt: Receipt, number: int, given: Mapping[str, Any]) -> Json:
    """The fields that the request leaves out and the receipt knows, and those that make the gateway answer with a
    receipt and in this class only."""
    parameters = receipt.parameters
    if parameters is None:
        raise ReceiptError("no token of this answer was generated, so there is nothing to replay")
    try:
        known: Json = {name: float(parameters[name]) for name in FRACTIONS}
        known["top_k"] = parameters["top_k"]
        if parameters.get("grammar") is None:  # a request may not set both
            known["min_tokens"] = parameters["min_tokens"]
        penalties = {name: float(parameters[name]) for name in PENALTIES}
        known |= {name: value for name, value in penalties.items() if value != PENALTIES[name]}
        if (budget := parameters.get(BUDGET)) is not None:
            known[BUDGET] = int(budget)
        if given.get("max_completion_tokens") is None:
            known["max_tokens"] = parameters["max_tokens"]
    except (KeyError, TypeError, ValueError) as error:
        raise ReceiptError(f"the receipt's parameters are not complete: {error}") from None
    known["seed"] = int(receipt.prompts[number].seed)
    added = {name: value for name, value in known.items() if given.get(name) is None}
    if receipt.numerics:
        numerics = receipt.numerics[0]
        added["numerics_class"] = {"name": numerics.name, "fingerprint": numerics.fingerprint}
    return added | {"receipt": True}


def prompts_of(prompt: Any) -> list[Any]:
    """The prompts of a completion, each alone: texts or lists of token ids."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return list(prompt)
    return [prompt]


def message(receipt: Receipt, request: Mapping[str, Any] | None, text: str | None, *, chat: bool) -> Any:
    """The same as a GenerateRequest; `request` is one in the JSON form of protobuf."""
    if len(receipt.prompts) != 1:
        raise ReceiptError(f"the receipt has {len(receipt.prompts)} prompts; over gRPC a request has one: use --url")
    found = inference_pb2.GenerateRequest()
    if request is not None:
        try:
            json_format.ParseDict(dict(request), found)
        except json_format.ParseError as error:
            raise ReceiptError(f"the request is no GenerateRequest in JSON: {error}") from None
        given: Json = {}
    else:
        given = text_body(receipt, text or "", chat=chat)
        if chat:
            found.chat.messages.add(role="user", content=text or "")
        else:
            found.text = text or ""
        found.stop.ignore_eos = bool(given.get("ignore_eos"))
    fields = given | completed(receipt, 0, given)
    for name in SAMPLING:
        if name in fields and not found.sampling.HasField(name):
            setattr(found.sampling, name, fields[name])
    for name in ("max_tokens", "min_tokens"):
        if name in fields and not found.stop.HasField(name):
            setattr(found.stop, name, fields[name])
    if numerics := fields.get("numerics_class"):
        found.numerics_class.name, found.numerics_class.fingerprint = numerics["name"], numerics["fingerprint"]
    found.receipt = True
    return found


def read_request(raw: bytes) -> Json:
    try:
        request = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"the request is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise ReceiptError("the request is no JSON object")
    check_text(json.dumps(request, ensure_ascii=False), "the request")
    return request


def check_text(text: str, what: str) -> None:
    """JSON can spell halves of a character, which no message can carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start].encode("unicode_escape").decode()
        raise ReceiptError(f"{what} has {half}, half of a character without the other: it cannot be sent") from None
