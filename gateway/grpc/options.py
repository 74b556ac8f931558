"""The options of a gRPC request that adjust logits, as gateway/validation/adjustments.py takes them. Nothing is
converted here: a message may hold more than will be accepted."""

from baton.inference.v1 import inference_pb2 as pb
from gateway.validation.adjustments import AdjustmentFields


def adjustment_fields(sampling: pb.SamplingOptions) -> AdjustmentFields:
    return AdjustmentFields(
        frequency_penalty=sampling.frequency_penalty if sampling.HasField("frequency_penalty") else None,
        presence_penalty=sampling.presence_penalty if sampling.HasField("presence_penalty") else None,
        repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else None,
        logit_bias=sampling.logit_bias,
        bad_words=sampling.bad_words,
        allowed_token_ids=sampling.allowed_token_ids.ids if sampling.HasField("allowed_token_ids") else None,
    )
