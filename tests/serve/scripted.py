"""The HTTP application over a scripted engine: what the model writes is given, and so are its steps."""

from __future__ import annotations

import random

import httpx2

from paceline.config.serving import Serving
from paceline.engine.detokenizer import Detokenizer, TokenBytes
from paceline.engine.messages import EngineInfo
from paceline.engine.results import (
    CompletionOutput,
    RequestOutput,
    SpeculationStats,
    StreamEvent,
    Timing,
    Usage,
)
from paceline.engine.tokenizer import load_tokenizer
from paceline.serve.app import Backend, make_app
from paceline.serve.service import Service

TEMPLATE = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}\
<|im_end|>
{% endfor %}{% if tools %}[tools {{ tools | map(attribute='function') | map(attribute='name') | join(' ') }}]
{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}{% endif %}"""


class Generation:
    """A request whose events are known beforehand."""

    def __init__(self, request, events):
        self.request, self._events, self.closed = request, events, False

    async def __aiter__(self):
        for event in self._events:
            yield event

    def close(self):
        self.closed = True


class Client:
    """Answers every request with the script, cut into random steps."""

    def __init__(self, folder, table):
        self.info = EngineInfo(str(folder), 128, 4096, 3, "mtp", 4, {}, {})
        self.figures, self.listeners, self.opened = None, [], []
        self.script, self.finish_reason, self.seed, self._table = "", "stop", 0, table
        self.tokenizer = load_tokenizer(folder)

    def illness(self):
        return None

    async def open(self, request):
        generation = Generation(request, list(self._events(request)))
        self.opened.append(generation)
        return generation

    def _events(self, request):
        chooser, ids = random.Random(self.seed), self.tokenizer.encode_bare(self.script)
        decoder, start = Detokenizer(self._table), 0
        while start < len(ids):
            step = ids[start : start + chooser.randint(1, 9)]
            start += len(step)
            text = "".join(decoder.push(token) for token in step)
            last = start >= len(ids)
            yield StreamEvent(
                request.id, 0, text, step, self.finish_reason if last else None,
                _output(request, ids, self.finish_reason) if last else None, drafted=3,
                accepted=min(3, len(step) - 1),
            )  # fmt: skip


def _output(request, ids, reason):
    choice = CompletionOutput(
        0, "", ids, reason, None, Usage(len(request.prompt_ids), len(ids)), SpeculationStats("mtp", 3),
        Timing(0.0, 0.0, None), None,
    )  # fmt: skip
    return RequestOutput(request.id, request.prompt_ids, request.seed, [choice])


class Scripted:
    """An application and its scripted engine."""

    def __init__(self, folder, template_file, **options):
        template_file.write_text(TEMPLATE)
        self.client = Client(folder, TokenBytes(load_tokenizer(folder).backend))
        serving = Serving.of(str(folder), {"chat_template": str(template_file), **options}, None)
        backend = Backend(self.client)
        backend.service = Service(serving, self.client, self.client.info)
        self.app = make_app(backend, serving.server)
        self.transport = httpx2.ASGITransport(app=self.app)

    def says(self, text, finish_reason="stop", seed=0):
        """What the model writes from now on."""
        self.client.script, self.client.finish_reason, self.client.seed = text, finish_reason, seed

    @property
    def prompt(self):
        """The text of the last request's prompt."""
        return self.client.tokenizer.decode(self.client.opened[-1].request.prompt_ids)
