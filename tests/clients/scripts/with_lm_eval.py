"""lm-eval: log-likelihood of choices, perplexity of texts, generation, over completions and chat.

The tasks are files of ours, in tests/clients/lm_eval_tasks; the built-in model knows their answers."""

import os
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

URL, MODEL, TOKENIZER = os.environ["OPENAI_BASE_URL"], os.environ["MESH_MODEL"], os.environ["MESH_TOKENIZER"]
TASKS = Path(__file__).resolve().parents[1] / "lm_eval_tasks"


def results(kind: str, tasks: list[str], **arguments: Any) -> Any:
    path = "chat/completions" if kind == "local-chat-completions" else "completions"
    found = lm_eval.simple_evaluate(
        model=kind,
        model_args={"model": MODEL, "base_url": f"{URL}/{path}", "num_concurrent": 2, "max_length": 2048} | arguments,
        tasks=tasks,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        apply_chat_template=kind == "local-chat-completions",
        bootstrap_iters=0,
    )
    return found["results"]


def main() -> None:
    os.chdir(TASKS)  # the tasks name their files relative to this folder
    local = {"tokenizer": TOKENIZER, "tokenizer_backend": "huggingface"}
    found = results("local-completions", ["baton_choices", "baton_texts", "baton_sums"], **local)
    assert found["baton_choices"]["acc,none"] == 1.0, found
    assert found["baton_sums"]["exact_match,none"] == 1.0, found
    assert 1.0 < found["baton_texts"]["word_perplexity,none"] < 3.0, found
    # The same with several token lists in each request.
    again = results("local-completions", ["baton_choices"], batch_size=4, **local)
    assert again["baton_choices"] == found["baton_choices"], (again, found)
    # The gateway's own tokenizer, over HTTP: no tokenizer files here.
    remote = results("local-completions", ["baton_choices", "baton_sums"], tokenizer_backend="remote")
    assert remote["baton_choices"]["acc,none"] == 1.0 and remote["baton_sums"]["exact_match,none"] == 1.0, remote
    chat = results("local-chat-completions", ["baton_chat_sums"])
    assert chat["baton_chat_sums"]["exact_match,none"] == 1.0, chat


if __name__ == "__main__":
    main()
