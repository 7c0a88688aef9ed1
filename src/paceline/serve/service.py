"""What all endpoints share once the engine is ready: model, tokenizer, formats, metrics, open requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.sampling import SamplingParams
from paceline.engine.detokenizer import TokenBytes
from paceline.engine.resolve import read_generation_config
from paceline.engine.tokenizer import load_tokenizer
from paceline.errors import ConfigError, ModelError
from paceline.models.checkpoint import read_json
from paceline.serve.chat import ChatFormat
from paceline.serve.errors import ApiError
from paceline.serve.figures import Tally
from paceline.serve.logprobs import LogprobsWriter
from paceline.serve.metrics import Metrics
from paceline.serve.readers import Readers

if TYPE_CHECKING:
    from paceline.config.serving import Serving
    from paceline.engine.messages import EngineInfo
    from paceline.engine.request import Request
    from paceline.engine.results import StreamEvent
    from paceline.engine.tokenizer import TextTokenizer
    from paceline.serve.engine import EngineClient, Generation


class Service:
    """Built once the engine has said what it is."""

    def __init__(self, serving: Serving, client: EngineClient, info: EngineInfo):
        self.config, self.client, self.info = serving.server, client, info
        self.seed = serving.engine.seed
        self.created = int(time.time())
        self.names = self.config.served_model_name or (serving.engine.model.model,)
        self.tokenizer = _tokenizer(Path(info.folder))
        self.defaults = _defaults(self.config.generation_config, info)
        self.table = TokenBytes(self.tokenizer.backend)
        template = read_template(self.config.chat_template)
        self.format = ChatFormat(self.tokenizer, template)
        answers = self.config.answer_format(template or self.tokenizer.chat_template)
        self.readers = Readers(answers, self.tokenizer, self.table)
        self.logprobs = LogprobsWriter(self.table)
        self.metrics = Metrics(self.names[0], lambda: client.figures, info.num_drafts)
        client.listeners.append(self.metrics.news)

    def check_model(self, name: str | None) -> str:
        """The name under which to answer. Raises `ApiError` (404) for a model that is not served."""
        if name is None or name in self.names:
            return name or self.names[0]
        raise ApiError(
            f"the model {name!r} is not served here; there is {', '.join(self.names)}",
            404,
            param="model",
            code="model_not_found",
        )

    def abilities(self) -> dict[str, Any]:
        """What a client may want to know before it asks: the `paceline` object of `/v1/models`."""
        return {
            "chat": self.format.available,
            "method": self.info.method,
            "num_speculative_tokens": self.info.num_drafts,
        }

    async def open(self, requests: list[Request]) -> Answer:
        """Put the requests of one answer in line. Raises `ApiError` where one of them cannot run."""
        answer = Answer(self, requests)
        try:
            for request in requests:
                answer.generations.append(await self.client.open(request))
                self.metrics.prompt(len(request.prompt_ids))
        except BaseException:
            answer.close()
            raise
        return answer


class Answer:
    """The running requests of one HTTP answer, as one stream of events; counts and times them."""

    def __init__(self, service: Service, requests: list[Request]):
        self._metrics = service.metrics
        self.tally = Tally(requests, service.info)
        self.generations: list[Generation] = []

    async def events(self) -> AsyncIterator[tuple[int, StreamEvent]]:
        """Every event with the index of its request. Raises `ApiError` where the engine gives up."""
        try:
            async for index, event in _merged(self.generations):
                before = self.tally.last
                self.tally.take(event)
                if event.token_ids:
                    self._metrics.delivered(before, self.tally)
                yield index, event
            self._metrics.finished(self.tally)
        finally:
            self.close()

    def close(self) -> None:
        """Abort what is unfinished."""
        for generation in self.generations:
            generation.close()


async def _merged(generations: list[Generation]) -> AsyncIterator[tuple[int, StreamEvent]]:
    if len(generations) == 1:
        async for event in generations[0]:
            yield 0, event
        return
    news: asyncio.Queue[tuple[int, StreamEvent | BaseException | None]] = asyncio.Queue()

    async def pump(index: int, generation: Generation) -> None:
        try:
            async for event in generation:
                news.put_nowait((index, event))
            news.put_nowait((index, None))
        except ApiError as error:
            news.put_nowait((index, error))

    tasks = [asyncio.create_task(pump(i, generation)) for i, generation in enumerate(generations)]
    try:
        running = len(tasks)
        while running:
            index, item = await news.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()


def _tokenizer(folder: Path) -> TextTokenizer:
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise ModelError(f"{folder.name} has no tokenizer: a server needs one")
    return tokenizer


def _defaults(wish: str, info: EngineInfo) -> SamplingParams:
    """Sampling defaults: the model's own, none (`vllm`), or those of another folder."""
    if wish == "vllm":
        return SamplingParams.from_generation_config({"do_sample": True})
    if wish == "auto":
        return SamplingParams.from_generation_config(info.generation_config)
    check_generation_config(wish)
    return SamplingParams.from_generation_config(read_generation_config(Path(wish)))


def check_generation_config(wish: str) -> None:
    """Raise `ConfigError` for a folder of sampling defaults that is none."""
    if wish not in ("auto", "vllm") and not (Path(wish) / "generation_config.json").is_file():
        raise ConfigError(
            f"--generation-config {wish}: no generation_config.json there; give auto, vllm or a folder",
            key="generation_config",
        )


def model_template(folder: Path) -> str | None:
    """The chat template that a model's folder holds, without loading its tokenizer; None where there is none,
    or several."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    template = read_json(path).get("chat_template") if path.is_file() else None
    return template if isinstance(template, str) else None


def read_template(path: str | None) -> str | None:
    """The chat template in a file. Raises: ConfigError where it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--chat-template {path}: {reason}", key="chat_template") from None
