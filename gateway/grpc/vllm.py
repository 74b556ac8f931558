"""vllm.Inference on the clients' port: requests of vLLM's gRPC API become requests of baton.inference.v1 and answers
go back.

What cannot be honoured is refused by its name; zeros mean defaults there, so they are left out here. Lists about the
prompt have an entry for each of its tokens, also for the first, which has no logprob."""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2 as pb
from baton.vllm.v1 import vllm_pb2 as vllm
from gateway.grpc.calls import Call, handlers
from gateway.grpc.generating import Generating
from gateway.grpc.names import Names
from gateway.grpc.request import AskedRequest
from mesh.errors import InvalidRequest

SERVICE = vllm.DESCRIPTOR.services_by_name["Inference"]
SIXTY_FOUR_BITS = 2**64 - 1
MAX_NEW_TOKENS = 20  # vLLM's default
MOST_TOKENS = 2**31 - 1
_NAMES = Names(
    text="text",
    token_ids="token_ids",
    form="decoding",
    json="json",
    listed=2**18,  # they are one message
    others={
        "n": "sampling.num_sequences",
        **{name: f"sampling.{name}" for name in ("top_k", "top_p", "min_p", "seed")},
        "max_tokens": "stopping.max_new_tokens",
        "min_tokens": "stopping.min_new_tokens",
        "stop": "stopping.stop_strings",
        "stop_token_ids": "stopping.stop_token_ids",
        "ignore_eos": "stopping.ignore_eos",
        "top_logprobs": "response.output_candidates.top_n",
        "prompt_logprobs": "response.prompt_candidates.top_n",
        **{name: f"decoding.{name}" for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")},
        **{name: f"decoding.{name}" for name in ("logit_bias", "allowed_token_ids")},
        "affinity": "session_id",
        "salt": "kv.cache_salt",
    },
)
_REFUSED = {"": ("media",), "kv": ("kv_transfer_params", "ec_transfer_params")}
_SAMPLING = ("top_k", "top_p", "min_p")
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


def vllm_handlers(generating: Generating) -> grpc.GenericRpcHandler:
    return handlers(SERVICE, _Inference(generating))


class _Inference:
    def __init__(self, generating: Generating) -> None:
        self._generating = generating

    async def Generate(self, raw: bytes, context: Any) -> vllm.GenerateResponse:
        found = vllm.GenerateResponse()
        async with aclosing(self._messages(raw, context, "Generate", most=1)) as messages:
            async for message in messages:
                if message.HasField("prompt_info"):
                    found.prompt_info.CopyFrom(message.prompt_info)
                found.outputs.MergeFrom(_appended(found.outputs, message.outputs))
        return found

    async def GenerateStream(self, raw: bytes, context: Any) -> AsyncGenerator[vllm.GenerateResponse, None]:
        async with aclosing(self._messages(raw, context, "GenerateStream", most=None)) as messages:
            async for message in messages:
                yield message

    async def _messages(
        self, raw: bytes, context: Any, method: str, *, most: int | None
    ) -> AsyncGenerator[vllm.GenerateResponse, None]:
        wanted = vllm.ResponseOptions()

        async def read(call: Call) -> AskedRequest:
            request = await call.message(vllm.GenerateRequest)
            wanted.CopyFrom(request.response)
            if most is not None and request.sampling.num_sequences > most:
                what = "sampling.num_sequences must be at most 1 here: this answer holds one; call GenerateStream"
                raise InvalidRequest("sampling.num_sequences", what)
            return AskedRequest(to_ours(request, fresh_salt=call.request_id))

        events = self._generating.events(raw, context, f"{SERVICE.full_name}/{method}", read, _NAMES)
        async with aclosing(events) as each:
            async for message in from_ours(each, wanted):
                yield message


def to_ours(request: vllm.GenerateRequest, *, fresh_salt: str) -> pb.GenerateRequest:
    """The same request; InvalidRequest names the first field that cannot be honoured. `fresh_salt` is a salt that no
    other request has: with it, no cached prefix is found."""
    for name in _refused(request):
        raise InvalidRequest(name, f"{name} is not supported by vllm.Inference of this gateway; leave it out")
    found = pb.GenerateRequest(
        request_id=request.request_id or None,
        model=request.lora_name or request.model or None,
        cache_salt=(fresh_salt if request.kv.bypass_prefix_cache else request.kv.cache_salt) or None,
        priority=request.priority or None,
        affinity_key=request.session_id or None,
        truncate_prompt_tokens=min(request.truncate_prompt_tokens, MOST_TOKENS) or None,
        return_prompt_token_ids=request.response.prompt_token_ids,
    )
    if request.WhichOneof("prompt") == "text":
        found.text = request.text
    elif request.WhichOneof("prompt") == "token_ids":
        found.token_ids.ids.MergeFrom(request.token_ids.ids)
    if request.HasField("temperature"):
        found.sampling.temperature = request.temperature
    sampling, stopping = request.sampling, request.stopping
    for ours, value in (("n", sampling.num_sequences), *((name, getattr(sampling, name)) for name in _SAMPLING)):
        if value:
            setattr(found.sampling, ours, value)
    if sampling.HasField("seed"):
        found.sampling.seed = sampling.seed & SIXTY_FOUR_BITS
    found.stop.max_tokens = stopping.max_new_tokens or MAX_NEW_TOKENS
    if stopping.min_new_tokens:
        found.stop.min_tokens = stopping.min_new_tokens
    found.stop.strings.extend(stopping.stop_strings)
    found.stop.token_ids.MergeFrom(stopping.stop_token_ids)
    found.stop.ignore_eos, found.stop.include_stop_string = stopping.ignore_eos, stopping.include_stop_strings
    _add_decoding(found, request.decoding)
    _add_response(found, request.response)
    return found


def _add_decoding(found: pb.GenerateRequest, decoding: vllm.DecodingParameters) -> None:
    for name in _PENALTIES:
        if value := getattr(decoding, name):
            setattr(found.sampling, name, value)
    found.sampling.logit_bias.MergeFrom(decoding.logit_bias)
    if decoding.allowed_token_ids:
        found.sampling.allowed_token_ids.ids.MergeFrom(decoding.allowed_token_ids)
    kind, output = decoding.WhichOneof("structured_output"), found.structured_output
    if kind == "json":
        output.json_schema = decoding.json
    elif kind == "choice":
        output.choice.SetInParent()
        output.choice.texts.extend(decoding.choice.choices)
    elif kind is not None:
        setattr(output, kind, getattr(decoding, kind))


def _add_response(found: pb.GenerateRequest, response: vllm.ResponseOptions) -> None:
    if response.output_logprobs or response.HasField("output_candidates"):
        found.logprobs.top = response.output_candidates.top_n
    if response.prompt_logprobs or response.HasField("prompt_candidates"):
        found.prompt_logprobs = response.prompt_candidates.top_n
    if response.HasField("skip_special_tokens"):
        found.skip_special_tokens = response.skip_special_tokens


def _refused(request: vllm.GenerateRequest) -> Iterator[str]:
    for part, names in _REFUSED.items():
        message: Any = getattr(request, part) if part else request
        present = {field.name for field, _ in message.ListFields()}
        yield from (f"{part}.{name}".strip(".") for name in names if name in present)
    for name in ("prompt_candidates", "output_candidates"):
        kind = getattr(request.response, name).WhichOneof("select")
        if kind not in (None, "top_n"):
            yield f"response.{name}.{kind}"


async def from_ours(
    events: AsyncIterator[pb.StreamGenerateResponse], wanted: vllm.ResponseOptions
) -> AsyncIterator[vllm.GenerateResponse]:
    info: vllm.PromptInfo | None = None  # until the first message has it
    counts, last = dict[int, int](), dict[int, int]()  # tokens of each sequence, and its last one
    async for event in events:
        kind = event.WhichOneof("event")
        if kind == "started":
            info = _prompt_info(event.started, wanted)
            continue
        if kind == "prompt_logprobs":
            assert info is not None, "Started comes first"
            _add_scores(info, event.prompt_logprobs, wanted)
            continue
        if kind == "delta":
            outputs = _output(event.delta, wanted)
            counts[outputs.index] = counts.get(outputs.index, 0) + outputs.num_tokens
            last[outputs.index] = event.delta.token_ids[-1]
        elif kind == "choice_finished":
            index = event.choice_finished.index
            outputs = vllm.SequenceOutput(index=index)
            outputs.finish_info.CopyFrom(_finish(event.choice_finished, counts.get(index, 0), last.get(index)))
        else:
            continue
        yield vllm.GenerateResponse(prompt_info=info, outputs=outputs)
        info = None


def _prompt_info(started: pb.Started, wanted: vllm.ResponseOptions) -> vllm.PromptInfo:
    info = vllm.PromptInfo(num_prompt_tokens=started.prompt_tokens)
    info.token_ids.MergeFrom(started.prompt_token_ids)
    if wanted.prompt_logprobs:
        info.logprobs.append(math.nan)
        info.ranks.append(0)
    if wanted.HasField("prompt_candidates"):
        info.candidate_tokens.add()
    return info


def _add_scores(info: vllm.PromptInfo, part: pb.PromptLogprobs, wanted: vllm.ResponseOptions) -> None:
    if wanted.prompt_logprobs:
        info.logprobs.MergeFrom(part.logprobs)
        info.ranks.MergeFrom(part.ranks)
    if wanted.HasField("prompt_candidates"):
        count = len(part.token_ids)
        top = len(part.top_ids) // max(1, count)
        for start in range(0, count * top, top) if top else [0] * count:
            span = slice(start, start + top)
            info.candidate_tokens.append(_candidates(part.top_ids[span], part.top_logprobs[span]))


def _candidates(ids: Sequence[int], logprobs: Sequence[float]) -> vllm.CandidateTokenInfo:
    """The likeliest tokens, best first."""
    ranked = enumerate(zip(ids, logprobs, strict=True), 1)
    return vllm.CandidateTokenInfo(
        tokens=[
            vllm.CandidateTokenInfo.TokenInfo(id=token, logprob=logprob, rank=rank) for rank, (token, logprob) in ranked
        ]
    )


def _output(delta: pb.Delta, wanted: vllm.ResponseOptions) -> vllm.SequenceOutput:
    found = vllm.SequenceOutput(index=delta.index, num_tokens=len(delta.token_ids))
    if not wanted.HasField("output_text") or wanted.output_text:
        found.text = delta.text
    if wanted.output_token_ids:
        found.token_ids.MergeFrom(delta.token_ids)
    for token, each in zip(delta.token_ids, delta.logprobs, strict=False):
        ids = list(each.top_ids)
        if wanted.output_logprobs:
            found.logprobs.append(each.logprob)
            found.ranks.append(ids.index(token) + 1 if token in ids else 0)
        if wanted.HasField("output_candidates"):
            found.candidate_tokens.append(_candidates(ids, each.top_logprobs))
    return found


def _finish(finished: pb.ChoiceFinished, tokens: int, last: int | None) -> vllm.FinishInfo:
    length = finished.reason == pb.FINISH_REASON_LENGTH
    found = vllm.FinishInfo(
        num_output_tokens=tokens, finish_reason=vllm.FinishInfo.LENGTH if length else vllm.FinishInfo.STOP
    )
    match finished.WhichOneof("cause"):
        case "stop_token_id":
            found.stop_token_id = finished.stop_token_id
        case "stop_string":
            found.stop_string = finished.stop_string
        case _ if not length and last is not None:
            found.eos_token_id = last
    return found


def _appended(before: vllm.SequenceOutput, after: vllm.SequenceOutput) -> vllm.SequenceOutput:
    """`after`, so that merging it into `before` joins their texts and adds their counts."""
    joined = vllm.SequenceOutput()
    joined.CopyFrom(after)
    joined.text, joined.num_tokens = before.text + after.text, before.num_tokens + after.num_tokens
    return joined
