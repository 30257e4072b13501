"""The service itself. It does not know whether it is called directly or out of a queue."""

import grpc
import orders_pb2
import orders_pb2_grpc


def say(text: str) -> None:
    """A line in one piece: handlers run in several threads at once."""
    print(f"{text}\n", end="", flush=True)  # noqa: T201


class Orders(orders_pb2_grpc.OrdersServicer):
    """Orders in memory, by id."""

    def __init__(self) -> None:
        self.placed: dict[str, orders_pb2.PlaceOrderRequest] = {}

    def PlaceOrder(  # noqa: N802
        self, request: orders_pb2.PlaceOrderRequest, context: grpc.ServicerContext
    ) -> orders_pb2.PlaceOrderReply:
        """Take an order. Messages may be delivered twice, so doing it twice must change nothing."""
        if not request.quantity:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"order {request.order_id}: nothing is ordered")
        self.placed.setdefault(request.order_id, request)
        customer = dict(context.invocation_metadata()).get("user_id", "somebody")
        say(f"{customer} ordered {request.quantity} x {request.item} ({request.order_id})")
        return orders_pb2.PlaceOrderReply(status="placed")

    def CancelOrder(  # noqa: N802
        self, request: orders_pb2.CancelOrderRequest, context: grpc.ServicerContext
    ) -> orders_pb2.CancelOrderReply:
        """Give an order up."""
        if self.placed.pop(request.order_id, None) is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(f"order {request.order_id} is not known")
        else:
            say(f"cancelled {request.order_id}")
        return orders_pb2.CancelOrderReply()
