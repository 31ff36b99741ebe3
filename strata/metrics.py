"""What a runtime measures of itself, for Prometheus.  Knows names, labels and buckets; not who measures.

What happened is observed when it happens.  What *is* (requests by state, pages, mailboxes) is read when somebody
asks, from a snapshot: there is no gauge that could go stale, and a value that isn't known has no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attrs import field, frozen
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from strata.messages import Cancelled, Completed, Figures, Outcome

BUCKETS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0),
)
"""Seconds, from 1 ms to 2 h: a slice of a small model to a long read under load."""

LABELS: Final = ("model_name", "engine")


@frozen(kw_only=True)
class Snapshot:
    """What is now.  None: not known, and not shown."""

    requests: Mapping[str, int] = field(factory=dict)
    """By state: queued, reading, parked, decoding."""
    queued_for_s: float | None = None
    """The longest wait of those that are queued now."""
    pages: Mapping[str, int] = field(factory=dict)
    """By state: free, cached (free too, but for what it holds), held, swapping."""
    slots: Mapping[str, int] = field(factory=dict)
    """Of the arena, by state: free, used."""
    parked_bytes: Mapping[str, int] = field(factory=dict)
    """What parked requests keep, by where: device, arena."""
    moved: Mapping[str, int] = field(factory=dict)
    """Pages since the start, by where to: out (to the arena), in."""
    parks: Mapping[str, int] = field(factory=dict)
    """Since the start, by reason."""
    resumes: int | None = None
    workspaces: Mapping[str, int] = field(factory=dict)
    """For half-done chunks: used, free."""
    mailboxes: Mapping[str, int] = field(factory=dict)
    """Messages that wait, by kind of actor."""
    tasks: int | None = None
    """Of Trio, in the whole process."""
    incarnation: int | None = None
    """Of the engine."""
    engine_restarts: int | None = None
    """Engines that were started after the first."""


class Metrics:
    """One runtime's, in a registry of its own: two runtimes in a process don't mix."""

    def __init__(self, model_name: str, *, engine: str = "0") -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._values = (model_name, engine)
        self._first_token = self._seconds("vllm:time_to_first_token_seconds", "From arrival to the first token.")
        self._gap = self._seconds("vllm:inter_token_latency_seconds", "Between two tokens of a request.")
        self._total = self._seconds("vllm:e2e_request_latency_seconds", "From arrival to the end.")
        self._queue = self._seconds("vllm:request_queue_time_seconds", "From arrival to the start.")
        self._prefill = self._seconds("vllm:request_prefill_time_seconds", "Spent reading, parked time left out.")
        self._decode = self._seconds("vllm:request_decode_time_seconds", "Spent writing, parked time left out.")
        self._prompt_tokens = self._count("vllm:prompt_tokens", "Prompt tokens read, or known already.")
        self._cached_tokens = self._count("vllm:prompt_tokens_cached", "Prompt tokens that were known already.")
        self._queries = self._count("vllm:prefix_cache_queries", "Prompt tokens that were looked up when they started.")
        self._hits = self._count("vllm:prefix_cache_hits", "Of those, tokens that were known already.")
        self._generated = self._count("vllm:generation_tokens", "Tokens written.")
        self._drafted = self._count("vllm:spec_decode_num_draft_tokens", "Tokens offered beyond the next one.")
        self._accepted = self._count("vllm:spec_decode_num_accepted_tokens", "Of those, tokens that were written.")
        self._ends = self._count("vllm:request_success", "Requests that ended, by how.", "finished_reason")
        self._parked = self._seconds("strata_parked_seconds", "A request's time parked.", "priority", "class")
        self._parked_by = self._count("strata_parked_by_reason_seconds", "Time that requests were parked.", "reason")
        self._engine = self._seconds("strata_engine_seconds", "A request's engine time.", "priority", "class")
        self._waited = self._seconds("strata_queue_wait_seconds", "A request's wait.", "priority", "class")
        self._give_way = self._seconds("strata_give_way_seconds", "From a newer step sent to the engine's taking it.")
        self._slice = self._seconds("strata_slice_seconds", "Engine time of a slice or a decode step.")
        self._leave = self._seconds("strata_cancel_to_free_seconds", "From a withdrawal to its pages' being free.")

    def show(self, snapshot: Callable[[], Snapshot]) -> None:
        """Read the gauges from here, whenever they are asked for.  Called once."""
        self.registry.register(_Gauges(snapshot, self._values))

    # -- what happened --

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._gap.observe(seconds)

    def tokens_read(self, tokens: int) -> None:
        self._prompt_tokens.inc(tokens)

    def looked_up(self, tokens: int, *, known: int) -> None:
        """A prompt starts, and so much of it need not be read."""
        self._queries.inc(tokens)
        for count in (self._hits, self._cached_tokens, self._prompt_tokens):
            count.inc(known)

    def tokens_written(self, tokens: int) -> None:
        self._generated.inc(tokens)

    def speculated(self, drafted: int, *, accepted: int) -> None:
        self._drafted.inc(drafted)
        self._accepted.inc(accepted)

    def slice_done(self, seconds: float) -> None:
        self._slice.observe(seconds)

    def gave_way(self, seconds: float) -> None:
        self._give_way.observe(seconds)

    def left(self, seconds: float) -> None:
        self._leave.observe(seconds)

    def ended(self, outcome: Outcome, figures: Figures, *, priority: int, short: bool) -> None:
        """A request has ended; its own figures say how it fared."""
        self._ends.labels(*self._values, _finished_reason(outcome)).inc()
        kind = (*self._values, str(priority), "short" if short else "long")
        if figures.read_tokens or isinstance(outcome, Completed):
            self._queue.observe(figures.queue_s)
            self._waited.labels(*kind).observe(figures.queue_s)
            self._engine.labels(*kind).observe(figures.engine_s)
        if figures.parks:
            self._parked.labels(*kind).observe(figures.parked_s)
        for reason, seconds in figures.parked_s_by.items():
            self._parked_by.labels(*self._values, reason).inc(seconds)
        if isinstance(outcome, Completed):
            self._total.observe(figures.total_s)
            self._prefill.observe(figures.read_s)
            self._decode.observe(figures.decode_s)

    def _seconds(self, name: str, text: str, *labels: str) -> Histogram:
        whole = Histogram(name, text, (*LABELS, *labels), buckets=BUCKETS, registry=self.registry)
        # Looked up once where no label is left open: some of them are observed for every token.
        return whole if labels else whole.labels(*self._values)

    def _count(self, name: str, text: str, *labels: str) -> Counter:
        whole = Counter(name, text, (*LABELS, *labels), registry=self.registry)
        return whole if labels else whole.labels(*self._values)


def _finished_reason(outcome: Outcome) -> str:
    """vLLM's words for it."""
    match outcome:
        case Completed(reason):
            return reason
        case Cancelled():
            return "abort"
        case _:
            return "error"


