"""Text of servers that commands print: shortened and without control characters."""

DETAIL_CHARACTERS = 200


def redirect(where: str) -> str:
    return printable(f"the server redirects to {where}; redirects are not followed, so give that URL")


def message_of(answer: object) -> str:
    """The text of an error, in the forms that servers give it."""
    if isinstance(answer, dict):
        inner = answer.get("error")
        found = inner.get("message") if isinstance(inner, dict) else inner
        found = found or answer.get("message") or answer.get("detail")
        if found:
            return printable(str(found))
    return ""


def printable(text: str) -> str:
    clean = "".join(sign if sign.isprintable() else " " for sign in text[: 2 * DETAIL_CHARACTERS])
    return clean if len(clean) <= DETAIL_CHARACTERS else f"{clean[:DETAIL_CHARACTERS]}…"
