"""Which GGUF file of a repository on the hub is meant: `ORG/NAME:Q4_K_M` names its type, as the end of the file's name
does. Without a type, a repository has to hold one file only."""

import re
from collections.abc import Sequence
from pathlib import Path

from mesh.config.config_checks import ConfigError

_TYPE = re.compile(r"(?:^|[-._/])((?:I?Q[0-9]|F16|F32|BF16|MXFP4)[A-Z0-9_]*)\.gguf$", re.IGNORECASE)
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_SHOWN = 24  # types that an error lists


def chosen_gguf(names: Sequence[str], wanted: str, *, model: str, field: str) -> str:
    """The name of the file among those of a repository. `wanted`: its type; empty: the only one."""
    files = sorted(name for name in names if name.lower().endswith(".gguf"))
    whole = [name for name in files if not _PART.search(name)]
    fitting = [name for name in whole if not wanted or type_of(name) == wanted.upper()]
    if len(fitting) == 1:
        return fitting[0]
    types = ", ".join(sorted({type_of(name) for name in whole} - {""})[:_SHOWN])
    if not files:
        what = "holds no GGUF file"
    elif not whole:
        what = "holds GGUF files that are cut into parts; download them, and join them with llama-gguf-split --merge"
    elif wanted and not fitting:
        what = f"holds no GGUF file of the type {wanted}, but {types or ', '.join(whole)}"
    elif wanted:
        what = f"holds several GGUF files of the type {wanted}: {', '.join(fitting)}; download one of them and name it"
    else:
        example = f"{model}:{type_of(whole[0])}" if type_of(whole[0]) else "--model FILE.gguf"
        what = f"holds several GGUF files, of the types {types}; name one, as {example}"
    raise ConfigError(f"{field}: {model} on the hub {what}")


def cached_gguf(repository: Path, revision: str, wanted: str) -> Path | None:
    """The file of this type that the hub's cache holds of the revision; None: it has none, or several."""
    reference = repository / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    files = sorted((repository / "snapshots" / commit).rglob("*.gguf"))
    fitting = [file for file in files if not wanted or type_of(file.name) == wanted.upper()]
    return fitting[0] if len(fitting) == 1 else None


def type_of(name: str) -> str:
    """The type that a file's name ends with, such as Q4_K_M; empty: it ends otherwise."""
    found = _TYPE.search(name)
    return found[1].upper() if found else ""
