"""the stubs alone (pip install ./protos): whole, streamed, chat with tools, counting, the client, no other package."""

import asyncio
import importlib.metadata
import os

import grpc

from baton.client import Client
from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as rpc

ADDRESS = os.environ["MESH_GRPC"]
ANSWER = "20 + 22 = 42."
SMALL = {"baton-client", "grpcio", "protobuf", "typing-extensions", "pip", "setuptools"}


def question(text: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=text)]))


def main() -> None:
    with grpc.insecure_channel(ADDRESS) as channel:
        stub = rpc.InferenceServiceStub(channel)
        whole = stub.Generate(question("What is 20 + 22?"), timeout=60)
        assert whole.choices[0].text == ANSWER, whole
        events = list(stub.StreamGenerate(pb.StreamGenerateRequest(request=question("What is 20 + 22?")), timeout=60))
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds[0] == "started" and kinds[-2:] == ["choice_finished", "finished"], kinds
        assert "".join(event.delta.text for event in events if event.WhichOneof("event") == "delta") == ANSWER
        assert [model.name for model in rpc.ModelServiceStub(channel).ListModels(pb.ListModelsRequest()).models]
        try:
            stub.Generate(pb.GenerateRequest(text="Hi", sampling=pb.SamplingOptions(temperature=-1)), timeout=60)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and "temperature" in error.details()
        else:
            raise AssertionError("a wrong field is an error")
    asyncio.run(with_client())
    installed = {dist.metadata["Name"].lower().replace("_", "-") for dist in importlib.metadata.distributions()}
    assert installed <= SMALL, f"the stubs need few packages, not {installed - SMALL}"


async def with_client() -> None:
    async with Client(ADDRESS) as client:
        text = "".join([part async for part in client.stream_text("Once upon a time", max_tokens=16)])
        assert text == await client.generate_text("Once upon a time", max_tokens=16) and len(text) > 16
        assert await client.count_tokens("Once upon a time") > 2
        assert await client.models() == [os.environ["MESH_MODEL"]]


if __name__ == "__main__":
    main()
