"""Finding handlers, and taking servicers as a gRPC server does."""

from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from headrace.grpcq import NoHandler, Registry


def unary(request: Any, context: Any) -> str:
    return f"handled {request.value}"


def method_handlers() -> dict[str, Any]:
    return {
        "Unary": grpc.unary_unary_rpc_method_handler(unary, request_deserializer=StringValue.FromString),
        "Stream": grpc.unary_stream_rpc_method_handler(unary, request_deserializer=StringValue.FromString),
    }


def test_functions_are_found_by_topic_and_action() -> None:
    registry = Registry()
    registry.register("a.B", "C", unary, StringValue)
    registry.handler("a.B", "Raw")(unary)
    found = registry.find("a.B", "C")
    assert found.function(found.request(StringValue(value="x").SerializeToString()), None) == "handled x"
    assert registry.find("a.B", "Raw").request(b"bytes") == b"bytes"
    assert registry.calls() == [("a.B", "C"), ("a.B", "Raw")]


@pytest.mark.parametrize(("topic", "action"), [("a.B", "c"), ("a.b", "C"), ("", ""), ("a", "B.C")])
def test_anything_else_has_no_handler(topic: str, action: str) -> None:
    registry = Registry()
    registry.register("a.B", "C", unary)
    with pytest.raises(NoHandler, match="no handler for"):
        registry.find(topic, action)


def test_a_call_has_one_handler() -> None:
    registry = Registry()
    registry.register("a", "b", unary)
    with pytest.raises(ValueError, match=r"a\.b has a handler already"):
        registry.register("a", "b", unary)


@pytest.mark.parametrize("way", ["registered", "generic"])
def test_servicers_are_taken_as_a_grpc_server_takes_them(way: str) -> None:
    registry = Registry()
    if way == "registered":
        registry.add_registered_method_handlers("a.B", method_handlers())
    else:
        registry.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", method_handlers()),))
    found = registry.find("a.B", "Unary")
    assert found.function(found.request(StringValue(value="x").SerializeToString()), None) == "handled x"
    with pytest.raises(NoHandler):
        registry.find("a.B", "Missing")


def test_a_method_with_streams_refuses_its_messages() -> None:
    registry = Registry()
    registry.add_registered_method_handlers("a.B", method_handlers())
    with pytest.raises(NoHandler, match=r"a\.B\.Stream has streams"):
        registry.find("a.B", "Stream").function(b"", None)


def test_coroutines_are_told_apart_however_they_are_wrapped() -> None:
    async def coroutine(request: Any, context: Any) -> None: ...

    class Callable:
        async def __call__(self, request: Any, context: Any) -> None: ...

    registry = Registry()
    registry.register("a", "coroutine", coroutine)
    registry.register("a", "object", Callable())
    registry.register("a", "function", unary)
    assert [registry.find("a", name).is_async for name in ("coroutine", "object", "function")] == [True, True, False]
