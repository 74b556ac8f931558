"""Whether an answer reasons, and how much it may: the client's number becomes a `ReasoningBudget`, which workers hold.

Step 1 of a request's life. The marks of the model's reasoning become token ids here, and what cannot hold beside a
budget is refused. A form that is the whole answer leaves no room for reasoning, also where the prompt has opened it:
its text is the answer, and any budget holds."""

from dataclasses import replace

from gateway.prompts.assets import Assets
from gateway.text.mark_tokens import stands_open
from gateway.validation.client_request import ClientRequest
from gateway.validation.fields import Fields
from mesh.messages.jobs import Adjustments, ReasoningBudget

FIELD = "thinking_token_budget"


def with_reasoning(request: ClientRequest, fields: Fields, assets: Assets) -> ClientRequest:
    """The request, whose answer is read as it will be written, within the budget that the client gives."""
    if request.reading.reasoning_begun and _is_forced(request):
        request = replace(request, reading=replace(request.reading, reasoning_begun=False))
    return _with_budget(request, fields, assets)


def _with_budget(request: ClientRequest, fields: Fields, assets: Assets) -> ClientRequest:
    """The request, whose adjustments hold the budget that it asks for."""
    tokens, marks = request.thinking_token_budget, assets.reasoning_marks
    if tokens is None or tokens < 0:
        return request
    if marks is None:
        why = f"model {assets.name!r} writes no reasoning that this gateway reads (its setting reasoning_format)"
        raise fields.invalid(FIELD, f"cannot be honoured: {why}; leave it out")
    if request.reading.reasoning is None:  # the prompt is not a chat
        begun = not _is_forced(request) and stands_open(request.prompt, marks.begin, marks.end)
    else:
        begun = request.reading.reasoning_begun
    found = replace(marks, tokens=tokens, begun=begun)
    adjusted = request.adjustments or Adjustments()
    if adjusted.allowed and any(not _is_allowed(adjusted.allowed, token) for token in _forced(found)):
        what = f"leaves out tokens of the mark that ends the reasoning, which {fields.name(FIELD)} forces: add them"
        raise fields.invalid("allowed_token_ids", what)
    return replace(request, adjustments=replace(adjusted, reasoning=found))


def _is_forced(request: ClientRequest) -> bool:
    """Whether the whole answer has a form from its first token on."""
    return bool(request.grammar) and not request.free_form


def _forced(budget: ReasoningBudget) -> list[int]:
    return [place.tokens[0] for place in budget.end]


def _is_allowed(bits: bytes, token: int) -> bool:
    return token >> 3 < len(bits) and bool(bits[token >> 3] >> (token & 7) & 1)
