"""Compares a receipt with the receipt of its replay and names each difference, the cause before its consequences."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.receipts.draft import model_hash
from gateway.receipts.hashes import MARK_BYTES
from gateway.receipts.parameters import HASHED
from gateway.receipts.shape import Receipt, ReceiptChoice, ReceiptNumerics

DIGITS = 2 * MARK_BYTES  # hex digits of a mark
HERE = "here"


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    what: str  # model_hash, class, fingerprint, prompt, parameter, seed, choices, tokens or finish_reason
    text: str
    prompt: int | None = None  # number of the prompt
    choice: int | None = None
    positions: tuple[int, int] | None = None  # first and last position that the first other token may have

    def fields(self) -> dict[str, Any]:
        named = {"what": self.what, "text": self.text, "prompt": self.prompt, "choice": self.choice}
        return named | {"positions": self.positions and list(self.positions)}


def identity(old: ReceiptNumerics, new: ReceiptNumerics) -> Iterator[ReplayDifference]:
    """At most one: a model of other weights is another class too."""
    hashes = model_hash(old.name), model_hash(new.name)
    if hashes[0] != hashes[1]:
        yield ReplayDifference("model_hash", f"model hash: {hashes[0]} in the receipt, {hashes[1]} {HERE}")
    elif old.name != new.name:
        first, second = old.name.split(), new.name.split()
        words = " ".join(word for word in first if word not in second), " ".join(w for w in second if w not in first)
        yield ReplayDifference("class", f"numerics class: {words[0] or '-'} in the receipt, {words[1] or '-'} {HERE}")
    elif old.fingerprint != new.fingerprint:
        what = f"fingerprint: {old.fingerprint} in the receipt, {new.fingerprint} {HERE}"
        yield ReplayDifference("fingerprint", f"{what}, though the class has the same name")


def compare(old: Receipt, number: int, new: Receipt) -> list[ReplayDifference]:
    """`number`: the prompt of the receipt that the replay, which has one, was made of."""
    found = list[ReplayDifference]()
    if old.numerics and new.numerics:
        found += identity(old.numerics[0], new.numerics[0])
    before, after = old.prompts[number], new.prompts[0]
    if before.hash != after.hash:
        lengths = f"{before.tokens} tokens in the receipt, {after.tokens} {HERE}"
        other = lengths if before.tokens != after.tokens else f"{before.tokens} tokens, but others"
        found.append(ReplayDifference("prompt", f"prompt hash: {other}", number))
    found += parameters(old.parameters or {}, new.parameters or {})
    if before.seed != after.seed:
        found.append(ReplayDifference("seed", f"seed: {before.seed} in the receipt, {after.seed} {HERE}", number))
    indices = [choice.index for choice in before.choices], [choice.index for choice in after.choices]
    if indices[0] != indices[1]:
        what = f"choices: {len(indices[0])} in the receipt, {len(indices[1])} {HERE}"
        return [*found, ReplayDifference("choices", what, number)]
    same_prompt = before.hash == after.hash
    for pair in zip(before.choices, after.choices, strict=True):
        found += choices(*pair, number, same_prompt)
    return found


def parameters(old: dict[str, Any], new: dict[str, Any]) -> Iterator[ReplayDifference]:
    for name in dict.fromkeys((*old, *new)):
        first, second = old.get(name), new.get(name)
        if first == second:
            continue
        if name in HASHED or name.endswith("_ids"):
            words = ("none" if first is None else "set", "none" if second is None else "set")
            what = f"{words[0]} in the receipt, {words[1]} {HERE}" if words[0] != words[1] else "its hash is another"
        else:
            what = f"{first} in the receipt, {second} {HERE}"
        yield ReplayDifference("parameter", f"parameter {name}: {what}")


def choices(old: ReceiptChoice, new: ReceiptChoice, number: int, same_prompt: bool) -> Iterator[ReplayDifference]:
    if (old.tokens, old.hash) != (new.tokens, new.hash):
        if same_prompt:
            first, last = span = first_other(old, new)
            where = f"token {first} is another" if first == last else f"a token from {first} to {last} is another"
            if first == last == min(old.tokens, new.tokens):
                where = f"{old.tokens} tokens in the receipt, {new.tokens} {HERE}, and the first {first} are equal"
            yield ReplayDifference("tokens", f"choice {old.index}: {where}", number, old.index, span)
        else:
            yield ReplayDifference(
                "tokens", f"choice {old.index}: other tokens, after another prompt", number, old.index
            )
    elif old.finish_reason != new.finish_reason:
        what = f"finish_reason: {old.finish_reason} in the receipt, {new.finish_reason} {HERE}"
        yield ReplayDifference("finish_reason", f"choice {old.index}: {what}", number, old.index)


def first_other(old: ReceiptChoice, new: ReceiptChoice) -> tuple[int, int]:
    """The first and the last position that the first token may have in which two unequal choices differ."""
    every, shorter = max(old.marks_every, new.marks_every), min(old.tokens, new.tokens)
    first, second = _marks(old, every), _marks(new, every)
    equal = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if equal is not None:
        return equal * every, (equal + 1) * every - 1
    start = min(min(len(first), len(second)) * every, shorter)
    return start, max(start, shorter - (old.tokens == new.tokens))


def _marks(choice: ReceiptChoice, every: int) -> list[str]:
    """Every so manieth mark; marks that stand closer are left out."""
    step, count = every // choice.marks_every, len(choice.marks) // DIGITS
    return [choice.marks[at * DIGITS : (at + 1) * DIGITS] for at in range(step - 1, count, step)]