class _Gauges(Collector):
    """Reads a snapshot when it is scraped."""

    def __init__(self, snapshot: Callable[[], Snapshot], values: tuple[str, str]) -> None:
        self._snapshot = snapshot
        self._values = values

    def describe(self) -> Iterator[Metric]:
        # Nothing to check the names against before the first scrape, and no scrape while registering.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield from self._requests(now.requests)
        yield from self._pages(now.pages)
        if now.slots:
            yield self._gauge("strata_slots", "Room for pages in the host arena, by state.", "state", now.slots)
        if now.parked_bytes:
            yield self._gauge("strata_parked_bytes", "What parked requests keep, by where.", "where", now.parked_bytes)
        yield from self._parks(now)
        if now.queued_for_s is not None:
            text = "The longest wait of those queued now."
            yield self._plain("strata_queue_wait_max_seconds", text, now.queued_for_s)
        yield self._gauge("strata_workspaces", "Room for half-done chunks, by state.", "state", now.workspaces)
        yield self._gauge("strata_mailbox_depth", "Messages that wait, by kind of actor.", "actor", now.mailboxes)
        if now.tasks is not None:
            yield self._plain("strata_tasks", "Trio tasks of the process.", now.tasks)
        if now.incarnation is not None:
            yield self._plain("strata_engine_incarnation", "Which engine this is, from 1.", now.incarnation)
        if now.engine_restarts is not None:
            restarts = CounterMetricFamily("strata_engine_restarts", "Engines started after the first.", labels=LABELS)
            restarts.add_metric(self._values, now.engine_restarts)
            yield restarts

    def _requests(self, requests: Mapping[str, int]) -> Iterator[Metric]:
        if not requests:
            return
        waiting = requests.get("queued", 0)
        running = requests.get("reading", 0) + requests.get("decoding", 0)
        yield self._plain("vllm:num_requests_running", "Requests that read or write.", running)
        # What is parked waits for the engine as a queued one does.
        parked = requests.get("parked", 0)
        yield self._plain("vllm:num_requests_waiting", "Requests queued or parked.", waiting + parked)
        yield self._gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests queued (capacity) or parked (deferred).",
            "reason",
            {"capacity": waiting, "deferred": parked},
        )
        yield self._gauge("strata_requests", "Requests by state.", "state", requests)

    def _pages(self, pages: Mapping[str, int]) -> Iterator[Metric]:
        if not pages:
            return
        total = sum(pages.values())
        held = total - pages.get("free", 0) - pages.get("cached", 0)
        yield self._plain("vllm:kv_cache_usage_perc", "Share of the pages that is held, 0 to 1.", held / (total or 1))
        yield self._gauge("strata_pages", "Pages by state.", "state", pages)

    def _parks(self, now: Snapshot) -> Iterator[Metric]:
        if now.resumes is None:
            return
        preemptions = CounterMetricFamily("vllm:num_preemptions", "Times that a request was parked.", labels=LABELS)
        preemptions.add_metric(self._values, sum(now.parks.values()))
        yield preemptions
        moved = CounterMetricFamily("strata_pages_moved", "Pages moved to and from the arena.", labels=(*LABELS, "to"))
        for way, count in now.moved.items():
            moved.add_metric((*self._values, way), count)
        yield moved
        parks = CounterMetricFamily("strata_parks", "Times that a request was parked.", labels=(*LABELS, "reason"))
        for reason, count in now.parks.items():
            parks.add_metric((*self._values, reason), count)
        yield parks
        resumes = CounterMetricFamily("strata_resumes", "Times that a parked request went on.", labels=LABELS)
        resumes.add_metric(self._values, now.resumes)
        yield resumes

    def _plain(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._values, value)
        return family

    def _gauge(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=(*LABELS, label))
        for value, number in values.items():
            family.add_metric((*self._values, value), number)
        return family
