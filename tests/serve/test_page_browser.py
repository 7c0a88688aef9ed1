"""The page in a real browser, before a real server with a tiny model."""

from __future__ import annotations

import pytest

from tests.serve.harness import Running, running
from tests.serve.page_tools import IDLE, READY, a_browser, ask, count, send, shown, text, visit

pytestmark = pytest.mark.browser

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
LAST = "article.assistant:last-of-type"


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "t.jinja"
    template.write_text(TEMPLATE)
    with running(
        folder, served_model_name=["tiny"], max_num_seqs=4, max_model_len=1000, chat_template=str(template),
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    ) as server:  # fmt: skip
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with a_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(server, browser):
    """The page, fresh; at the end nobody may have complained in its console."""
    browser.screen(1280, 800)
    visit(browser, server.url)
    yield browser
    assert browser.complaints == []


def test_a_message_is_answered_token_by_token(page):
    assert text(page, "#model") == "tiny" and page.run("document.activeElement.id") == "input"
    send(page, "the cat")
    few = page.until(f"document.querySelectorAll('{LAST} .t').length")
    assert count(page, ".busy") == 1 and shown(page, "#stop") and not shown(page, "#send")
    page.until(f"document.querySelectorAll('{LAST} .t').length > {few} + 20")
    page.until(IDLE)
    assert text(page, "article.user .text") == "the cat"
    assert count(page, f"{LAST} .t.draft") > 0 and count(page, f"{LAST} .t.bonus") > 0
    assert "tokens/s" in text(page, ".foot") and "acceptance length" in text(page, ".foot")
    assert float(text(page, "#f-speed")) > 0 and 1 <= float(text(page, "#f-acceptance")) <= 4
    assert count(page, ".bar-column") == 3
    assert text(page, "#status").startswith("The answer is there")
    assert shown(page, "#send") and not shown(page, "#stop")


def test_what_is_shown_is_what_the_server_counts(page, server):
    drafts, accepted = (
        server.metric(f"vllm:spec_decode_num_{name}_total") for name in ("drafts", "accepted_tokens")
    )
    ask(page, "in the man")
    drafts = server.metric("vllm:spec_decode_num_drafts_total") - drafts
    accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total") - accepted
    assert text(page, "#f-acceptance") == f"{1 + accepted / drafts:.2f}"
    page.until("document.querySelector('#s-running').textContent === '0'")
    total = int(server.metric("paceline:kv_blocks_total"))
    assert text(page, "#s-kv").endswith(f"of {total}")


@pytest.mark.parametrize("way", ["Escape", "button"])
def test_an_answer_is_stopped(page, server, way):
    server.at_rest()
    before = server.metric("vllm:generation_tokens_total")
    send(page, "the cat")
    page.until(f"document.querySelectorAll('{LAST} .t').length > 5")
    if way == "Escape":
        page.press("Escape")
    else:
        page.click("#stop")
    page.until(IDLE)
    assert "stopped" in text(page, ".foot") and text(page, "#status") == "Stopped."
    server.at_rest()
    assert server.metric("vllm:generation_tokens_total") - before < 900
    ask(page, "and on")  # the conversation goes on
    assert count(page, "article.user") == 2 and "stopped" not in text(page, ".foot")


def test_speculation_is_switched_off_and_on(page, server):
    page.run("document.querySelector('#most').value = '60'")
    page.click("#speculation")
    drafts = server.metric("vllm:spec_decode_num_drafts_total")
    ask(page, "the cat")
    without = text(page, f"{LAST} .text")
    assert server.metric("vllm:spec_decode_num_drafts_total") == drafts
    assert count(page, ".log .t.draft") == count(page, ".log .t.bonus") == count(page, ".bar-column") == 0
    assert text(page, "#length-value") == "off" and text(page, "#f-acceptance") == "–"
    page.click("#new")
    assert count(page, "article") == 0
    page.click("#speculation")
    ask(page, "the cat")
    assert text(page, f"{LAST} .text") == without  # greedy: the drafter must not change the text
    assert count(page, f"{LAST} .t.draft") > 0 and count(page, ".bar-column") == 3


