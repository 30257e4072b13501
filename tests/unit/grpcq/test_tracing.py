"""Trace context travels in metadata; without OpenTelemetry everything works and nothing travels."""

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.grpcq import MemoryAdapter, Producer, Registry, Worker

WITHOUT = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from headrace.grpcq import MemoryAdapter, Producer, Registry, Worker, tracing
async def main():
    adapter, registry, done = MemoryAdapter(), Registry(), asyncio.Event()
    registry.register("a", "b", lambda request, context: loop.call_soon_threadsafe(done.set))
    loop = asyncio.get_running_loop()
    await Producer(adapter).send("q", "a", "b", b"")
    worker = Worker(adapter, registry, "q", wait_s=0.05)
    running = asyncio.create_task(worker.run())
    await done.wait()
    await worker.stop()
    await running
    assert adapter.size("q") == 0 and not adapter.dead_letters and not tracing.INSTALLED
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


async def test_the_handlers_span_is_linked_to_the_producers(exporter: InMemorySpanExporter) -> None:
    adapter, registry = MemoryAdapter(), Registry()
    inside: list[trace.SpanContext] = []
    registry.register("a", "Sync", lambda request, context: inside.append(trace.get_current_span().get_span_context()))

    async def handle(request: bytes, context: object) -> None:
        inside.append(trace.get_current_span().get_span_context())
        await worker.stop_soon()

    registry.register("a", "Async", handle)
    with trace.get_tracer("test").start_as_current_span("request") as request:
        await Producer(adapter).send("q", "a", "Sync", b"")
        await Producer(adapter).send("q", "a", "Async", b"")
    worker = _Stoppable(adapter, registry, "q", concurrency=1, wait_s=0.05)
    await worker.run()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    sends = [span for span in exporter.get_finished_spans() if span.name == "send q"]
    for name, send in (("process a.Sync", sends[0]), ("process a.Async", sends[1])):
        assert send.context is not None
        assert send.context.trace_id == request.get_span_context().trace_id
        assert [link.context.span_id for link in spans[name].links] == [send.context.span_id]
    assert [context.span_id for context in inside] == [
        span.context.span_id for name in ("process a.Sync", "process a.Async") if (span := spans[name]).context
    ]


async def test_traceparent_is_in_the_metadata(exporter: InMemorySpanExporter) -> None:
    adapter = MemoryAdapter()
    with trace.get_tracer("test").start_as_current_span("request") as request:
        await Producer(adapter).send("q", "a", "b", b"", {"user_id": "u"})
    ((item,), trace_id) = (await adapter.consume("q", 1)).items, request.get_span_context().trace_id
    metadata = item.message().metadata
    assert metadata["traceparent"].split("-")[1] == f"{trace_id:032x}"
    assert metadata["user_id"] == "u"


def test_nothing_of_it_is_needed() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


class _Stoppable(Worker):
    """A worker whose handler can end it."""

    async def stop_soon(self) -> None:
        self._stopping.set()
