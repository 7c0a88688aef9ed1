"""Recorded texts: calls, values and their types, closers that are missing."""

from __future__ import annotations

from tests.serve.parsers.cases import IN_PARIS, PARIS, Call, Case, call

CODE = 'def f(a):\n    if a < 3 and a > 1:\n        return {"k": [1, "\\n"]}\n\n\n    # <b>\t"é"'
POM = "<parameters>\n  <parameter>1</parameter>\n  <parameter>2</parameter>\n</parameters>"
TAGGED = "<think>x</think> <tool_call> </tool_call> <function=a> </function> b"
TORN = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis"
CUT = Call("get_weather", {"city": "Paris"}, complete=False)


def value(key: str, text: str, expected: object) -> Case:
    """One parameter of `set`."""
    return Case(f"{key}:{text!r}", [call("set", **{key: text})], "", (Call("set", {key: expected}),))


CALL_CASES = [
    Case("one-call", [PARIS + "<|im_end|>"], "", (IN_PARIS,)),
    Case("no-parameters", [call("ping")], "", (Call("ping", "{}"),)),
    Case(
        "two-parameters",
        [call("get_weather", city="Rome", days="3")],
        "",
        (Call("get_weather", '{"city": "Rome", "days": 3}'),),
    ),
    Case("two-calls", [f"{PARIS}\n{call('ping')}"], "", (IN_PARIS, Call("ping", {}))),
    Case(
        "two-functions-in-a-block",
        ["<tool_call><function=ping></function>\n<function=pong></function></tool_call>x"],
        "x",
        (Call("ping", {}), Call("pong", {})),
    ),
    Case("no-newlines", [PARIS.replace("\n", "")], "", (IN_PARIS,)),
    Case("code-as-a-value", [call("write_file", content=CODE)], "", (Call("write_file", {"content": CODE}),)),
    Case("xml-as-a-value", [call("write_file", content=POM)], "", (Call("write_file", {"content": POM}),)),
    Case(
        "tags-in-a-value",
        [call("write_file", content=TAGGED)],
        "",
        (Call("write_file", {"content": TAGGED}),),
    ),
    Case(
        "parameter-in-a-value-inside-a-line",
        [call("write_file", content="see <parameter=path> there")],
        "",
        (Call("write_file", {"content": "see <parameter=path> there"}),),
    ),
    Case(
        "parameter-in-a-value-that-no-schema-names",
        [call("write_file", content="a\n<parameter=size>\nb")],
        "",
        (Call("write_file", {"content": "a\n<parameter=size>\nb"}),),
    ),
    Case(
        "newlines-around-a-value",
        [call("write_file", content="\n\na\n\n")],
        "",
        (Call("write_file", {"content": "\n\na\n\n"}),),
    ),
    Case(
        "blanks-around-a-value",
        [call("write_file", content="  a \t")],
        "",
        (Call("write_file", {"content": "  a \t"}),),
    ),
    Case(
        "empty-values",
        [call("get_weather", city="", days="")],
        "",
        (Call("get_weather", {"city": "", "days": ""}),),
    ),
    Case(
        "empty-value-on-one-line",
        [
            "<tool_call><function=write_file><parameter=path></parameter><parameter=content>\n</parameter></function>"
        ],
        "",
        (Call("write_file", {"path": "", "content": ""}),),
    ),
    Case("unknown-parameter", [call("get_weather", unit="5")], "", (Call("get_weather", {"unit": "5"}),)),
    Case("parameter-of-an-unknown-tool", [call("pong", n="5")], "", (Call("pong", {"n": "5"}),)),
    Case(
        "duplicate-key",
        [
            "<tool_call><function=ping><parameter=a>1</parameter><parameter=a>2</parameter>"
            "<parameter=b>3</parameter></function></tool_call>"
        ],
        "",
        (Call("ping", '{"a": "1", "b": "3"}'),),
    ),
    Case("key-with-quotes", [call("ping", **{'a"b\\': "1"})], "", (Call("ping", {'a"b\\': "1"}),)),
    Case(
        "text-between-parameters",
        ["<tool_call><function=get_weather>\nNow\n<parameter=city>Paris</parameter></function></tool_call>"],
        "Now",
        (IN_PARIS,),
    ),
    Case(
        "text-behind-a-parameter-belongs-to-it",
        ["<tool_call><function=get_weather><parameter=city>Paris</parameter> so</function></tool_call>"],
        "",
        (Call("get_weather", {"city": "Paris</parameter> so"}),),
    ),
    Case(
        "no-call-opening",
        ["Well.\n<function=get_weather><parameter=city>\nParis\n</parameter></function>\n</tool_call>\nx"],
        "Well.\nx",
        (IN_PARIS,),
    ),
    Case("no-call-end", [TORN + "\n</parameter>\n</function>\n"], "", (IN_PARIS,)),
    Case("no-call-end-but-text", [TORN + "\n</parameter>\n</function>\nBye."], "Bye.", (IN_PARIS,)),
    Case("late-call-end", [TORN + "\n</parameter>\n</function>\nBye.\n</tool_call>"], "Bye.", (IN_PARIS,)),
    Case("no-function-end", [TORN + "\n</parameter>\n</tool_call>\nBye."], "Bye.", (IN_PARIS,)),
    Case("no-parameter-end", [TORN + "\n</function>\n</tool_call>\nBye."], "Bye.", (IN_PARIS,)),
    Case("no-parameter-and-function-end", [TORN + "\n</tool_call>\nBye."], "Bye.", (IN_PARIS,)),
    Case("no-parameter-end-on-one-line", [TORN + "</tool_call>"], "", (IN_PARIS,)),
    Case(
        "no-parameter-end-next-parameter",
        [TORN + "\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"],
        "",
        (Call("get_weather", {"city": "Paris", "days": 3}),),
    ),
    Case(
        "no-end-but-the-next-call",
        [TORN + "\n</parameter>\n" + call("ping")],
        "",
        (IN_PARIS, Call("ping", {})),
    ),
    Case(
        "empty-value-without-end-before-a-parameter",
        [
            "<tool_call><function=get_weather>\n<parameter=city>\n<parameter=days>\n3\n</parameter>\n</function>"
        ],
        "",
        (Call("get_weather", {"city": "", "days": 3}),),
    ),
    Case(
        "empty-value-without-end-before-the-call-end",
        ["<tool_call><function=get_weather>\n<parameter=city>\n</tool_call>\nBye."],
        "Bye.",
        (Call("get_weather", {"city": ""}),),
    ),
    Case("cut-in-a-value", [TORN + "\n"], "", (CUT,)),
    Case("cut-after-a-value", [TORN + "\n</parameter>"], "", (CUT,)),
    Case("cut-in-a-value-end", [TORN + "\n</param"], "", (CUT,)),
    Case("cut-in-a-function-end", [TORN + "\n</parameter>\n</func"], "", (CUT,)),
    Case("cut-in-a-key", [TORN + "\n</parameter>\n<parameter=da"], "", (CUT,)),
    Case(
        "cut-before-a-value",
        ["<tool_call>\n<function=get_weather>\n<parameter=days>"],
        "",
        (Call("get_weather", {"days": ""}, complete=False),),
    ),
    Case("cut-after-the-name", ["<tool_call>\n<function=ping>"], "", (Call("ping", {}, complete=False),)),
    Case(
        "cut-in-a-number",
        ["<tool_call>\n<function=get_weather>\n<parameter=days>\n1"],
        "",
        (Call("get_weather", {"days": 1}, complete=False),),
    ),
    value("n", "5", 5),
    value("n", "-12", -12),
    value("n", "5.0", 5),
    value("n", "5.5", 5.5),
    value("n", "five", "five"),
    value("n", "9" * 60, int("9" * 60)),
    value("n", "9" * 5000, "9" * 5000),
    value("x", "5", 5),
    value("x", "1e-3", 0.001),
    value("x", ".5", 0.5),
    value("x", "NaN", "NaN"),
    value("x", "-Infinity", "-Infinity"),
    value("x", "1e999", "1e999"),
    value("on", "True", True),
    value("on", "0", False),
    value("on", "yes", "yes"),
    value("o", '{"k": [1, null, "<"]}', {"k": [1, None, "<"]}),
    value("o", "{'k': True}", {"k": True}),
    value("o", '{"k": NaN}', '{"k": NaN}'),
    value("o", "{broken", "{broken"),
    value("a", '[1,\n "a\nb"]', [1, "a\nb"]),
    value("a", "[1, [2, {}]]", [1, [2, {}]]),
    value("a", "a, b", "a, b"),
    value("z", "null", None),
    value("s", "null", "null"),
    value("s", "5", "5"),
    value("any", "5", 5),
    value("any", "Paris", "Paris"),
    value("ns", "null", None),
    value("ns", "", None),
    value("sn", "null", None),
    value("sn", "nil", "nil"),
    value("e", "1", "1"),
    value("num_e", "2", 2),
    value("r", "4", 4),
    value("one", "4", 4),
    value("one", "four", "four"),
    value("all", "4", 4),
]
