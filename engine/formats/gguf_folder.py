"""Makes a model folder of a GGUF file: configuration and tokenizer as files of their own, and a link to the weights.

Every part of Baton reads model folders. The folder lies in the cache under a digest of the file's place, size and time,
and is written once; the weights stay where they are."""

import json
import os
import shutil
from pathlib import Path

from blake3 import blake3

from engine.formats.errors import ModelError
from engine.formats.gguf_config import config_of
from engine.formats.gguf_file import read_gguf
from engine.formats.gguf_names import named
from engine.formats.gguf_tokenizer import tokenizer_files

WEIGHTS = "model.gguf"
_RECIPE = 4  # raised whenever the files are written otherwise


def folder_of_gguf(file: Path, cache: Path) -> Path:
    """The folder of this file. Its last part is the file's name, which clients may call the model by."""
    place = file.resolve()
    try:
        about = place.stat()
    except OSError as error:
        raise ModelError(file, "file", f"cannot be read ({error})", "Name a GGUF file.") from None
    stamp = f"{_RECIPE} {place} {about.st_size} {about.st_mtime_ns} {about.st_ino}"
    folder = cache / "gguf" / blake3(stamp.encode()).hexdigest(12) / file.stem
    if (folder / WEIGHTS).exists():
        return folder
    opened = read_gguf(place)
    list(named(opened))  # refuses tensors of no known place
    contents = {"config.json": config_of(opened), **tokenizer_files(opened)}
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        for name, content in contents.items():
            (aside / name).write_text(json.dumps(content, ensure_ascii=False))
        (aside / WEIGHTS).symlink_to(place)
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if not (folder / WEIGHTS).exists():  # else another process was faster
            raise ModelError(folder, "cache folder", f"cannot be written ({error})", "Choose another one.") from None
    return folder
