"""Receipts as a gateway signs them, for tests of `baton replay` and `baton receipt`."""

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.receipts.answers.fields import SentAnswer, covered
from gateway.receipts.hashes import digest, id_bytes, token_hashes
from gateway.receipts.shape import Receipt, shaped
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


SALT = "5" * 32


def answer_with_receipt(answer: dict[str, Any] | None = None, key: SigningKey = KEY) -> dict[str, Any]:
    """An answer as a gateway sends it: its receipt covers its fields."""
    sent = answer if answer is not None else {"id": "c", "choices": [{"index": 0, "text": "Once", "logprobs": None}]}
    plain = {name: value for name, value in raw_receipt().items() if name not in ("signature", "key")}
    return sent | {"receipt": key.signed(plain | {"answer": covered(SentAnswer(sent), SALT)}), "receipt_salt": SALT}
