"""`baton model inspect`: the contents of a model folder and what serving it takes, without loading it. `baton model
fetch`: downloads a model of the Hugging Face hub."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import readable_errors
from cli.local_mesh.services import with_model
from cli.models.hub import HubModel, local_folder
from cli.models.hub import fetch as download
from cli.output import emit_json
from mesh.config.common_config import CommonConfig
from mesh.config.config_checks import ConfigError
from mesh.config.model_folder import is_hub_id, why_no_model
from mesh.config.worker_config import PAGE_TOKENS

app = typer.Typer(
    no_args_is_help=True, help="Download a model, or check a folder.\n\nExample: baton model inspect ~/models/qwen"
)

_KV_BYTES = {"fp32": 4, "pairs": 2, "amx": 2}


@app.callback()
def model() -> None:
    """Download a model of the hub, or check a model folder without loading it.

    Example: baton model inspect ~/models/qwen2.5-0.5b
    """


@app.command()
def inspect(
    folder: Annotated[
        Path | None, typer.Argument(help="Hugging Face model folder or ORG/NAME; without one, the built-in model.")
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


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M on the Hugging Face hub.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Download a model, or its newer commit, into the cache that `--model ORG/NAME` reads; print its folder.

    Example: baton model fetch Qwen/Qwen2.5-0.5B-Instruct
    """
    with readable_errors():
        if not is_hub_id(name):
            raise ConfigError(
                f"NAME: {name!r} is no name of a model on the hub: write ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M"
            )
        folder = download(HubModel.parse(name), field="NAME")
        facts = {"folder": str(folder), "model": HubModel.parse(name).name, "commit": folder.name}
        look(folder, PAGE_TOKENS[0])  # an error here comes before anyone starts a mesh with the model
    if json:
        emit_json(facts)
    else:
        print(folder)


def look(folder: Path | None, page_tokens: int) -> dict[str, Any]:
    """Raises engine.formats.errors.ModelError, naming file and field, when the folder cannot be served."""
    from engine.formats.checkpoint import Checkpoint
    from engine.formats.stored import Tensor
    from engine.model.config import read_config
    from engine.model.layout import as_stored, read_tensors, weights_dtype
    from engine.model.paths import choose_path

    path = local_folder(folder) if folder else with_model(CommonConfig()).model
    assert path is not None
    if problem := why_no_model(path):
        raise ConfigError(problem)
    config, checkpoint = read_config(path), Checkpoint(path)
    config = as_stored(config, checkpoint)
    tensors = read_tensors(config, checkpoint)
    dtype = weights_dtype(config, tensors)
    product_path = choose_path(
        "auto", dtype, stored=not all(isinstance(each, Tensor) for each in tensors.values())
    ).path
    token_bytes = 2 * config.layers * config.kv_heads * config.head_dim * _KV_BYTES[product_path]
    return {
        "folder": str(path),
        "family": config.family,
        "parameters": sum(tensor.size for tensor in tensors.values()),
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
