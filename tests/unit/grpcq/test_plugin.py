"""`protoc-gen-grpcq` by really running protoc with it."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.grpcq import MemoryAdapter, Producer, Registry, Worker

COMMON = """
syntax = "proto3";
package fleet.common;
message Place { string name = 1; }
"""

FLEET = """
syntax = "proto3";
package fleet.v1;
import "fleet/common.proto";
import "google/protobuf/empty.proto";

// Moves trucks.
service Trucks {
  // Sends a "truck" \\ somewhere.
  //
  // More about it.
  rpc Send(fleet.common.Place) returns (google.protobuf.Empty);
  rpc Park(Truck.Lot) returns (google.protobuf.Empty);
  rpc Watch(fleet.common.Place) returns (stream fleet.common.Place);
  rpc Stop(google.protobuf.Empty) returns (google.protobuf.Empty);
}

service OnlyStreams {
  rpc Follow(stream Truck) returns (stream Truck);
}

message Truck {
  message Lot { uint32 number = 1; }
  optional string plate = 1;
}
"""

NO_SERVICE = """
syntax = "proto3";
message Alone {}
service Bare { rpc Go(Alone) returns (Alone); }
"""


def protoc(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    """Run protoc on sources in a folder, with the plugin as it is installed."""
    plugin = Path(sys.executable).with_name("protoc-gen-grpcq")
    if not plugin.exists():
        plugin = folder / "protoc-gen-grpcq"
        plugin.write_text(f"#!/bin/sh\nexec {sys.executable} -m headrace.grpcq.plugin\n")
        plugin.chmod(0o755)
    well_known = files("grpc_tools").joinpath("_proto")
    options = [f"-I{folder}", f"-I{well_known}", f"--python_out={folder}", f"--grpcq_out={folder}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--plugin=protoc-gen-grpcq={plugin}", *options, *sources]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("generated")
    (folder / "fleet").mkdir()
    (folder / "fleet" / "common.proto").write_text(COMMON)
    (folder / "fleet" / "trucks.proto").write_text(FLEET)
    ran = protoc(folder, "fleet/common.proto", "fleet/trucks.proto")
    assert ran.returncode == 0, ran.stderr
    assert not (folder / "fleet" / "common_grpcq.py").exists(), "a file without services needs no module"
    sys.path.insert(0, str(folder))
    yield importlib.import_module("fleet.trucks_grpcq")
    sys.path.remove(str(folder))


async def test_what_the_producer_sends_reaches_the_consumer(fleet: ModuleType) -> None:
    seen: list[Any] = []

    class Trucks(fleet.TrucksConsumer):  # type: ignore[name-defined,misc]
        async def Send(self, request: Any, context: Any) -> None:  # noqa: N802
            seen.append((request.name, dict(context.invocation_metadata())["k"]))

        async def Park(self, request: Any, context: Any) -> None:  # noqa: N802
            seen.append(request.number)
            worker._stopping.set()

    adapter, registry = MemoryAdapter(), Registry()
    fleet.add_TrucksConsumer_to_registry(Trucks(), registry)
    trucks = fleet.TrucksProducer(Producer(adapter, "test"), "q")
    place = importlib.import_module("fleet.common_pb2").Place
    lot = importlib.import_module("fleet.trucks_pb2").Truck.Lot
    sent = await trucks.Send(place(name="Bonn"), {"k": "v"})
    await trucks.Park(lot(number=4))
    worker = Worker(adapter, registry, "q", concurrency=1, wait_s=0.05)
    await worker.run()
    assert seen == [("Bonn", "v"), 4]
    assert len(sent) == 36
    assert adapter.dead_letters == []


async def test_a_method_nobody_overrode_fails_its_messages(fleet: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"fleet\.v1\.Trucks\.Send"):
        await fleet.TrucksConsumer().Send(None, None)


def test_names_topics_and_comments(fleet: ModuleType) -> None:
    assert fleet.TrucksProducer.topic == fleet.TrucksConsumer.topic == "fleet.v1.Trucks"
    assert fleet.TrucksProducer.Send.__doc__ == "Sends a 'truck' \\ somewhere."
    assert fleet.TrucksProducer.Park.__doc__ == "fleet.v1.Trucks.Park"


def test_streams_are_left_out(fleet: ModuleType) -> None:
    assert not hasattr(fleet.TrucksProducer, "Watch")
    assert not hasattr(fleet, "OnlyStreamsProducer")


def test_a_file_without_a_package(tmp_path: Path) -> None:
    (tmp_path / "bare.proto").write_text(NO_SERVICE)
    ran = protoc(tmp_path, "bare.proto")
    assert ran.returncode == 0, ran.stderr
    text = (tmp_path / "bare_grpcq.py").read_text()
    assert 'topic = "Bare"' in text
    compile(text, "bare_grpcq.py", "exec")
