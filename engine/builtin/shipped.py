"""The pair that Baton ships, as Hugging Face folders beside this file: a small model that answers, and its draft.

`models/` trained both; what they can do is in pair/README.md."""

from pathlib import Path

PAIR = Path(__file__).resolve().parent / "pair"
MODEL = PAIR / "model"
DRAFT = PAIR / "draft"