def test_a_shorter_draft_and_a_temperature_reach_the_server(page, server):
    move = "(() => {{ const e = document.querySelector('#{}'); e.value = '{}';"
    move += " e.dispatchEvent(new Event('input')); }})()"
    page.run(move.format("length", 1))
    page.run(move.format("temperature", 1.5))
    assert text(page, "#length-value") == "1" and text(page, "#temperature-value") == "1.50"
    ask(page, "the cat")
    assert count(page, ".bar-column") == 1
    first = text(page, f"{LAST} .text")
    page.click("#new")
    ask(page, "the cat")
    assert text(page, f"{LAST} .text") != first  # sampled anew, not greedy


def test_shift_enter_breaks_the_line_and_colours_can_be_put_away(page):
    page.click("#input")
    page.type("the")
    page.press("Enter", shift=True)
    page.type("cat")
    assert page.run("document.querySelector('#input').value") == "the\ncat" and count(page, "article") == 0
    page.press("Enter")
    page.until(IDLE)
    mark = f"getComputedStyle(document.querySelector('{LAST} .t.bonus')).backgroundImage"
    assert "gradient" in page.run(mark)
    page.click("#colours")
    assert page.run(mark) == "none"


def test_every_control_is_reached_with_the_tab_key_and_shows_its_focus(page):
    page.run("document.activeElement.blur()")
    seen = set()
    for _ in range(40):
        page.press("Tab")
        name = page.run("document.activeElement.id || document.activeElement.className")
        if name and page.run("document.activeElement !== document.body"):
            style = "getComputedStyle(document.activeElement.closest('.field textarea')?.parentElement"
            style += " ?? document.activeElement)"
            assert page.run(f"{style}.outlineStyle !== 'none' || {style}.boxShadow !== 'none'"), name
            seen.add(name)
    wanted = {"theme", "new", "input", "send", "speculation", "length", "colours", "temperature", "thinking"}
    assert wanted <= seen


def test_light_and_dark(page, server):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.screen(1280, 800, dark=True)
    dark = page.run(ground)
    assert light != dark
    page.click("#theme")
    assert page.run(ground) == light
    visit(page, server.url)  # the choice outlives the page, whatever the system wishes
    assert page.run(ground) == light
    page.click("#theme")
    page.run("localStorage.clear()")
    assert page.run(ground) == dark


@pytest.mark.parametrize("width", [320, 360, 768])
def test_a_narrow_screen_scrolls_in_one_direction_only(page, width):
    page.screen(width, 740, phone=True)
    fits = (
        "document.documentElement.scrollWidth <= innerWidth && document.querySelector('#scroll').scrollWidth"
    )
    fits += " <= document.querySelector('#scroll').clientWidth"
    assert page.run(fits)
    page.run("document.querySelector('#most').value = '80'")
    ask(page, "a" + "very" * 60 + "longword")
    assert page.run(fits)
    assert page.run("getComputedStyle(document.querySelector('#panel')).visibility") == "hidden"
    page.click("#panel-toggle")
    assert page.run("getComputedStyle(document.querySelector('#panel')).visibility") == "visible"
    assert page.run(fits) and "tokens/s" in text(page, "#strip")
    page.press("Escape")
    page.until("getComputedStyle(document.querySelector('#panel')).visibility === 'hidden'")


def test_a_server_that_goes_and_comes_back(folder, browser):
    browser.screen(1280, 800)
    gone = Running(folder, max_model_len=200)
    gone.start()
    visit(browser, gone.url)
    gone.http.close()
    gone.stop()
    browser.until("document.querySelector('#dot').dataset.state === 'gone'")
    assert "does not answer" in text(browser, "#notice") and shown(browser, "#notice")
    send(browser, "the cat")
    browser.until("document.querySelectorAll('.failure').length")
    assert count(browser, "article.assistant") == 0 and text(browser, "article.user .text") == "the cat"
    port = int(gone.url.rsplit(":", 1)[1])
    with running(folder, max_model_len=200, port=port):
        browser.until(READY)
        assert not shown(browser, "#notice")
        browser.click(".failure button")
        browser.until(IDLE)
        assert count(browser, ".failure") == 0 and count(browser, "article.user") == 1
