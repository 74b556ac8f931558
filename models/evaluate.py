"""`python -m models.evaluate --json`: judges the pair by held-out questions and writes its model card.

Answers are greedy unless a figure's name says otherwise, and JSON is decoded without constraints. Progress goes to
stderr, the result to stdout."""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from engine.builtin import PAIR
from models.acceptance import DRAFT_LENGTH, AcceptanceTally, judge
from models.agreement import engine_answers, transformers_answers
from models.card import write_card
from models.export import read
from models.network import TrainedNetwork
from models.packing import Packer
from models.questions import HeldOutQuestion, Questions, names_all, right_sum
from models.schemas import fits
from models.speak import GREEDY, TokenChoice, answers
from models.talk import Kind
from models.template import END
from models.tokenizer import load_tokenizer, token_id

WARM = 0.8  # the temperature at which sampled acceptance is measured
_MOST = 160  # most tokens of an answer


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge the built-in pair.")
    parser.add_argument(
        "--pair", type=Path, default=PAIR, help="the folder of model/ and draft/ (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--count", type=int, default=80, help="questions of each kind (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = Evaluation.of(arguments.pair, arguments.seed).run(arguments.count)
    write_card(found, arguments.pair)
    shown = json.dumps(found) if arguments.json else json.dumps(found, indent=2)
    sys.stdout.write(shown + "\n")


@dataclass(frozen=True, slots=True)
class Evaluation:
    folder: Path
    model: TrainedNetwork
    draft: TrainedNetwork
    tokenizer: Tokenizer
    questions: Questions
    end: int

    @staticmethod
    def of(folder: Path, seed: int) -> "Evaluation":
        tokenizer = load_tokenizer(folder / "model")
        questions = Questions(tokenizer, seed)
        end = token_id(tokenizer, END)
        return Evaluation(folder, read(folder / "model"), read(folder / "draft"), tokenizer, questions, end)

    def run(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for step in (self._perplexity, self._additions, self._json, self._wordings, self._acceptance, self._agreement):
            sys.stderr.write(f"{step.__name__.strip('_')} …\n")
            found |= step(count)
        return found

    def _answers(self, questions: list[HeldOutQuestion], choice: TokenChoice = GREEDY) -> list[list[int]]:
        prompts = [question.prompt for question in questions]
        return answers(self.model, prompts, most=_MOST, end=self.end, choice=choice)

    def _text(self, ids: list[int]) -> str:
        return self.questions.text(ids)

    def _perplexity(self, count: int) -> dict[str, Any]:
        """The perplexity of held-out answers, and of questions and answers together."""
        packer = Packer(self.tokenizer, 0, 1)
        out = {}
        for name, network in (("perplexity", self.model), ("draft_perplexity", self.draft)):
            losses, weights = [], []
            for _, ids in self.questions.texts(5 * count):
                losses.append(_losses(network, ids))
                weights.append(torch.tensor(packer.weights(ids)[1:]))
            every, answering = torch.cat(losses), torch.cat(weights) == 1.0
            out[name] = round(math.exp(every[answering].mean().item()), 4)
            out[f"{name}_with_questions"] = round(math.exp(every.mean().item()), 4)
        return out

    def _additions(self, count: int) -> dict[str, Any]:
        asked = self.questions.additions()
        right = [
            right_sum(self._text(answer), question.about["sum"])
            for question, answer in zip(asked, self._answers(asked), strict=True)
        ]
        return {"additions_exact": round(sum(right) / len(right), 4), "additions_asked": len(right)}

    def _json(self, count: int) -> dict[str, Any]:
        asked = self.questions.of_kind(Kind.JSON, 3 * count)
        out: dict[str, Any] = {"json_asked": len(asked)}
        for name, choice in (("json_valid", GREEDY), ("json_valid_sampled", TokenChoice(WARM))):
            texts = [self._text(answer) for answer in self._answers(asked, choice)]
            valid = [_is_valid(text, question.about["schema"]) for text, question in zip(texts, asked, strict=True)]
            out[name] = round(sum(valid) / len(valid), 4)
        return out

    def _wordings(self, count: int) -> dict[str, Any]:
        asked = self.questions.wordings()
        texts = [self._text(answer) for answer in self._answers(asked)]
        said = {question.about["wording"]: text for question, text in zip(asked, texts, strict=True)}
        return {"wordings_named": round(sum(map(names_all, texts)) / len(texts), 4), "wordings": said}

    def _acceptance(self, count: int) -> dict[str, Any]:
        greedy: dict[str, AcceptanceTally] = {}
        warm: dict[str, AcceptanceTally] = {}
        exact: dict[str, float] = {}
        for kind in Kind:
            asked = self.questions.of_kind(kind, count)
            for tallies, choice in ((greedy, GREEDY), (warm, TokenChoice(WARM))):
                emitted = self._answers(asked, choice)
                prompts = [question.prompt for question in asked]
                counted = judge(self.draft, prompts, emitted, end=self.end, most=_MOST, choice=choice)
                tallies[kind.value] = sum(counted, AcceptanceTally())
                if choice is GREEDY:
                    same = [self._text(a) == question.expected for a, question in zip(emitted, asked, strict=True)]
                    exact[kind.value] = round(sum(same) / len(same), 4)
        overall, sampled = sum(greedy.values(), AcceptanceTally()).share, sum(warm.values(), AcceptanceTally()).share
        return {
            "draft_length": DRAFT_LENGTH,
            "draft_acceptance": round(overall, 4),
            "draft_acceptance_by_kind": {kind: round(one.share, 4) for kind, one in greedy.items()},
            "draft_acceptance_sampled": round(sampled, 4),
            "draft_acceptance_sampled_by_kind": {kind: round(one.share, 4) for kind, one in warm.items()},
            "draft_acceptance_sampled_ratio": round(sampled / overall, 4),
            "answers_as_in_corpus": exact,
        }

    def _agreement(self, count: int) -> dict[str, Any]:
        """For each program, the share of its greedy answers that equal the training network's, token by token."""
        prompts = [question.prompt for kind in Kind for question in self.questions.of_kind(kind, 1)]
        out: dict[str, Any] = {}
        for name, network in (("model", self.model), ("draft", self.draft)):
            ours = answers(network, prompts, most=_MOST, end=self.end)
            folder = self.folder / name
            others = {
                "engine": engine_answers(folder, prompts, most=_MOST, end=self.end),
                "engine_fp32": engine_answers(folder, prompts, most=_MOST, end=self.end, product_path="fp32"),
                "transformers": transformers_answers(folder, prompts, most=_MOST, end=self.end),
            }
            equal = {who: sum(map(list.__eq__, ours, theirs)) / len(ours) for who, theirs in others.items()}
            out[f"{name}_agrees"] = {who: round(share, 4) for who, share in equal.items()}
        return out


@torch.no_grad()
def _losses(network: TrainedNetwork, ids: list[int]) -> Tensor:
    """The loss of each token after the first."""
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
    tokens = torch.tensor([ids])
    return cross_entropy(network(tokens, mask)[0, :-1], tokens[0, 1:], reduction="none")


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        return fits(json.loads(text), schema)
    except ValueError:
        return False


if __name__ == "__main__":
    main()
