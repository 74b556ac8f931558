"""`baton quantize`: writes a model in eight or four bits, as a folder that other programs read as well."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from cli.errors import readable_errors
from cli.models.hub import local_folder
from cli.output import emit_json, err, say
from mesh.config.common_config import default_cache_folder
from mesh.config.config_checks import ConfigError, check_choice
from mesh.config.model_folder import why_no_model
from mesh.config.worker_config import ROUNDED

if TYPE_CHECKING:
    from engine.model.weights import Weights

_KV = ("int8", "fp8")  # what a folder may ask for; four bits are an experiment that `baton up` is asked for
LEAST_TEXT = 64  # tokens from which a perplexity is worth a name


def quantize(
    model: Annotated[Path, typer.Argument(help="Model folder, GGUF file, or ORG/NAME on the Hugging Face hub.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    to: Annotated[str, typer.Option("--to", help="int8 or int4.")],
    kv: Annotated[
        str | None, typer.Option(help="int8 or fp8: pages of this model hold keys and values in eight bits.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(help="Text that decides how four bits are rounded; without one, the model writes it."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Text whose perplexity is compared; without one, a short built-in text.")
    ] = None,
    threads: Annotated[int, typer.Option(help="How many threads compute; 0: one for each core.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout.")] = False,
) -> None:
    """Write a model in eight or four bits, and say what that costs.

    The folder is a compressed-tensors checkpoint: `baton up --model OUT`
    serves it, and vLLM and transformers read it, too. A layer at a time is in
    memory. A run that was stopped goes on where it was when it is started
    again.

    Example: baton quantize Qwen/Qwen2.5-0.5B-Instruct qwen-int4 --to int4
    """
    with readable_errors():
        check_choice("--to", to, ROUNDED)
        if kv is not None:
            check_choice("--kv", kv, _KV)
        if threads < 0:
            raise ConfigError(f"--threads: {threads} is less than 0; name a number of threads, or 0: one for each core")
        if calibrate is not None and to == "int8":
            raise ConfigError("--calibrate: eight bits are rounded without a text; leave it out, or take --to int4")
        report = _quantize(model, out, to, kv, calibrate, text, threads)
    if json:
        emit_json(report)


def _quantize(
    model: Path, out: Path, to: str, kv: str | None, calibrate: Path | None, text: Path | None, threads: int
) -> dict[str, Any]:
    import baton_kernels
    from engine.model.weights import open_weights
    from engine.quantization.cached import open_widened
    from engine.quantization.folder import LayerChange, Windows, quantize, readable
    from engine.quantization.own_text import WINDOW, WINDOWS, own_text
    from engine.quantization.refusals import widened_types
    from engine.quantization.text import CALIBRATED, sample_text, token_ids, windows_of
    from mesh.config.arrangement import this_machine

    cache, source = default_cache_folder(), local_folder(model)
    if problem := why_no_model(source):
        raise ConfigError(f"MODEL: {problem}")
    if types := widened_types(*readable(source, out)):
        say(f"the weights are {types}, and are widened before they are rounded")
    baton_kernels.set_threads(threads or this_machine().cores)
    judged = token_ids(source, _read(text, "--text") if text else sample_text())
    if len(judged) < LEAST_TEXT:
        raise ConfigError(f"--text: has {len(judged)} tokens, and {LEAST_TEXT} are the least")
    windows: Windows | None = None
    if calibrate is not None:
        named = token_ids(source, _read(calibrate, "--calibrate"))
        if len(named) < WINDOW:
            raise ConfigError(f"--calibrate: {calibrate} has {len(named)} tokens, and {WINDOW} are the least")
        windows = windows_of(named, CALIBRATED, WINDOW)
    dense = open_widened(source, cache)
    before = _perplexity(dense, judged, "before")
    if to == "int8":
        windows = windows_of(judged, 1, 2)  # eight bits are rounded without looking at a text
    elif windows is None:
        say("the model writes the text by which it is rounded; --calibrate FILE names another")
        windows = own_text(dense, windows=WINDOWS, tokens=WINDOW)
    layers = dense.config.layers
    with Progress(console=err) as progress:
        bar = progress.add_task(f"layers to {to}", total=layers)
        changes = list[LayerChange]()
        for change in quantize(source, out, to, cache, windows, kv or baton_kernels.OWN):
            changes.append(change)
            progress.update(bar, advance=1, description=f"layer {change.layer}: {change.matrix} ±{change.share:.1%}")
    after = _perplexity(open_weights(out, cache, kv=kv or baton_kernels.OWN), judged, "after")
    sizes = _bytes(source), _bytes(out)
    worst = max(changes, key=lambda each: each.share)
    say(f"{sizes[0] / 1e6:.1f} MB before, {sizes[1] / 1e6:.1f} MB after")
    say(f"perplexity {before:.2f} before, {after:.2f} after ({after / before - 1:+.2%}), on {len(judged)} tokens")
    say(f"changed most: layer {worst.layer}, {worst.matrix}, by {worst.share:.1%} of its weights' mean size")
    say(f"serve it: baton up --model {out} --quantize int8   (rounds embedding and head, which stay in 16 bits there)")
    return {
        "bytes_before": sizes[0],
        "bytes_after": sizes[1],
        "perplexity_before": before,
        "perplexity_after": after,
        "kv": kv or "auto",
        "tokens": len(judged),
        "layers": [{"layer": each.layer, "matrix": each.matrix, "change": each.share} for each in changes],
    }


def _perplexity(weights: "Weights", tokens: list[int], when: str) -> float:
    from engine.quantization.perplexity import perplexity

    with Progress(console=err, transient=True) as progress:
        bar = progress.add_task(f"perplexity {when}", total=len(tokens))
        return perplexity(weights, tokens, told=lambda done: progress.update(bar, completed=done))


def _read(file: Path, option: str) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option}: {file} cannot be read as text ({error})") from None


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".safetensors", ".gguf"))
