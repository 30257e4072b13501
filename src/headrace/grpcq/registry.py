"""Which handler a message belongs to. Takes gRPC servicers as a gRPC server does."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import Message as ProtobufMessage

from headrace.model.errors import BrokerError, HeadraceError
from headrace.protocols.grpcq.envelope import check_call

Function = Callable[[Any, Any], Any]


class NoHandler(HeadraceError):
    """A message nobody here can handle."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that takes (request, context), and how its request is made from bytes."""

    function: Function
    deserialize: Callable[[bytes], Any] | None = None

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function."""
        called = getattr(self.function, "__call__", None)  # noqa: B004  # an object whose __call__ is a coroutine
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called)

    def request(self, payload: bytes) -> Any:
        """The request in a payload; the payload itself where nobody said what it is."""
        return self.deserialize(payload) if self.deserialize is not None else payload


class _CallDetails(NamedTuple):
    """What gRPC tells a generic handler about a call."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class Registry:
    """Handlers by topic (service) and action (method).

    It takes the place of a server in what `protoc` generates for a service:
    `add_OrdersServicer_to_server(Orders(), registry)`.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._generic: list[Any] = []

    def register(
        self, topic: str, action: str, function: Function, request_type: type[ProtobufMessage] | None = None
    ) -> None:
        """Have `function(request, context)` handle a call; without a type the request is the payload's bytes.

        Raises ValueError when the call has a handler already, or a name that no call can have.
        """
        _check(topic, action)
        if (topic, action) in self._handlers:
            raise ValueError(f"{topic}.{action} has a handler already")
        self._handlers[topic, action] = Handler(function, request_type.FromString if request_type is not None else None)

    def handler(
        self, topic: str, action: str, request_type: type[ProtobufMessage] | None = None
    ) -> Callable[[Function], Function]:
        """`register` as a decorator."""

        def decorate(function: Function) -> Function:
            """Register, and leave the function as it is."""
            self.register(topic, action, function, request_type)
            return function

        return decorate

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """As gRPC servers have it: the methods of one service, all at once. Raises ValueError as `register` does."""
        for action, found in method_handlers.items():
            _check(service_name, action)
            self._handlers.setdefault((service_name, action), _of_grpc(service_name, action, found))

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """As gRPC servers have it: somebody who knows handlers by the name of a method."""
        self._generic.extend(generic_rpc_handlers)

    def find(self, topic: str, action: str) -> Handler:
        """The handler of a call.

        Raises NoHandler.
        """
        known = self._handlers.get((topic, action))
        if known is not None:
            return known
        for generic in self._generic:
            found = generic.service(_CallDetails(f"/{topic}/{action}"))
            if found is not None:
                return self._handlers.setdefault((topic, action), _of_grpc(topic, action, found))
        raise NoHandler(f"no handler for {topic}.{action}")

    def calls(self) -> list[tuple[str, str]]:
        """The calls that have a handler of their own, as (topic, action)."""
        return sorted(self._handlers)


def _check(topic: str, action: str) -> None:
    try:
        check_call(topic, action)
    except BrokerError as error:
        raise ValueError(error.detail) from None


def _of_grpc(topic: str, action: str, method: Any) -> Handler:
    """The handler gRPC would call; one that refuses for a method with streams, which no message can carry."""
    if method.unary_unary is not None:
        return Handler(method.unary_unary, method.request_deserializer)

    def refuse(request: bytes, context: Any) -> None:
        """Say why there is nothing to call."""
        raise NoHandler(f"{topic}.{action} has streams, which no message can carry")

    return Handler(refuse)
