"""Recorded texts: what other servers' parsers of this format got wrong, by the number of the report.

Numbers are of vllm-project/vllm unless the id names another repository.
"""

from __future__ import annotations

from tests.serve.parsers.cases import (
    IN_PARIS,
    NO_TOOLS,
    NO_TOOLS_ON,
    OFF,
    ON,
    PARIS,
    Call,
    Case,
    call,
)
from tests.serve.parsers.machinery import Plain

PROSE = "To call a tool, write `<tool_call>` and then the function.\nThat is all there is to it."
FULL = call("set", s="a\nb", n="7", o='{"k": 1}')
FULL_CALL = Call("set", {"s": "a\nb", "n": 7, "o": {"k": 1}})
BIG = "line\n" * 40

DEFECT_CASES = [
    # Several parameters and closers in one increment: the last ones were lost.
    Case("39598-several-parameters-and-closers-at-once", [FULL], "", (FULL_CALL,)),
    Case("35421-parameters-lost-before-the-function-end", [FULL + "\n" + PARIS], "", (FULL_CALL, IN_PARIS)),
    Case(
        "35800-calls-damaged-under-speculation",
        [f"hm\n</think>\n\n{FULL}\n{FULL}"],
        "",
        (FULL_CALL, FULL_CALL),
        "hm",
        ON,
    ),
    Case(
        "38973-union-types",
        [call("set", sn="x", one="3", r="4", all="5", ns="null")],
        "",
        (Call("set", {"sn": "x", "one": 3, "r": 4, "all": 5, "ns": None}),),
    ),
    # A tag in prose swallowed all that followed.
    Case("22975-literal-tool-call-in-prose", [PROSE], PROSE),
    Case("22975-literal-tool-call-without-tools", [PROSE], PROSE, options=NO_TOOLS),
    Case("22975-literal-tool-call-then-a-real-one", [f"{PROSE}\n{PARIS}"], PROSE, (IN_PARIS,)),
    Case(
        "club-3090-1191-whole-call-quoted-without-tools",
        [f"Like so:\n{PARIS}\nSee?"],
        f"Like so:\n{PARIS}\nSee?",
        options=NO_TOOLS,
    ),
    # A call inside the think block was lost.
    Case(
        "39056-call-in-an-open-think-block",
        [f"I need the weather.\n{PARIS}"],
        "",
        (IN_PARIS,),
        "I need the weather.",
        ON,
    ),
    Case("39055-call-right-after-the-think-tag", [PARIS], "", (IN_PARIS,), options=ON),
    Case("35687-call-ends-reasoning-before-text", [f"hm {PARIS}\nSo."], "So.", (IN_PARIS,), "hm ", ON),
    # Example calls in the prompt were taken for the end of reasoning: see also test_tags.
    Case(
        "45763-reasoning-goes-on-after-an-example-call",
        ["As the example\nshows.\n</think>ok"],
        "ok",
        (),
        "As the example\nshows.",
        ON,
    ),
    # A required call was read as JSON.
    Case("35936-required-call-is-xml", [f"\n</think>\n\n{PARIS}"], "", (IN_PARIS,), options=ON),
    Case(
        "42292-json-content-is-no-call",
        ['[{"name": "ping", "parameters": {}}]'],
        '[{"name": "ping", "parameters": {}}]',
    ),
    Case(
        "52469-text-around-tools",
        [f'She said "no".\n{PARIS}\n"Yes," said I.\n{PARIS}\nEnd.'],
        'She said "no".\n"Yes," said I.\nEnd.',
        (IN_PARIS, IN_PARIS),
    ),
    Case(
        "46047-values-with-a-bracket",
        [call("write_file", content="a < b <p <parameter </ <<")],
        "",
        (Call("write_file", {"content": "a < b <p <parameter </ <<"}),),
    ),
    Case(
        "46091-empty-block-then-content",
        ["<tool_call>\n</tool_call>\nStill here."],
        "<tool_call>\n</tool_call>\nStill here.",
    ),
    Case("46159-characters-at-the-end-of-reasoning", ["naïve 🙂</think>Grüße"], "Grüße", (), "naïve 🙂", ON),
    Case(
        "46351-long-string",
        [call("write_file", path="a", content=BIG)],
        "",
        (Call("write_file", {"path": "a", "content": BIG}),),
    ),
    Case("46875-special-tokens", [f"a<|im_start|>b{PARIS}<|im_start|><|im_end|>"], "ab", (IN_PARIS,)),
    Case("47606-reasoning-before-a-call", [f"last words{PARIS}"], "", (IN_PARIS,), "last words", ON),
    Case(
        "48846-inner-whitespace",
        [call("write_file", content="\n  a\n\n  b  \n")],
        "",
        (Call("write_file", {"content": "\n  a\n\n  b  \n"}),),
    ),
    Case("48748-end-token-in-reasoning", ["so be it<|im_end|>"], "", (), "so be it", ON),
    Case("40820-content-after-reasoning", ["a</think>b < c\nd"], "b < c\nd", (), "a", NO_TOOLS_ON),
    Case(
        "43243-json-values",
        [call("set", o='{"true": null}', a='["True"]', any='{"a": [true]}')],
        "",
        (Call("set", {"o": {"true": None}, "a": ["True"], "any": {"a": [True]}}),),
    ),
    # tool_choice "none": the server gives the parser no tools.
    Case("42752-tool-choice-none", [f"a\n{PARIS}\nb"], f"a\n{PARIS}\nb", options=NO_TOOLS),
    Case(
        "42752-tool-choice-none-while-thinking",
        [f"a\n{PARIS}\n</think>b"],
        "b",
        (),
        f"a\n{PARIS}",
        NO_TOOLS_ON,
    ),
    Case(
        "44348-trailing-arguments",
        [call("get_weather", city="Rome", days="12") + "<|im_end|>"],
        "",
        (Call("get_weather", '{"city": "Rome", "days": 12}'),),
    ),
    Case("55633-whitespace-before-the-first-call", [f" \n\t\n{PARIS}"], "", (IN_PARIS,)),
    Case(
        "club-3090-145-reasoning-and-tools",
        [f"hm\n</think>\n\nLet me look.\n\n{PARIS}"],
        "Let me look.",
        (IN_PARIS,),
        "hm",
        ON,
    ),
    # Truncated arguments that are no JSON made the next turn fail.
    Case(
        "47761-truncated-arguments",
        ['<tool_call>\n<function=write_file>\n<parameter=content>\nsay "hi\\'],
        "",
        (Call("write_file", {"content": 'say "hi\\'}, complete=False),),
    ),
    Case(
        "56077-empty-arguments",
        [call("write_file", path="git status")],
        "",
        (Call("write_file", {"path": "git status"}),),
    ),
    Case(
        "41967-first-of-several-calls",
        [f"{call('get_weather', city='A')}\n{call('get_weather', city='B')}"],
        "",
        (Call("get_weather", {"city": "A"}), Call("get_weather", {"city": "B"})),
        options=OFF,
    ),
    Case(
        "spelled-tags-next-to-real-ones",
        [Plain("<tool_call>"), PARIS, Plain("</tool_call>")],
        "<tool_call></tool_call>",
        (IN_PARIS,),
    ),
]
