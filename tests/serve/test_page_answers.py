"""The page in a real browser, before a scripted model: markup, reasoning, tools, answers that fail."""

from __future__ import annotations

import json
import random

import pytest

from paceline.serve.errors import ApiError, too_busy
from tests.serve.page_tools import IDLE, READY, a_browser, ask, count, over_http, send, shown, text, visit
from tests.serve.scripted import Scripted

pytestmark = pytest.mark.browser

CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\n{}\n</parameter>\n</function>\n</tool_call>"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
MARKDOWN = """\
## A heading
Some **strong** and `code` words,
and <img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>.

- one
- two
  - below two

3. three
4. four

| a | b |
|---|---|
| 1 | *2* |

> quoted

```python
def f(x):
    return x  # "<b>"
```
"""


@pytest.fixture(scope="module")
def scripted(folder, tmp_path_factory):
    return Scripted(
        folder, tmp_path_factory.mktemp("template") / "t.jinja", reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder", enable_auto_tool_choice=True, api_key="secret",
        served_model_name=["scripted"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory, scripted):
    with over_http(scripted.app) as url, a_browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.url = url
        yield browser


@pytest.fixture
def page(browser):
    """The page, let in with its key."""
    # Before the page's own scripts: it would ask without a key first, and complain of the 401 at any time.
    source = "sessionStorage.setItem('paceline-key', 'secret')"
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=source)
    visit(browser, browser.url)
    browser.call("Page.removeScriptToEvaluateOnNewDocument", **script)
    return browser


def test_markup_is_shown_and_nothing_of_it_runs(page, scripted):
    scripted.says(f"</think>{MARKDOWN}", seed=3)
    ask(page, "write")
    body = "article.assistant .text"
    assert count(page, f"{body} img") == count(page, f"{body} script") == 0
    assert '<img src=x onerror="document.title=' in text(page, f"{body} p")
    assert page.run("document.title") == "scripted · paceline"
    assert text(page, f"{body} pre code") == 'def f(x):\n    return x  # "<b>"'
    assert text(page, f"{body} .code-head span") == "python"
    assert text(page, f"{body} strong") == "strong" and text(page, f"{body} p code") == "code"
    assert (
        text(page, f"{body} li.depth-1") == "below two"
        and page.run("document.querySelector('ol li').value") == 3
    )
    assert count(page, f"{body} td") == 2 and text(page, f"{body} td em") == "2"
    assert text(page, f"{body} blockquote").strip() == "quoted" and text(page, f"{body} h4") == "A heading"
    assert count(page, f"{body} pre .t.draft") > 0
    assert page.complaints == []


@pytest.mark.parametrize("seed", range(4))
def test_reasoning_is_folded(page, scripted, seed):
    scripted.says("Let me think.\nTwice.</think>\n\nFour.", seed=seed)
    ask(page, "2 + 2")
    assert not page.run("document.querySelector('.thinking').open")
    assert text(page, ".thinking summary").startswith("Thought for")
    assert text(page, "article.assistant .text") == "Four."
    page.click(".thinking summary")
    page.until("document.querySelector('.thought').textContent !== ''")
    assert text(page, ".thought").strip() == "Let me think.\nTwice."
    assert count(page, ".thought .t") > 3
    scripted.says("</think>Again.")
    ask(page, "go on")
    assert "<think>Let me think.\nTwice.</think>" in scripted.prompt.replace("\n</think>", "</think>")


def test_tool_calls_are_shown_and_answered(page, scripted):
    page.run(f"document.querySelector('#tools').value = {json.dumps(json.dumps(TOOLS))}")
    scripted.says(f"</think>I look.\n{CALL.format('Kiel <b>')}\n{CALL.format('Ulm')}", seed=5)
    ask(page, "weather?")
    assert "[tools get_weather]" in scripted.prompt and count(page, ".call") == 2
    assert text(page, ".call strong") == "get_weather"
    arguments = page.run("[...document.querySelectorAll('.call code')].map(e => e.textContent)")
    assert [json.loads(one) for one in arguments] == [{"city": "Kiel <b>"}, {"city": "Ulm"}]
    scripted.says("</think>Rain in both.")
    for result in ("rain", "more rain"):
        page.click(".call .result textarea")
        page.type(result)
        page.press("Enter")
    page.until(f"document.querySelectorAll('article.assistant').length === 2 && {IDLE}")
    assert text(page, "article.assistant .text") == "Rain in both."
    assert scripted.prompt.count("<|im_start|>tool") == 2 and "more rain" in scripted.prompt
    assert '[get_weather {"city": "Kiel <b>"}]' in scripted.prompt
    assert page.complaints == []


def test_who_writes_on_leaves_no_call_without_its_result(page, scripted):
    page.run(f"document.querySelector('#tools').value = {json.dumps(json.dumps(TOOLS))}")
    scripted.says(f"</think>{CALL.format('Ulm')}")
    ask(page, "weather?")
    scripted.says("</think>As you wish.")
    ask(page, "never mind")
    assert scripted.prompt.index("<|im_start|>tool") < scripted.prompt.index("never mind")


def test_tools_that_are_no_json_are_named_and_left_out(page, scripted):
    page.click(".more summary")
    page.click("#tools")
    page.type("[{")
    assert shown(page, "#tools-wrong") and "JSON" in text(page, "#tools-wrong")
    scripted.says("</think>Yes.")
    ask(page, "hello")
    assert "[tools" not in scripted.prompt and text(page, "article.assistant .text") == "Yes."
    page.click("#tools-example")
    assert not shown(page, "#tools-wrong")


