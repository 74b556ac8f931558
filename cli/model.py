"""`baton model inspect`: the contents of a model folder and what serving it takes, without loading it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import readable_errors
from cli.mesh import with_model
from cli.output import emit_json
from mesh.config import PAGE_TOKENS, CommonConfig, ConfigError

app = typer.Typer(
    no_args_is_help=True, help="Check a model folder without loading it.\n\nExample: baton model inspect ~/models/qwen"
)

_KV_BYTES = {"fp32": 4, "pairs": 2, "amx": 2}


@app.callback()
def model() -> None:
    """Check a model folder without loading it.

    Example: baton model inspect ~/models/qwen2.5-0.5b
    """


@app.command()
def inspect(
    folder: Annotated[
        Path | None, typer.Argument(help="Hugging Face model folder; without one, the built-in model.")
    ] = None,
    page_tokens: Annotated[int, typer.Option(help="Tokens per page: 16, 32 or 64.")] = 32,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a model folder and print its shape, and the bytes that its KV takes.

    Example: baton model inspect ~/models/qwen2.5-0.5b --page-tokens 64
    """
    with readable_errors():
        if page_tokens not in PAGE_TOKENS:
            raise ConfigError(f"--page-tokens: {page_tokens} is not one of {', '.join(map(str, PAGE_TOKENS))}")
        facts = look(folder, page_tokens)
    if json:
        emit_json(facts)
    else:
        for name, value in facts.items():
            print(f"{name:<20} {value}")


def look(folder: Path | None, page_tokens: int) -> dict[str, Any]:
    """Raises engine.model.errors.ModelError, naming file and field, when the folder cannot be served."""
    from engine.model.checkpoint import Checkpoint
    from engine.model.config import read_config
    from engine.model.layout import read_tensors, weights_dtype
    from engine.model.paths import choose_path

    path = folder or with_model(CommonConfig()).model
    assert path is not None
    config = read_config(path)
    tensors = read_tensors(config, Checkpoint(path))
    dtype = weights_dtype(config, tensors)
    product_path = choose_path("auto", dtype)
    token_bytes = 2 * config.layers * config.kv_heads * config.head_dim * _KV_BYTES[product_path]
    return {
        "folder": str(path),
        "family": config.family,
        "parameters": sum(tensor.values.size for tensor in tensors.values()),
        "weights": dtype,
        "product_path": product_path,
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocabulary": config.vocab,
        "context_tokens": config.context,
        "tied": config.tied,
        "kv_bytes_per_token": token_bytes,
        "page_bytes": token_bytes * page_tokens,
    }
