"""Forms with files, however their bytes are cut on the way."""

from random import Random

import pytest

from gateway.http.multipart import MOST_HEAD, MOST_PARTS, FormPart, MultipartReader
from mesh.errors import BatonError

KIND = b"multipart/form-data; boundary=xyz"


def form(*parts: tuple[bytes, bytes], boundary: bytes = b"xyz") -> bytes:
    written = b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head, body) for head, body in parts)
    return written + b"--%b--\r\n" % boundary


def field(name: bytes, more: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="%b"%b' % (name, more)


def read(data: bytes, *, kind: bytes = KIND, cuts: Random | None = None) -> list[tuple[str, str | None, bytes]]:
    """The parts of a form; with `cuts` its bytes come in pieces of random sizes."""
    reader, found = MultipartReader(kind), list[tuple[str, str | None, bytearray]]()
    while data:
        size = len(data) if cuts is None else cuts.randint(1, 9)
        for each in reader.feed(data[:size]):
            if isinstance(each, FormPart):
                found.append((each.name, each.filename, bytearray()))
            else:
                found[-1][2].extend(each)
        data = data[size:]
    reader.close()
    return [(name, filename, bytes(body)) for name, filename, body in found]


def test_parts_are_read_whatever_the_cuts() -> None:
    content = b"line\r\n--xy\r\n--xy\r\r\n-" * 20 + b"\x00\xff"
    data = form(
        (field(b"purpose"), b"batch"),
        (field(b"file", b'; filename="a \\"b\\".jsonl"') + b"\r\nContent-Type: text/plain", content),
        (field(b"empty"), b""),
    )
    expected = [("purpose", None, b"batch"), ("file", 'a "b".jsonl', content), ("empty", None, b"")]
    assert read(data) == expected == read(b"preamble\r\n" + data + b"epilogue")
    for seed in range(200):
        assert read(data, cuts=Random(seed)) == expected


def test_a_quoted_boundary_is_read() -> None:
    assert read(form((field(b"a"), b"1"), boundary=b"x y"), kind=b'multipart/form-data; boundary="x y"') == [
        ("a", None, b"1")
    ]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"{}", b"application/json"),
        (b"", b"multipart/form-data"),
        (form((field(b"a"), b"1"))[:-5], KIND),
        (b"", KIND),
        (b"--xyz?\r\n", KIND),
        (form((b"Content-Type: text/plain", b"1")), KIND),
        (form((b"X: " + b"y" * MOST_HEAD, b"1")), KIND),
        (b"--xyz\r\nX: " + b"y" * 2 * MOST_HEAD, KIND),
        (form(*[(field(b"a"), b"1")] * (MOST_PARTS + 1)), KIND),
    ],
)
def test_what_is_no_form_is_refused(data: bytes, kind: bytes) -> None:
    with pytest.raises(BatonError):
        read(data, kind=kind)


def test_names_without_quotes_are_read() -> None:
    head = b"Content-Disposition: form-data; name=file; filename=a.jsonl"
    other = b'Content-Disposition: form-data; name="file"; filename="a; name=b.jsonl"'
    assert read(form((head, b"x"), (other, b"y"))) == [("file", "a.jsonl", b"x"), ("file", "a; name=b.jsonl", b"y")]
