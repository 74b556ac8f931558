"""The model card: what the pair is, how it was made, what it can do, in numbers of one evaluation."""

import json
from pathlib import Path
from typing import Any

_TARGETS = {
    "additions_exact": ("held-out additions below 100, exact", 0.95),
    "json_valid": ("valid JSON for held-out schemas, unconstrained", 0.95),
    "wordings_named": (
        'answers to "What is Baton?" and five held-out wordings that name gateway, prefill, decode and pages',
        1.0,
    ),
    "draft_acceptance": ("draft tokens accepted of proposed, draft length 4, greedy", 0.6),
    "draft_acceptance_sampled_ratio": ("the same at temperature 0.8 with common noise, relative to greedy", 0.8),
}


def write_card(found: dict[str, Any], folder: Path) -> None:
    (folder / "evaluation.json").write_text(json.dumps(found, indent=2) + "\n")
    (folder / "README.md").write_text(card(found, folder))


def card(found: dict[str, Any], folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    rows = "\n".join(f"| {text} | {found[key]:.1%} | ≥ {goal:.0%} |" for key, (text, goal) in _TARGETS.items())
    kinds = "\n".join(
        f"| {kind} | {share:.1%} | {found['draft_acceptance_sampled_by_kind'][kind]:.1%} | "
        f"{found['answers_as_in_corpus'][kind]:.1%} |"
        for kind, share in found["draft_acceptance_by_kind"].items()
    )
    said = "\n".join(f"- **{asked}** {text}" for asked, text in found["wordings"].items())
    return _CARD.format(size=size, rows=rows, kinds=kinds, said=said, **found)


_CARD = """\
# The built-in pair

A very small language model and its draft, made so that Baton has something to say on any machine: both are Llama
architectures with one tokenizer (byte-level BPE, 2,048 tokens, each digit its own), bf16, {size:.1f} MB together.

| | width | layers | heads (KV) | feed-forward | parameters |
|---|---|---|---|---|---|
| `model/` | 256 | 6 | 4 × 64 (2) | 704 | 4.95 M |
| `draft/` | 128 | 2 | 4 × 32 (2) | 352 | 0.63 M |

It explains Baton, adds small numbers, counts and lists, tells little stories, writes JSON objects for a schema, calls
tools (`<tool_call>`, as Hermes and Qwen do) and remembers what you said a few turns ago. It knows nothing else, and
what it says outside of that is not to be trusted.

## How it was made

`python -m models.train` generates the corpus from a seed (no text was downloaded), trains the tokenizer and the model
on it, and distils the draft from the model's own distribution. `python -m models.evaluate --json` wrote this card and
`evaluation.json`.

![losses of model and draft over million tokens](loss.svg)

## What it can do

Everything here was held out: questions by a hash of what is asked, additions as unordered pairs across all templates
(sums of two single digits excepted, {additions_asked} questions), wordings by name.

| | measured | wanted |
|---|---|---|
{rows}

Perplexity of held-out answers: {perplexity:.3f} (draft {draft_perplexity:.3f}); of questions and answers together:
{perplexity_with_questions:.3f}. Valid JSON at temperature 0.8: {json_valid_sampled:.1%}.

| kind | accepted, greedy | accepted, temperature 0.8 | answer exactly as in the corpus |
|---|---|---|---|
{kinds}

Accepted are proposals that equal the model's own choice and do not end the answer, of all that were proposed, as the
engine counts them; a short answer therefore stays below 100% even if the draft knows all of it. Stories and freely
chosen values have many right forms; a low last column is no mistake there.

{said}
"""
