"""`paceline.LLM`: the engine for use from Python, in the caller's process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as ListLike
from operator import index
from typing import TYPE_CHECKING, Any, Literal

import torch

from paceline.config import CacheConfig, EngineConfig, ModelConfig, SpeculativeConfig
from paceline.config.model import Quantization, QuantizedWeights
from paceline.config.sampling import SamplingParams
from paceline.engine.assemble import assemble
from paceline.engine.describe import describe, determinism
from paceline.engine.request import Request, check_prompt, draw_seed
from paceline.engine.results import RequestOutput, StreamEvent
from paceline.engine.teacher import teacher_forced_logits
from paceline.errors import PacelineError, RequestError
from paceline.kernels.sample import prompt_key

if TYPE_CHECKING:
    from paceline.engine.tokenizer import TextTokenizer

Prompt = str | list[int]
Prompts = Prompt | ListLike[Prompt]
_NOT_A_PROMPT = "a prompt is a text or a list of whole numbers, its token ids"


class LLM:
    """A model, loaded and ready to answer.

    One object serves one thread. Options are those of `paceline generate`; construction raises the typed
    errors of `paceline.errors` for a model, drafter or option that does not fit, before any weight is
    loaded.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | None = None,
        dtype: Literal["auto", "bfloat16", "float32"] = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        quantization: Quantization = "auto",
        quantized_weights: QuantizedWeights = "dequantized",
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        deterministic: bool | None = None,
        block_size: int = 64,
        num_blocks: int | None = None,
        seed: int | None = None,
        enable_prefix_caching: bool = False,
        host_swap_gib: float = 4.0,
    ):
        if isinstance(speculative_config, Mapping):
            speculative_config = SpeculativeConfig.parse(speculative_config)
        config = EngineConfig(
            model=ModelConfig(
                model=str(model),
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                quantization=quantization,
                quantized_weights=quantized_weights,
            ),
            cache=CacheConfig(
                block_size=block_size,
                num_blocks=num_blocks,
                host_swap_gib=host_swap_gib,
                enable_prefix_caching=enable_prefix_caching,
            ),
            speculative=speculative_config,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            deterministic=deterministic,
            seed=seed,
        )
        self._parts = assemble(config)
        self.config = config
        self.engine = self._parts.engine
        self._news: dict[str, deque[StreamEvent]] = {}  # what a step told each open stream, by request

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The model's tokenizer; None where its folder has none."""
        return self._parts.tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts can be put into the model's chat format."""
        return self.tokenizer is not None and self.tokenizer.has_chat_template

    @property
    def deterministic(self) -> bool:
        """Whether deterministic mode is on."""
        return self._parts.resolved.deterministic

    @property
    def device(self) -> str:
        """Where the model runs: "cpu" or "cuda"."""
        return self._parts.resolved.device.type

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._parts.resolved.max_model_len

    def default_sampling_params(self, **overrides: Any) -> SamplingParams:
        """The model's own defaults (generation_config.json) with `overrides` on top."""
        return SamplingParams.from_generation_config(self._parts.generation_config, **overrides)

    def plan(self) -> dict[str, Any]:
        """What was resolved, what memory it takes, and which kernels run: plain data, ready for JSON."""
        return describe(self._parts)

    def determinism(self) -> dict[str, Any]:
        """Whether deterministic mode is on, its products, and their measured cost against torch's own."""
        return determinism(self._parts.resolved)

    def encode(self, text: str, params: SamplingParams | None = None, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt, checked as `generate` checks them.

        Raises `RequestError` for a prompt, or for `params`, that cannot be served.
        """
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer: give the prompt as token ids", param="prompt")
        ids = self.tokenizer.encode_chat(text) if chat else self.tokenizer.encode(text)
        check_prompt(ids, self._parts.resolved.spec.vocab_size, self.max_model_len)
        if params is not None:
            params.check_vocab(self._parts.resolved.spec.vocab_size)
        return ids

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | ListLike[SamplingParams] | None = None,
        *,
        ids: ListLike[str] | None = None,
        chat: bool = False,
    ) -> list[RequestOutput]:
        """Answer all prompts as one batch; results come in the order of the prompts.

        prompts: a text, token ids, or a list of either. ids: names of the requests (default "0", "1",
        ...); with a seed, each prompt of a list draws its noise from H(seed, id), so that batch order
        never matters.

        Raises: RequestError for a prompt or parameter that cannot be served, before anything runs;
        CapacityError for a request that outgrew the memory, after the others are done.
        """
        order: list[str] = []
        done: dict[str, RequestOutput] = {}
        failure: PacelineError | None = None
        for event in self._run(prompts, sampling_params, ids, chat, order):
            if event.output is not None:
                done[event.id] = event.output
            failure = failure or event.error
        if failure:
            raise failure
        return [done[name] for name in order]

    def stream(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | ListLike[SamplingParams] | None = None,
        *,
        ids: ListLike[str] | None = None,
        chat: bool = False,
    ) -> Iterator[StreamEvent]:
        """Like `generate`, but yields news as it comes; closing the iterator aborts what is unfinished."""
        yield from self._run(prompts, sampling_params, ids, chat, [])

    def teacher_forced_logits(self, token_ids: ListLike[int]) -> torch.Tensor:
        """[T, V] float32 logits after each token of `token_ids`, in one read of the text through the target.

        Runs beside the engine's requests: none may be unfinished.
        """
        assert not self.engine.has_work, "teacher forcing needs an idle engine"
        return teacher_forced_logits(self._parts, list(token_ids))

    def close(self) -> None:
        """Drop the weights and the cache; the object cannot be used afterwards."""
        for name in ("engine", "_parts"):
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in ("engine", "_parts"):
            raise RuntimeError("this LLM was closed: make a new one")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _run(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | ListLike[SamplingParams] | None,
        ids: ListLike[str] | None,
        chat: bool,
        order: list[str],
    ) -> Iterator[StreamEvent]:
        requests = self._requests(prompts, sampling_params, ids, chat)
        order += [request.id for request in requests]
        news: deque[StreamEvent] = deque()
        unfinished = set(order)
        try:
            for request in requests:
                self.engine.add(request)
                self._news[request.id] = news
            while unfinished or news:
                if not news:
                    for event in self.engine.step():
                        self._news[event.id].append(event)
                while news:
                    event = news.popleft()
                    if event.output is not None or event.error is not None:
                        unfinished.discard(event.id)
                    yield event
        finally:
            for request in requests:
                self.engine.abort(request.id)
                self._news.pop(request.id, None)

    def _requests(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | ListLike[SamplingParams] | None,
        ids: ListLike[str] | None,
        chat: bool,
    ) -> list[Request]:
        if not isinstance(prompts, str | ListLike) or isinstance(prompts, bytes):
            raise RequestError(f"prompts: {_NOT_A_PROMPT}, or a list of such", param="prompt")
        single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        texts: list[Prompt] = [prompts] if single else list(prompts)  # type: ignore[list-item, arg-type]
        if sampling_params is None:
            sampling_params = self.default_sampling_params()
        each = (
            [sampling_params] * len(texts)
            if isinstance(sampling_params, SamplingParams)
            else list(sampling_params)
        )
        names = [str(i) for i in range(len(texts))] if ids is None else [str(name) for name in ids]
        for what, count in (("sampling_params", len(each)), ("ids", len(names))):
            if count != len(texts):
                raise RequestError(f"{what} has {count} entries for {len(texts)} prompts", param=what)
        if len(set(names)) != len(names):
            raise RequestError("ids of requests must differ from each other", param="ids")
        taken = [name for name in names if name in self._news]
        if taken:
            raise RequestError(
                f"id {taken[0]!r} is that of a request in a stream still open: close it, or give other ids",
                param="ids",
            )
        return [
            self._request(name, text, params, chat, single)
            for name, text, params in zip(names, texts, each, strict=True)
        ]

    def _request(
        self, name: str, prompt: Prompt, params: SamplingParams, chat: bool, single: bool
    ) -> Request:
        vocab = self._parts.resolved.spec.vocab_size
        token_ids = self.encode(prompt, chat=chat) if isinstance(prompt, str) else _whole_numbers(prompt)
        check_prompt(token_ids, vocab, self.max_model_len)
        params.check_vocab(vocab)
        seed = params.seed if params.seed is not None else self.config.seed
        if seed is None:
            seed = draw_seed()
        elif not single:
            seed = prompt_key(seed, name) % 2**64  # reported: alone, the prompt gives the same text with it
        return Request(name, token_ids, params, seed)


def _whole_numbers(prompt: Any) -> list[int]:
    """Token ids as Python's own integers, whichever library they come from."""
    try:
        if isinstance(prompt, bytes):
            raise TypeError
        return [index(token) for token in prompt]
    except TypeError:
        raise RequestError(_NOT_A_PROMPT, param="prompt") from None
