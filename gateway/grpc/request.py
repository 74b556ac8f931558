"""Requests of baton.inference.v1 as `ClientRequest`. An absent field stays None; gateway/validation/validate.py fills
in defaults.

Step 1 of a request's life over gRPC. What a client can repeat is counted before it is converted, and long lists are
converted in slices, so that no request stops the event loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc.calls import Call
from gateway.grpc.conversation import CHAT_FIELDS
from gateway.grpc.names import NAMES, Names, respelled
from gateway.grpc.options import adjustment_fields
from gateway.grpc.prompt import ParsedPrompt, ids_of, parse_prompt
from gateway.grpc.tools import CHOICE_FIELD
from gateway.prompts.assets import Assets
from gateway.receipts.draft import spelled_class, split_class
from gateway.structured.calls import call_form
from gateway.structured.forms import Form, parse_structured_outputs
from gateway.text.formats import HERMES
from gateway.tracing.record import RequestRecord
from gateway.validation.adjustments import find_adjustments
from gateway.validation.client_request import ClientRequest
from gateway.validation.fields import Fields
from gateway.validation.validate import MAX_CHOICES
from mesh.errors import InvalidRequest

MOST_STOPS = 1024  # stop strings that are converted; gateway/validation/validate.py has the setting's limit


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request, and how the events of its answer are wanted."""

    request: pb.GenerateRequest
    continuous_usage: bool = False
    growing_tool_calls: bool = False


async def parse_request(
    request: pb.GenerateRequest,
    assets: Assets,
    *,
    call: Call,
    trace: RequestRecord,
    time_left: Callable[[], float | None],
    context: int = 0,  # tokens that the attached workers of the model hold; 0: not known
    names: Names = NAMES,
    growing: bool = False,  # tool calls leave before they are whole
) -> ClientRequest:
    sampling, stop = request.sampling, request.stop
    _limit(names.others["stop"], stop.strings, MOST_STOPS)
    _limit(names.others["stop_token_ids"], stop.token_ids, assets.vocabulary)
    prompt = await parse_prompt(request, assets, names, context or assets.context_tokens)
    _check_listed(request, prompt, names, assets.vocabulary)
    form = await _form(request, prompt, assets, names)
    return ClientRequest(
        request_id=call.request_id,
        prompt=prompt.ids,
        model=request.model or None,
        n=_present(sampling, "n"),
        best_of=_present(sampling, "best_of"),
        adjustments=await find_adjustments(adjustment_fields(sampling), Fields(names.others), assets),
        temperature=_present(sampling, "temperature"),
        top_p=_present(sampling, "top_p"),
        top_k=_present(sampling, "top_k"),
        min_p=_present(sampling, "min_p"),
        seed=_present(sampling, "seed"),
        max_tokens=_present(stop, "max_tokens"),
        min_tokens=_present(stop, "min_tokens"),
        stop=tuple(stop.strings),
        stop_token_ids=tuple(stop.token_ids),
        thinking_token_budget=_present(sampling, "thinking_token_budget"),
        ignore_eos=stop.ignore_eos,
        include_stop=stop.include_stop_string,
        skip_special=request.skip_special_tokens if request.HasField("skip_special_tokens") else True,
        top_logprobs=request.logprobs.top if request.HasField("logprobs") else None,
        logprob_ids=tuple(request.logprobs.token_ids),
        prompt_logprobs=_present(request, "prompt_logprobs"),
        reading=replace(prompt.reading, growing=growing),
        emitted=await _emitted(request.emitted, assets.context_tokens),
        grammar=await assets.grammars.compiled(form),
        free_form=form is not None and form.free,
        numerics=numerics_of(request.numerics_class) if request.HasField("numerics_class") else "",
        numerics_of={
            choice.index: numerics_of(choice.numerics_class)
            for choice in request.emitted
            if choice.HasField("numerics_class")
        },
        allow_class_change=request.allow_class_change,
        salt=request.cache_salt,
        affinity=request.affinity_key,
        priority=request.priority,
        deadline_seconds=time_left(),  # after the prompt was tokenized, which takes some of it
        trace=trace,
        field_names={**names.others, "prompt": prompt.field, "grammar": form.field if form else names.form},
    )


