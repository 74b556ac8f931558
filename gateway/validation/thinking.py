"""How much an answer may reason: the client's number becomes a `ReasoningBudget`, which workers hold.

Step 1 of a request's life. The marks of the model's reasoning become token ids here, and what cannot hold beside a
budget is refused."""

from dataclasses import replace

from gateway.prompts.assets import Assets
from gateway.text.mark_tokens import stands_open
from gateway.validation.client_request import ClientRequest
from gateway.validation.fields import Fields
from mesh.messages.jobs import Adjustments, ReasoningBudget

FIELD = "thinking_token_budget"


def with_thinking_budget(request: ClientRequest, fields: Fields, assets: Assets) -> ClientRequest:
    """The request, whose adjustments hold the budget that it asks for."""
    tokens, marks = request.thinking_token_budget, assets.reasoning_marks
    if tokens is None or tokens < 0:
        return request
    if marks is None:
        why = f"model {assets.name!r} writes no reasoning that this gateway reads (its setting reasoning_format)"
        raise fields.invalid(FIELD, f"cannot be honoured: {why}; leave it out")
    if request.reading.reasoning is None:  # the prompt is not a chat
        begun = stands_open(request.prompt, marks.begin, marks.end)
    else:
        begun = request.reading.reasoning_begun
    found = replace(marks, tokens=tokens, begun=begun)
    _check_form(request, fields, assets, found)
    adjusted = request.adjustments or Adjustments()
    if adjusted.allowed and any(not _is_allowed(adjusted.allowed, token) for token in _forced(found)):
        what = f"leaves out tokens of the mark that ends the reasoning, which {fields.name(FIELD)} forces: add them"
        raise fields.invalid("allowed_token_ids", what)
    return replace(request, adjustments=replace(adjusted, reasoning=found))


def _check_form(request: ClientRequest, fields: Fields, assets: Assets, budget: ReasoningBudget) -> None:
    """A form is followed from the first token on. So it leaves no room for reasoning, and any budget holds, unless the
    prompt has opened the reasoning already; then its end must be a text that the form allows."""
    if not (request.grammar and budget.begun):
        return
    if not request.free_form or not assets.tokenizer.special.isdisjoint(_forced(budget)):
        what = f"cannot be combined with {fields.name('grammar')}: the chat template has opened the reasoning, and the"
        raise fields.invalid(FIELD, f"{what} form has no place for its end; leave one of them out")


def _forced(budget: ReasoningBudget) -> list[int]:
    return [place.tokens[0] for place in budget.end]


def _is_allowed(bits: bytes, token: int) -> bool:
    return token >> 3 < len(bits) and bool(bits[token >> 3] >> (token & 7) & 1)
