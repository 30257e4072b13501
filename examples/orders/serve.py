"""Runs the service: as a gRPC server, or on what a queue brings.

python serve.py direct 127.0.0.1:50100
python serve.py queue grpc://127.0.0.1:50051 orders
"""

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from orders_pb2_grpc import add_OrdersServicer_to_server
from service import Orders

from headrace.grpcq import HeadraceAdapter, Registry, Worker


def serve_directly(address: str) -> None:
    """Answer calls until the process is told to stop."""
    server = grpc.server(ThreadPoolExecutor(10))
    add_OrdersServicer_to_server(Orders(), server)
    server.add_insecure_port(address)
    server.start()
    print("ready", flush=True)  # noqa: T201
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(grace=10).wait()


async def serve_queue(endpoint: str, queue: str) -> None:
    """Work off a queue until the process is told to stop, and finish what was begun."""
    registry = Registry()
    add_OrdersServicer_to_server(Orders(), registry)  # the same line as above
    adapter = HeadraceAdapter.connect(endpoint, os.environ.get("HEADRACE_KEY", "dev-key"))
    worker = Worker(adapter, registry, queue)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    print("ready", flush=True)  # noqa: T201
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await stopping.wait()
        await worker.stop()
    await adapter.close()


def main() -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["direct", address]:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            serve_directly(address)
        case ["queue", endpoint, queue]:
            asyncio.run(serve_queue(endpoint, queue))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
