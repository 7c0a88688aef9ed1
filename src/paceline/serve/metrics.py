"""Prometheus metrics under vLLM's names, so that existing dashboards work; our own where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.engine.messages import Figures, News
    from paceline.serve.figures import Tally

LABELS = ("model_name", "engine")
LATENCY = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
END_TO_END = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class Metrics:
    """All metrics of one server; each server has a registry of its own."""

    def __init__(self, model_name: str, figures: Callable[[], Figures | None], num_drafts: int):
        self.registry = CollectorRegistry()
        self._labels = (model_name, "0")
        self._figures = figures
        self._gauges()
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens read.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens written.")
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Verifications that held drafts.")
        self._draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted.")
        positions = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Drafted tokens accepted, by position.",
            (*LABELS, "position"), registry=self.registry,
        )  # fmt: skip
        self._positions = [positions.labels(*self._labels, str(i)) for i in range(num_drafts)]
        self._totals = {
            "preemptions": self._counter("vllm:num_preemptions", "Sequences moved to host memory."),
            "prefix_queries": self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up."),
            "prefix_hits": self._counter("vllm:prefix_cache_hits", "Prompt tokens not read again."),
        }
        self._seen = dict.fromkeys(self._totals, 0)
        self._success = Counter(
            "vllm:request_success", "Choices that ended, by reason.", (*LABELS, "finished_reason"),
            registry=self.registry,
        )  # fmt: skip
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", LATENCY)
        self._itl = self._histogram("vllm:inter_token_latency_seconds", "Between two deliveries.", LATENCY)
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time of a token after the first.", LATENCY
        )
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", END_TO_END)

    def news(self, news: News) -> None:
        """Count what a step gave."""
        for event in news.events:
            self._generated.inc(len(event.token_ids))
            if event.drafted:
                self._drafts.inc()
                self._draft_tokens.inc(event.drafted)
                self._accepted.inc(event.accepted)
                for position in self._positions[: event.accepted]:
                    position.inc()
            if event.finish_reason:
                self._success.labels(*self._labels, event.finish_reason).inc()
        for name, counter in self._totals.items():
            total = getattr(news.figures, name)
            # An engine that was restarted counts from 0.
            counter.inc(total - self._seen[name] if total >= self._seen[name] else total)
            self._seen[name] = total

    def prompt(self, tokens: int) -> None:
        """Count a prompt that was taken in."""
        self._prompt.inc(tokens)

    def delivered(self, before: float | None, tally: Tally) -> None:
        """Time a delivery; `before` is when the last one came, None for the first."""
        assert tally.last is not None
        if before is None:
            self._ttft.observe(tally.last - tally.started)
        else:
            self._itl.observe(tally.last - before)

    def finished(self, tally: Tally) -> None:
        """Time an answer that has ended."""
        if tally.first is None or tally.last is None:
            return
        self._e2e.observe(tally.last - tally.started)
        if tally.completion_tokens > 1:
            self._tpot.observe((tally.last - tally.first) / (tally.completion_tokens - 1))

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def _gauges(self) -> None:
        self._gauge("vllm:num_requests_running", "Sequences that run.", lambda f: f.running)
        self._gauge("vllm:num_requests_waiting", "Sequences that wait.", lambda f: f.waiting)
        self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks held, 0 to 1.", lambda f: f.cache_usage)
        self._gauge("paceline:kv_blocks_used", "KV blocks held.", lambda f: f.blocks_used)
        self._gauge("paceline:kv_blocks_total", "KV blocks.", lambda f: f.blocks_total)
        self._gauge("paceline:checkpoints", "Recurrent states kept for reuse.", lambda f: f.checkpoints)
        self._gauge("paceline:recurrent_slots_used", "Recurrent slots held.", lambda f: f.slots_used)
        self._gauge("paceline:recurrent_slots_total", "Recurrent slots.", lambda f: f.slots_total)

    def _gauge(self, name: str, text: str, read: Callable[[Figures], float]) -> None:
        def value() -> float:
            figures = self._figures()
            return 0.0 if figures is None else read(figures)

        Gauge(name, text, LABELS, registry=self.registry).labels(*self._labels).set_function(value)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry).labels(*self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, LABELS, registry=self.registry, buckets=buckets)
        return histogram.labels(*self._labels)
