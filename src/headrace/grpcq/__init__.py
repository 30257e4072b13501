"""gRPC services behind queues: the same servicer answers calls directly, or works off messages that carry them.

    producer = Producer(HeadraceAdapter.connect("grpc://127.0.0.1:50051", key), "checkout")
    await producer.send("payments", "payment.PaymentService", "ProcessPayment", request)

    registry = Registry()
    add_PaymentServiceServicer_to_server(PaymentService(), registry)
    await Worker(adapter, registry, "payments").run()

An adapter is where messages are kept: `MemoryAdapter` in this process, `HeadraceAdapter` at a broker, over gRPC or in
the same process. `protoc-gen-grpcq` generates typed producers and consumers from .proto files.
"""

from headrace.grpcq.adapter import (
    AdapterError,
    ConsumeResult,
    Item,
    NotAMessage,
    QueueAdapter,
    Receipt,
    ReceiptError,
    Rejected,
    Unavailable,
)
from headrace.grpcq.brokered import HeadraceAdapter
from headrace.grpcq.memory import DeadLetter, MemoryAdapter
from headrace.grpcq.producer import Call, Producer
from headrace.grpcq.registry import NoHandler, Registry
from headrace.grpcq.worker import Worker
from headrace.protocols.grpcq.envelope import PAYLOAD_MAX
from headrace.protocols.grpcq.grpcq_pb2 import Message

__all__ = [
    "PAYLOAD_MAX",
    "AdapterError",
    "Call",
    "ConsumeResult",
    "DeadLetter",
    "HeadraceAdapter",
    "Item",
    "MemoryAdapter",
    "Message",
    "NoHandler",
    "NotAMessage",
    "Producer",
    "QueueAdapter",
    "Receipt",
    "ReceiptError",
    "Registry",
    "Rejected",
    "Unavailable",
    "Worker",
]
