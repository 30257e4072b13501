"""Writes the Python modules of our .proto files and of the example; needs grpcio-tools (in the `dev` extra)."""

import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "headrace.protocols.grpcq"


def generated() -> dict[Path, bytes]:
    """Every generated file with what it has to hold."""
    return {
        **_of_the_package("grpcq", "grpcq"),
        **_of_the_package("headrace/grpcq/v1/queues", "queues"),
        **_of_the_example(ROOT / "examples" / "orders"),
    }


def _of_the_package(source: str, name: str) -> dict[Path, bytes]:
    """The messages of one file, moved into our package under a short name."""
    with TemporaryDirectory() as scratch:
        compile_proto(ROOT / "proto", f"{source}.proto", f"--python_out={scratch}", f"--pyi_out={scratch}")
        home = ROOT / "src" / PACKAGE.replace(".", "/")
        module = f"'{source.replace('/', '.')}_pb2'".encode()
        found = {}
        for suffix in ("py", "pyi"):
            text = (Path(scratch) / f"{source}_pb2.{suffix}").read_bytes()
            found[home / f"{name}_pb2.{suffix}"] = text.replace(module, f"'{PACKAGE}.{name}_pb2'".encode())
        return found


def _of_the_example(home: Path) -> dict[Path, bytes]:
    """Everything protoc and its plugins make of the example's service."""
    with TemporaryDirectory() as scratch:
        options = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python", "grpcq")]
        compile_proto(home, "orders.proto", *options)
        return {home / path.name: path.read_bytes() for path in Path(scratch).iterdir()}


def compile_proto(folder: Path, source: str, *options: str) -> None:
    """Run protoc. Raises RuntimeError when it refuses; it says on stderr why."""
    well_known = files("grpc_tools").joinpath("_proto")
    with TemporaryDirectory() as scratch:
        plugin = Path(scratch) / "protoc-gen-grpcq"
        plugin.write_text(f"#!/bin/sh\nexec {sys.executable} -m headrace.grpcq.plugin\n")
        plugin.chmod(0o755)
        told = [f"--plugin=protoc-gen-grpcq={plugin}", f"-I{folder}", f"-I{well_known}", *options]
        if protoc.main(["protoc", *told, source]):
            raise RuntimeError(f"protoc refused {source}")


def main() -> int:
    """Write what differs."""
    for path, content in generated().items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
