"""Forms of answers: what becomes a grammar, what is refused and where, and what compiling may cost."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from engine.builtin.tokenizer import END, VOCAB, write_tokenizer
from gateway.structured.calls import call_form as call_form_of
from gateway.structured.check import GrammarCheck
from gateway.structured.forms import Form, parse_response_format, parse_structured_outputs, pieces
from gateway.structured.schema import NUMBERS, SUPPORTED, json_grammar
from gateway.text.formats import HERMES, LLAMA3, MISTRAL, ToolFormat
from gateway.text.tool_choice import OfferedTools, parse_tool_choice
from mesh.errors import InvalidRequest
from mesh.messages.grammar import GrammarFault, Grammars

NONE: dict[str, int] = {}


def tool(name: str, strict: bool | None = None, **parameters: Any) -> Any:
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


@pytest.fixture(scope="module")
def definition(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 4096)
    return (Path(folder) / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def grammars(definition: str) -> Grammars:
    return Grammars(lambda: definition, VOCAB)


def follows(grammars: Grammars, grammar: str, text: str) -> bool:
    """Whether the text is a whole answer; ids are bytes, and added tokens follow."""
    matcher = grammars.matcher(grammar)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "object", "properties": {"a": {"uniqueItems": True}}}, "s.properties.a.uniqueItems"),
        ({"anyOf": [{}, {"if": {}}]}, "s.anyOf[1].if"),
        ({"items": {"contains": {}}}, "s.items.contains"),
        ({"$defs": {"x": {"not": {}}}}, "s.$defs.x.not"),
        ({"dependentRequired": {}}, "s.dependentRequired"),
        ({"propertyNames": {}}, "s.propertyNames"),
        ({"items": [{}]}, "s.items"),
        ({"type": "text"}, "s.type"),
        ({"format": "phone"}, "s.format"),
        ({"$ref": "https://example.org/schema"}, "s.$ref"),
        ({"enum": []}, "s.enum"),
        ({"minLength": -1}, "s.minLength"),
        ({"maxItems": 10**9}, "s.maxItems"),
        ({"multipleOf": 0}, "s.multipleOf"),
        ({"multipleOf": 99991}, "s.multipleOf"),
        ({"minimum": True}, "s.minimum"),
        ({"required": [1]}, "s.required"),
        ({"pattern": 3}, "s.pattern"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": 3}}, "s.properties.a"),
        ("{", "s"),
        (3, "s"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_schema_that_cannot_be_followed_is_refused_by_keyword_and_place(schema: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        json_grammar(schema, "s")
    assert refused.value.field == path and path in refused.value.message


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 1e300], ids=str)
@pytest.mark.parametrize(
    ("keyword", "path"),
    [("const", ""), ("enum", "[0]"), *((name, "") for name in NUMBERS)],
)
def test_a_number_that_would_be_rounded_is_refused_by_its_place(number: float, keyword: str, path: str) -> None:
    value = [number] if keyword == "enum" else number
    with pytest.raises(InvalidRequest, match="not exact") as refused:
        json_grammar({"properties": {"a": {keyword: value}}}, "s")
    assert refused.value.field == f"s.properties.a.{keyword}{path}"


def test_a_rounded_number_is_found_inside_a_value_and_exact_ones_pass() -> None:
    with pytest.raises(InvalidRequest) as refused:
        json_grammar({"const": {"b": [1, -(2**60)]}}, "s")
    assert refused.value.field == "s.const.b[1]"
    assert str(2**53) in json_grammar({"enum": [2**53, -(2**53), "9007199254740993"]}, "s")


def test_a_hostname_has_at_most_253_characters(grammars: Grammars) -> None:
    for schema in ({"type": "string", "format": "hostname"}, {"format": "hostname", "maxLength": 300}):
        grammar = f"start: {json_grammar(schema, 's')}"
        assert follows(grammars, grammar, f'"{"a." * 126}b"')
        assert not follows(grammars, grammar, f'"{"a." * 126}bc"')
    short = "start: " + json_grammar({"type": "string", "format": "hostname", "maxLength": 4}, "s")
    assert follows(grammars, short, '"a.bc"') and not follows(grammars, short, '"a.bcd"')


def test_the_page_lists_every_supported_keyword() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "structured-output.md").read_text()
    assert [name for name in SUPPORTED if f"`{name}`" not in page] == []


def test_names_of_properties_are_no_keywords(grammars: Grammars) -> None:
    form = parse_structured_outputs({"json": {"properties": {"not": {"const": 1}}, "required": ["not"]}}, NONE)
    assert form is not None and follows(grammars, form.whole, '{"not": 1}')


def test_a_schema_that_is_too_deep_or_too_large_is_refused_at_once() -> None:
    deep: Any = {"type": "integer"}
    for _ in range(2000):
        deep = {"items": deep}
    began = time.perf_counter()
    for schema in (deep, {"properties": {f"p{at}": {} for at in range(5000)}}, {"enum": ["x" * 1000] * 4000}):
        with pytest.raises(InvalidRequest, match=r"at most|exceed|deep"):
            json_grammar(schema, "s")
    assert time.perf_counter() - began < 5


HOSTILE = {
    "an ambiguous grammar": {"grammar": 'start: s\ns: s s s | s s | "a" | "b" | "c"'},
    "a grammar without an end": {"grammar": 'start: "a" start'},
    "a repeated repetition": {"regex": "((a{0,100}){0,100}){0,100}"},
    "an exploding expression": {"regex": "(a|b)*a(a|b){40}"},
    "a thousand optional properties": {"json": {"properties": {f"p{at}": {"type": "string"} for at in range(1000)}}},
    "references that double": {
        "json": {
            "$defs": {"d0": {"type": "integer"}}
            | {f"d{at}": {"prefixItems": [{"$ref": f"#/$defs/d{at - 1}"}] * 2} for at in range(1, 40)},
            "$ref": "#/$defs/d39",
        }
    },
    "a reference to itself": {"json": {"$ref": "#"}},
    "long texts": {"json": {"properties": {f"p{at}": {"type": "string", "maxLength": 10000 - at} for at in range(99)}}},
    "a slow multiple": {"json": {"prefixItems": [{"type": "integer", "multipleOf": 1000 - at} for at in range(20)]}},
}


@pytest.mark.parametrize("what", list(HOSTILE))
async def test_no_form_keeps_the_event_loop(what: str) -> None:
    """Compiled or refused, other work goes on: the loop turns while a thread compiles."""
    form = parse_structured_outputs(HOSTILE[what], NONE)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    check = GrammarCheck({"<|end|>": END})
    try:
        await check.compiled(form)
    except InvalidRequest as error:
        assert form is not None and error.field == form.field
    finally:
        task.cancel()
    assert turns > 1


async def test_a_form_that_no_text_has_is_refused() -> None:
    check = GrammarCheck({"<|end|>": END})
    for wrong in (
        {"json": {"type": "string", "minLength": 3, "maxLength": 2}},
        {"json": False},
        {"regex": "[^\\s\\S]"},
        {"json": {"$ref": "#"}},
    ):
        with pytest.raises(InvalidRequest, match=r"cannot be followed: (no text matches it|failed to compile|.*nsat)"):
            await check.compiled(parse_structured_outputs(wrong, NONE))


def test_white_space_is_bounded(grammars: Grammars) -> None:
    form = parse_response_format({"type": "json_object"}, NONE)
    assert form is not None
    for text in ("{}", '{"a":1}', '{ "a" : [1, 2] }', '{\n  "a": 1\n}'):
        assert follows(grammars, form.whole, text), text
    for text in ('{  "a":1}', '{"a":1}\n\n', '{\n\n"a":1}', "[]"):
        assert not follows(grammars, form.whole, text), text


def test_a_named_added_token_is_written_by_its_id() -> None:
    assert pieces('<call>\n{"', {"<call>": 9}) == ["<[9]>", '"\\n{\\""']
    assert pieces("<call>", NONE) == ['"<call>"']


def call_form(tools: Any, choice: Any, *, parallel: bool = True, written: ToolFormat = HERMES) -> Form | None:
    parsed = parse_tool_choice(choice, [each["function"]["name"] for each in tools], "tools")
    allowed = tuple(each for each in tools if parsed.allows(each["function"]["name"]))
    offered = OfferedTools(allowed, parsed.mode, parallel and not parsed.named)
    return call_form_of(tools, offered, NONE, written)


def test_calls_are_written_as_the_template_writes_them(grammars: Grammars) -> None:
    tools = [tool("add", True, type="object", properties={"a": {"type": "integer"}}, required=["a"]), tool("stop")]
    one = call_form(tools, "required", parallel=False)
    many = call_form(tools, "required")
    call, other = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "<tool_call>\n{}\n</tool_call>"
    assert one is not None and many is not None
    assert follows(grammars, one.whole, call) and not follows(grammars, one.whole, f"{call}\n{call}")
    assert follows(grammars, many.whole, f"{call}\n{call}") and not follows(grammars, many.whole, other)
    assert not follows(grammars, many.whole, call.replace("1", '"one"')) and not follows(grammars, many.whole, "Hi")
    named = call_form(tools, {"type": "function", "function": {"name": "stop"}})
    assert named is not None and not follows(grammars, named.whole, call)
    assert follows(grammars, named.whole, '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>')


def test_other_formats_are_tables(grammars: Grammars) -> None:
    tools = [tool("f")]
    first, second = call_form(tools, "required", written=MISTRAL), call_form(tools, "required", written=LLAMA3)
    assert first is not None and second is not None
    call = '{"name": "f", "arguments": {}}'
    assert follows(grammars, first.whole, f"[TOOL_CALLS] [{call}, {call}]")
    assert follows(grammars, second.whole, call.replace("arguments", "parameters"))


def test_a_strict_call_without_a_mark_is_told_from_text_by_its_brace(grammars: Grammars) -> None:
    tools = [tool("f", True, type="object", properties={}, additionalProperties=False)]
    form = call_form(tools, "auto", written=LLAMA3)
    assert form is not None and follows(grammars, form.whole, "Hello {there}.\n")
    assert follows(grammars, form.whole, '{"name": "f", "parameters": {}}')
    assert not follows(grammars, form.whole, '{"name": "f", "parameters": {"x": 1}}')


def test_with_auto_only_strict_or_restricted_tools_bind_the_model(grammars: Grammars) -> None:
    assert call_form([tool("f"), tool("g")], "auto") is None
    form = call_form([tool("f", True, type="object", properties={}, additionalProperties=False), tool("g")], "auto")
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert form is not None and follows(grammars, form.whole, "Hello there.")
    assert follows(grammars, form.whole, f"Let me see: {call} Done.")
    assert not follows(grammars, form.whole, call.replace("{}", '{"x": 1}'))
    only = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
    }
    restricted = call_form([tool("f"), tool("g")], only)
    assert restricted is not None and not follows(grammars, restricted.whole, call)
    assert follows(grammars, restricted.whole, call.replace('"f"', '"g"'))


def test_a_strict_tool_with_an_unsupported_schema_is_refused_and_a_free_one_is_not() -> None:
    schema: Any = {"type": "object", "properties": {"a": {"not": {}}}}
    with pytest.raises(InvalidRequest) as refused:
        call_form([tool("f", True, **schema)], "required")
    assert refused.value.field == "tools[0].function.parameters.properties.a.not"
    assert call_form([tool("f", **schema)], "required") is not None


def test_the_model_file_may_carry_truncation_and_padding(definition: str) -> None:
    spoilt = json.loads(definition) | {
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 16},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": END,
            "pad_type_id": 0,
            "pad_token": "<|end|>",
        },
    }
    grammars = Grammars(lambda: json.dumps(spoilt), VOCAB)
    matcher = grammars.matcher('start: "a long text that is forced"')
    assert matcher.compute_ff_tokens() == list(b"a long text that is forced")


async def test_grammars_may_name_added_tokens_by_text_and_id() -> None:
    check = GrammarCheck({"<call>": 150_000})
    for text in ('start: <call> "a"', 'start: <[150000]> "a"', 'start: "<call>"'):
        assert await check.compiled(parse_structured_outputs({"grammar": text}, {"<call>": 150_000}))
    with pytest.raises(InvalidRequest, match="other"):
        await check.compiled(parse_structured_outputs({"grammar": 'start: <other> "a"'}, NONE))


def test_a_worker_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    grammars = Grammars(lambda: (tmp_path / "tokenizer.json").read_text())
    with pytest.raises(GrammarFault, match=r"tokenizer\.json"):
        grammars.matcher('start: "a"')


def test_text_that_cannot_be_encoded_is_refused_and_its_field_named() -> None:
    def tag(begin: str) -> str:
        return f'{{"structures": [{{"begin": "<{begin}", "schema": {{}}, "end": ">"}}], "triggers": ["<"]}}'

    with pytest.raises(InvalidRequest, match="has half of a character") as refused:
        parse_structured_outputs({"structural_tag": tag("\\ud800")}, {})
    assert refused.value.field == "structured_outputs.structural_tag"
    assert parse_structured_outputs({"structural_tag": tag("\\ud83d\\ude00")}, {}) is not None, "negative control"