def test_settings_reach_the_model(page, scripted):
    for name, value in (("system", "Be brief."), ("most", "77")):
        page.run(f"document.querySelector('#{name}').value = '{value}'")
    page.click("#thinking")
    scripted.says("Brief.")
    ask(page, "hello")
    request = scripted.client.opened[-1].request
    assert "<|im_start|>system\nBe brief.<|im_end|>" in scripted.prompt and "<think>" not in scripted.prompt
    assert request.params.max_tokens == 77 and request.max_drafts == 3


def test_a_key_is_asked_for_and_kept_for_the_tab_only(browser, scripted):
    browser.open(browser.url)
    browser.run("sessionStorage.clear()")
    browser.open(browser.url)
    browser.until("!document.querySelector('#key-form').hidden")
    assert browser.run("document.activeElement.id") == "key" and not shown(browser, "#key-wrong")
    browser.type("wrong")
    browser.press("Enter")
    browser.until("!document.querySelector('#key-wrong').hidden")
    browser.run("document.querySelector('#key').value = ''")
    browser.click("#key")
    browser.type("secret")
    browser.press("Enter")
    browser.until(READY)
    assert not shown(browser, "#key-form") and text(browser, "#model") == "scripted"
    assert browser.run("sessionStorage.getItem('paceline-key')") == "secret"
    assert "secret" not in browser.run(
        "JSON.stringify(localStorage) + document.cookie + document.body.innerHTML"
    )
    scripted.says("</think>Come in.")
    ask(browser, "hello")
    assert text(browser, "article.assistant .text") == "Come in."


@pytest.fixture
def failing(scripted, monkeypatch):
    """Lets the scripted engine refuse its next requests."""

    def fail(error):
        async def refuse(request):
            raise error

        monkeypatch.setattr(scripted.client, "open", refuse)
        return monkeypatch.undo

    return fail


def test_a_full_queue_counts_down_and_is_tried_again(page, scripted, failing):
    well_again = failing(too_busy(9, 8))
    send(page, "hello")
    page.until("document.querySelectorAll('.failure').length")
    assert page.run("document.querySelector('.failure button').disabled")
    assert "Try again in" in text(page, ".failure button") and count(page, "article.assistant") == 0
    well_again()
    scripted.says("</think>Now.")
    page.until("!document.querySelector('.failure button').disabled")
    page.click(".failure button")
    page.until(IDLE)
    assert text(page, "article.assistant .text") == "Now." and count(page, ".failure") == 0
    assert scripted.prompt.count("hello") == 1


def test_an_error_says_what_the_server_says(page, failing):
    failing(ApiError("the prompt <b>is</b> too long", param="messages"))
    send(page, "hello")
    page.until("document.querySelectorAll('.failure').length")
    assert text(page, ".failure p") == "the prompt <b>is</b> too long" and count(page, ".failure b") == 0


def test_an_answer_that_breaks_off_keeps_what_has_come(page, scripted, monkeypatch):
    events = scripted.client._events

    def half(request):
        yield from list(events(request))[:2]
        raise ApiError("the engine has died", 500, code="engine_failed")

    async def open_(request):
        class Breaking:
            def close(self):
                pass

            async def __aiter__(self):
                for event in half(request):
                    yield event

        return Breaking()

    scripted.says("</think>A long answer that will never be whole, for its engine dies.")
    monkeypatch.setattr(scripted.client, "open", open_)
    send(page, "hello")
    page.until("document.querySelectorAll('.failure').length")
    assert text(page, ".failure p") == "the engine has died"
    assert count(page, "article.assistant .t") > 0 and count(page, ".busy") == 0


def test_a_new_chat_forgets_the_old_one(page, scripted):
    scripted.says("</think>One.")
    ask(page, "first words")
    page.click("#new")
    assert count(page, "article") == 0 and shown(page, "#empty")
    ask(page, "second words")
    assert "first words" not in scripted.prompt


def test_every_character_keeps_the_source_of_its_token(page):
    """Texts are cut into tokens and, elsewhere, into deltas; tags and spaces get lost between the two."""
    chooser, cases = random.Random(7), []
    for _ in range(60):
        words = [chooser.choice(["ab ", "xyz", "\n\n", "ü🙂", "q"]) for _ in range(30)]
        for tag in ("<think>", "</think>", "<tool_call>"):
            words.insert(chooser.randint(0, len(words)), tag)
        kept = [word for word in words if word[0] != "<"]
        cases.append([cut(chooser, "".join(words)), cut(chooser, "".join(kept))])
    wrong = page.run(
        "import('/page/trace.js').then(({TokenQueue, Traced}) => "
        + json.dumps(cases)
        + ".filter(([tokens, deltas]) => { const queue = new TokenQueue(), traced = new Traced();"
        " queue.push(tokens.map((text, i) => ({text, source: 'draft'})));"
        " for (const delta of deltas) traced.append(queue.take(delta));"
        " const whole = traced.slice(0, traced.text.length).map(p => p.text).join('');"
        " return traced.text !== deltas.join('') || whole !== traced.text"
        " || traced.pieces.some(p => p.source !== 'draft'); }).length)"
    )
    assert wrong == 0
    pieces = page.run(
        "import('/page/trace.js').then(({TokenQueue}) => { const queue = new TokenQueue();"
        " queue.push([{text: '<think>', source: 'bonus'}, {text: 'Hi', source: 'draft'},"
        " {text: ' you', source: 'bonus'}]); return queue.take('Hi y').concat(queue.take('ou')); })"
    )
    assert [(p["text"], p["source"]) for p in pieces] == [("Hi", "draft"), (" y", "bonus"), ("ou", "bonus")]


def cut(chooser, text):
    """A text in random pieces."""
    pieces = []
    while text:
        size = chooser.randint(1, 6)
        pieces.append(text[:size])
        text = text[size:]
    return pieces
