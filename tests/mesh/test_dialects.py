"""The dialects of vLLM and SGLang over a real mesh: the same tokens and logprobs, to the bit, as the OpenAI API."""

from typing import Any

import httpx2 as httpx
import pytest

from tests.mesh.test_examination_api import StartMesh, served

pytestmark = pytest.mark.mesh

PROMPT = list(range(40, 90))


async def test_every_dialect_gives_the_tokens_and_logprobs_of_a_completion(real_mesh: StartMesh) -> None:
    async with served(real_mesh) as (_, client, _, _):
        options: Any = {"model": "tiny", "prompt": PROMPT, "seed": 5, "max_tokens": 12, "logprobs": 2}
        ours = await client.completions.create(**options, extra_body={"return_token_ids": True, "prompt_logprobs": 2})
        root = str(client.base_url).removesuffix("/v1/")
        async with httpx.AsyncClient(base_url=root, timeout=60) as http:
            sampling = {"seed": 5, "max_tokens": 12, "logprobs": 2, "prompt_logprobs": 2}
            tokens = (
                await http.post("/inference/v1/generate", json={"token_ids": PROMPT, "sampling_params": sampling})
            ).json()
            native = {"sampling_seed": 5, "max_new_tokens": 12}
            asked = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
            sglang = (
                await http.post("/generate", json={"input_ids": PROMPT, "sampling_params": native, **asked})
            ).json()
            text = (await http.post("/detokenize", json={"tokens": PROMPT})).json()["prompt"]
            alone = (await http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})).json()["tokens"]
            again = (await http.post("/detokenize", json={"tokens": alone})).json()["prompt"]
    choice: Any = ours.choices[0]
    (theirs,) = tokens["choices"]
    meta = sglang["meta_info"]
    assert choice.token_ids == theirs["token_ids"] == sglang["output_ids"]
    logprobs = choice.logprobs.token_logprobs
    assert [entry["logprob"] for entry in theirs["logprobs"]["content"]] == logprobs
    assert [entry[0] for entry in meta["output_token_logprobs"]] == logprobs
    entries = zip(PROMPT[1:], choice.prompt_logprobs[1:], strict=True)
    scored = [None, *(entry[str(token)]["logprob"] for token, entry in entries)]
    assert [entry[0] for entry in meta["input_token_logprobs"]] == scored
    assert tokens["prompt_logprobs"] == choice.prompt_logprobs and sglang["text"] == choice.text
    assert tokens["system_fingerprint"] == ours.system_fingerprint
    assert again == text
