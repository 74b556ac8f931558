"""The one error that a model folder can cause. It is raised while a worker starts and never later.

It names the file, the field or tensor in it, what is wrong and what the reader can do about it."""

from pathlib import Path


class ModelError(Exception):
    """A model folder that cannot be served as it is."""

    def __init__(self, path: Path | str, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {field}: {problem}. {remedy}")
        self.path = Path(path)
        self.field = field
        self.problem = problem
        self.remedy = remedy
