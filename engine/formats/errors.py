"""The one error that a model folder can cause. It is raised while a worker starts and never later.

It names the file, the field or tensor in it, what is wrong and what the reader can do about it."""

from pathlib import Path

WHOLE_FILE = "file"  # the field of an error about a file as a whole


class ModelError(Exception):
    """A model folder that cannot be served as it is."""

    def __init__(self, path: Path | str, field: str, problem: str, remedy: str) -> None:
        where = path if field == WHOLE_FILE else f"{path}: {field}"
        super().__init__(f"{where}: {problem}. {remedy}")
        self.path = Path(path)
        self.field = field
        self.problem = problem
        self.remedy = remedy
