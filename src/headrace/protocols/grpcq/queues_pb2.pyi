from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRequest(_message.Message):
    __slots__ = ("queue", "messages")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, queue: _Optional[str] = ..., messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("queue", "max_batch", "wait_ms", "visibility_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    max_batch: int
    wait_ms: int
    visibility_ms: int
    def __init__(self, queue: _Optional[str] = ..., max_batch: _Optional[int] = ..., wait_ms: _Optional[int] = ..., visibility_ms: _Optional[int] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("message", "receipt", "attempt", "offset")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    receipt: bytes
    attempt: int
    offset: int
    def __init__(self, message: _Optional[bytes] = ..., receipt: _Optional[bytes] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("receipts",)
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, receipts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("receipts", "reason", "dead")
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[bytes]
    reason: str
    dead: bool
    def __init__(self, receipts: _Optional[_Iterable[bytes]] = ..., reason: _Optional[str] = ..., dead: _Optional[bool] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("index", "receipt", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    receipt: bytes
    error: str
    def __init__(self, index: _Optional[int] = ..., receipt: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("queue", "window", "acks", "nacks")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    NACKS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    window: int
    acks: _containers.RepeatedScalarFieldContainer[bytes]
    nacks: _containers.RepeatedCompositeFieldContainer[NackRequest]
    def __init__(self, queue: _Optional[str] = ..., window: _Optional[int] = ..., acks: _Optional[_Iterable[bytes]] = ..., nacks: _Optional[_Iterable[_Union[NackRequest, _Mapping]]] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ("deliveries", "settled")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    settled: Settled
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("request", "refused")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    request: int
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, request: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...
