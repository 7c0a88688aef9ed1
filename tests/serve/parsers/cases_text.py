"""Recorded texts: reasoning, content, and tags that are only talked about."""

from __future__ import annotations

from tests.serve.parsers.cases import (
    IN_PARIS,
    NO_TOOLS,
    NO_TOOLS_ON,
    OFF,
    ON,
    ONE_CALL,
    PARIS,
    UNPARSED,
    Call,
    Case,
)
from tests.serve.parsers.machinery import Plain

TEXT_CASES = [
    Case("plain", ["Hello, world."], "Hello, world.", options=NO_TOOLS),
    Case("plain-with-tools", ["Hello, world.\n"], "Hello, world.\n"),
    Case("nothing", [""]),
    Case("whitespace-alone-is-kept", [" \n\n "], " \n\n "),
    Case("surrounding-whitespace-is-kept", ["\n  a\n\n b \n"], "\n  a\n\n b \n"),
    Case("end-token-shows-nowhere", ["Bye.<|im_end|>"], "Bye."),
    Case(
        "html-is-text", ["<p>a < b</p> <functional> </parameter>"], "<p>a < b</p> <functional> </parameter>"
    ),
    Case("ends-in-a-bracket", ["a <"], "a <"),
    Case("ends-in-half-an-opening", ["so\n<functio"], "so\n<functio"),
    Case("umlauts-and-emoji", ["Grüße 🙂 aus Zürich"], "Grüße 🙂 aus Zürich"),
    Case("think-then-answer", ["hm\n</think>\n\nYes."], "Yes.", reasoning="hm", options=ON),
    Case("think-without-tools", ["hm\n</think>\n\nYes."], "Yes.", reasoning="hm", options=NO_TOOLS_ON),
    Case("thinking-is-cut-off", ["I wonder\n"], reasoning="I wonder\n", options=ON),
    Case("thinks-nothing", ["\n</think>\n\nYes."], "Yes.", options=ON),
    Case("thinks-and-says-nothing", ["hm</think>\n\n"], reasoning="hm", options=ON),
    Case("inner-newlines-of-thoughts", ["\na\n\n b \n\n</think>c"], "c", reasoning="a\n\n b ", options=ON),
    Case("indented-answer", ["x</think>\n\n    code()\n"], "    code()\n", reasoning="x", options=ON),
    Case("think-tag-is-generated", ["<think>\nhm\n</think>\n\nYes."], "Yes.", reasoning="hm"),
    Case("think-tag-after-newline", ["\n<think>hm</think>Yes."], "Yes.", reasoning="hm"),
    Case("think-tag-twice", ["<think>\nhm\n</think>\n\nYes."], "Yes.", reasoning="hm", options=ON),
    Case("thinks-in-two-blocks", ["<think>a</think>\n<think>b</think>c"], "c", reasoning="ab"),
    Case(
        "think-tag-in-thoughts-is-text",
        ["a <think> tag\n</think>b"],
        "b",
        reasoning="a <think> tag",
        options=ON,
    ),
    Case("think-tag-in-prose-is-text", ["Write <think> first."], "Write <think> first."),
    Case(
        "closing-think-in-prose-is-text",
        ["a</think>Close it with </think>."],
        "Close it with </think>.",
        reasoning="a",
        options=ON,
    ),
    Case(
        "spelled-closing-think-is-text", ["a ", Plain("</think>"), " b"], reasoning="a </think> b", options=ON
    ),
    Case("no-reasoning-parser", ["a\n</think>\n\nb"], "a\n</think>\n\nb", options=UNPARSED),
    Case("half-a-character-before-a-tag", ["caf", "é</think>ok"], "ok", reasoning="café", options=ON),
    Case("call-tag-in-prose", ["Put it in <tool_call> tags."], "Put it in <tool_call> tags."),
    Case("call-tag-ends-the-text", ["It begins with <tool_call>"], "It begins with <tool_call>"),
    Case("empty-call-in-prose", ["a <tool_call></tool_call> b"], "a <tool_call></tool_call> b"),
    Case(
        "json-call-is-prose",
        ['<tool_call>\n{"name": 1}\n</tool_call>'],
        '<tool_call>\n{"name": 1}\n</tool_call>',
    ),
    Case("spelled-call-is-prose", [Plain(PARIS)], PARIS),
    Case("half-an-opening-is-prose", ["<tool_call>\n<function=get_we"], "<tool_call>\n<function=get_we"),
    Case("no-name-is-prose", ["<tool_call>\n<function=>x"], "<tool_call>\n<function=>x"),
    Case("name-with-a-blank-is-prose", ["<tool_call><function=a b>"], "<tool_call><function=a b>"),
    Case("call-tag-thrice", ["<tool_call><tool_call>" + PARIS], "<tool_call><tool_call>", (IN_PARIS,)),
    Case("bare-function-inside-a-line", ["Use <function=ping> here."], "Use <function=ping> here."),
    Case("bare-function-not-on-offer", ["<function=pong></function>"], "<function=pong></function>"),
    Case(
        "bare-function-quoted",
        ["Like\n```xml\n<function=ping>\n</function>\n```"],
        "Like\n```xml\n<function=ping>\n</function>\n```",
    ),
    Case("closing-call-alone", ["a </tool_call> b"], "a </tool_call> b"),
    Case("before-and-after", [f"Look.\n\n{PARIS}\n\nDone.\n"], "Look.\n\nDone.\n", (IN_PARIS,)),
    Case("before", [f"Look. \n\n{PARIS}"], "Look.", (IN_PARIS,)),
    Case("after", [f"\n{PARIS}\n\n  - one\n"], "  - one\n", (IN_PARIS,)),
    Case("between", [f"{PARIS}\nand\n{PARIS}\n"], "and", (IN_PARIS, IN_PARIS)),
    Case("whitespace-around-calls", [f"\n\n{PARIS} \n {PARIS}\n\n"], "", (IN_PARIS, IN_PARIS)),
    Case("one-call-wanted", [f"a{PARIS}b{PARIS}c"], "a", (IN_PARIS,), options=ONE_CALL),
    Case(
        "call-mentioned-in-thoughts",
        ["I could use <tool_call> here.\n</think>\n\nNo."],
        "No.",
        reasoning="I could use <tool_call> here.",
        options=ON,
    ),
    Case(
        "call-of-no-tool-in-thoughts",
        ["Say <tool_call>\n<function=name>\n</tool_call>.\n</think>No."],
        "No.",
        reasoning="Say <tool_call>\n<function=name>\n</tool_call>.",
        options=ON,
    ),
    Case("late-closing-think", [f"hm\n{PARIS}\n</think>\n\nok"], "ok", (IN_PARIS,), "hm", ON),
    Case(
        "think-tag-after-a-call-is-text",
        [f"{PARIS}\n<think>x</think>"],
        "<think>x</think>",
        (IN_PARIS,),
        options=OFF,
    ),
    Case(
        "unknown-tool", ["<tool_call>\n<function=pong>\n</function>\n</tool_call>"], "", (Call("pong", "{}"),)
    ),
]