async def _form(request: pb.GenerateRequest, prompt: ParsedPrompt, assets: Assets, names: Names) -> Form | None:
    """The form that the answer must have, tool calls included."""
    build, given = assets.grammars.built, request.HasField("structured_output")
    answer = await build(partial(_structured, request.structured_output, assets, names)) if given else None
    if not prompt.tools:
        return answer
    reading, added = prompt.reading, assets.tokenizer.added
    return await build(
        partial(
            call_form,
            prompt.tools,
            reading.use,
            added,
            reading.tools or HERMES,
            answer=answer,
            reasoning=assets.reasoning,
            tools_field=CHAT_FIELDS.tools,
            parameters=f".{CHAT_FIELDS.parameters}",
            choice_field=CHOICE_FIELD,
        )
    )


def _structured(output: pb.StructuredOutput, assets: Assets, names: Names) -> Form | None:
    """The form of the answer, by the rules of `structured_outputs` over HTTP."""
    kind = output.WhichOneof("form")
    options: dict[str, Any] = {}
    if output.HasField("disable_any_whitespace"):
        options["disable_any_whitespace"] = output.disable_any_whitespace
    if output.HasField("whitespace_pattern"):
        options["whitespace_pattern"] = output.whitespace_pattern
    if kind is None:
        if options:
            field = f"{names.form}.{min(options)}"
            raise InvalidRequest(field, f"{field} needs {names.form}.{names.json} or {names.form}.json_object")
        return None
    values: dict[str, tuple[str, Any]] = {
        "json_schema": ("json", output.json_schema),
        "json_object": ("json_object", output.json_object),
        "regex": ("regex", output.regex),
        "choice": ("choice", list(output.choice.texts)),
        "grammar": ("grammar", output.grammar),
        "structural_tag": ("structural_tag", output.structural_tag),
    }
    given = dict([values[kind]]) | options
    ours, theirs = f"{names.form}.json", f"{names.form}.{names.json}"
    try:
        added, reasoning = assets.tokenizer.added, assets.reasoning
        form = parse_structured_outputs(given, added, names.form, reasoning=reasoning)
    except InvalidRequest as error:
        raise respelled(error, {ours: theirs}) from error
    return form and replace(form, field=theirs if form.field == ours else form.field)


def class_of(numerics: str) -> pb.NumericsClass:
    name, fingerprint = split_class(numerics)
    return pb.NumericsClass(name=name, fingerprint=fingerprint)


def numerics_of(numerics_class: pb.NumericsClass) -> str:
    return spelled_class(numerics_class.name, numerics_class.fingerprint)


def _check_listed(request: pb.GenerateRequest, prompt: ParsedPrompt, names: Names, vocabulary: int) -> None:
    """The logprobs of a prompt stay in memory until they are sent."""
    top = min(request.prompt_logprobs, vocabulary)
    if request.HasField("prompt_logprobs") and len(prompt.ids) * (1 + top) > names.listed:
        field = names.others.get("prompt_logprobs", "prompt_logprobs")
        what = f"{field} would list more than {names.listed} logprobs: send a shorter prompt, or ask for fewer"
        raise InvalidRequest(field, f"{what} likeliest tokens at each position")


async def _emitted(choices: Sequence[pb.Emitted], most: int) -> dict[int, tuple[int, ...]]:
    _limit("emitted", choices, MAX_CHOICES)
    found: dict[int, tuple[int, ...]] = {}
    for place, choice in enumerate(choices):
        if choice.index in found:
            field = f"emitted[{place}].index"
            raise InvalidRequest(field, f"{field} is {choice.index}, as in an earlier entry; send each choice once")
        found[choice.index] = await ids_of(f"emitted[{place}].token_ids", choice.token_ids, most)
    return found


def _limit(field: str, values: Sequence[Any], most: int) -> None:
    if len(values) > most:
        raise InvalidRequest(field, f"{field} has {len(values)} entries; at most {most} are allowed")


def _present(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
