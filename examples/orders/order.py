"""Orders something: by a call that is answered, or by a message that will be dealt with.

python order.py direct 127.0.0.1:50100 order-1 tea 2
python order.py queue grpc://127.0.0.1:50051 orders order-1 tea 2
"""

import asyncio
import os
import sys

import grpc
from orders_grpcq import OrdersProducer
from orders_pb2 import PlaceOrderRequest
from orders_pb2_grpc import OrdersStub

from headrace.grpcq import HeadraceAdapter, Producer

METADATA = {"user_id": "ann"}


def order_directly(address: str, request: PlaceOrderRequest) -> str:
    """Call the service and wait for its answer."""
    with grpc.insecure_channel(address) as channel:
        reply = OrdersStub(channel).PlaceOrder(request, metadata=tuple(METADATA.items()))
    return str(reply.status)


async def order_by_message(endpoint: str, queue: str, request: PlaceOrderRequest) -> str:
    """Leave the order in a queue; it is safe there when this returns."""
    adapter = HeadraceAdapter.connect(endpoint, os.environ.get("HEADRACE_KEY", "dev-key"))
    orders = OrdersProducer(Producer(adapter, "order.py"), queue)
    message_id = await orders.PlaceOrder(request, METADATA)
    await adapter.close()
    return f"queued as {message_id}"


def main() -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["direct", address, order_id, item, quantity]:
            done = order_directly(address, PlaceOrderRequest(order_id=order_id, item=item, quantity=int(quantity)))
        case ["queue", endpoint, queue, order_id, item, quantity]:
            request = PlaceOrderRequest(order_id=order_id, item=item, quantity=int(quantity))
            done = asyncio.run(order_by_message(endpoint, queue, request))
        case _:
            sys.exit(__doc__)
    print(done)  # noqa: T201


if __name__ == "__main__":
    main()
