"""JSON that a request carries as a text in one of its fields: arguments of calls, schemas, tags.

Step 1 of a request's life. Whoever parsed the body, these texts are parsed on the event loop, in one piece that nothing
can interrupt. So their size is looked at first."""

import json
from typing import Any

from mesh.errors import InvalidRequest

Json = dict[str, Any]
MOST_CHARACTERS = 512 * 1024  # parsing this number takes up to thirty milliseconds


def parse_json_text(text: str, path: str, *, most: int = MOST_CHARACTERS) -> Any:
    if len(text) > most:
        raise InvalidRequest(path, f"{path} has {len(text)} characters; at most {most} are allowed")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(path, f"{path} is no JSON: {error}") from error
    except RecursionError:
        raise InvalidRequest(path, f"{path} is nested too deeply") from None
    except ValueError:
        raise InvalidRequest(path, f"{path} has a number of too many digits") from None


def parse_json_object(text: str | None, path: str, *, most: int = MOST_CHARACTERS) -> Json:
    """An empty text is an empty object."""
    found = parse_json_text(text or "{}", path, most=most)
    if not isinstance(found, dict):
        raise InvalidRequest(path, f"{path} must be the text of a JSON object; it is {type(found).__name__}")
    return found


class JsonBudget:
    """The JSON texts of one request may have `characters` characters together."""

    def __init__(self, characters: int = MOST_CHARACTERS) -> None:
        self._left = characters

    def parse_object(self, text: str | None, path: str) -> Json:
        found = parse_json_object(text, path, most=self._left)
        self._left -= len(text or "")
        return found
