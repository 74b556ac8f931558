"""How the model of a folder makes an embedding: its pooling, its size, and which smaller sizes it was trained for.

Read from `1_Pooling/config.json`, which sentence-transformers write beside their models, and from config.json. A folder
without the first has a model that was not made for embeddings: the last token's state is taken, as vLLM does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mesh.messages.jobs import Pooling

FILE = "1_Pooling/config.json"
MODES = {"pooling_mode_lasttoken": Pooling.LAST, "pooling_mode_mean_tokens": Pooling.MEAN}


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    dimensions: int = 0  # values of a whole embedding
    pooling: Pooling = Pooling.LAST
    why_not: str = ""  # reason to refuse embeddings; empty: there is none
    any_smaller: bool = False  # an embedding may be cut to any number of values
    smaller: tuple[int, ...] = ()  # or to these


UNKNOWN = EmbeddingSettings()


def embedding_settings(config: Mapping[str, Any], pooling: Mapping[str, Any]) -> EmbeddingSettings:
    """`config` is the model's config.json; `pooling` is the content of the other file, empty if there is none."""
    sizes = config.get("matryoshka_dimensions")
    smaller = tuple(sorted({int(size) for size in sizes})) if isinstance(sizes, list) else ()
    dimensions = int(config.get("hidden_size") or 0)
    modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    chosen = [MODES[name] for name in modes if name in MODES]
    why_not = ""
    if pooling and (len(modes) != 1 or not chosen):
        what = " and ".join(modes) or "no mode"
        why_not = f"{FILE} of the model sets {what}; supported is one of {', '.join(MODES)}"
    return EmbeddingSettings(
        dimensions,
        chosen[0] if chosen else Pooling.LAST,
        why_not,
        any_smaller=bool(config.get("is_matryoshka")) and not smaller,
        smaller=smaller,
    )
