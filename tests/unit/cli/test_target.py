"""Which broker the options name."""

import json
from pathlib import Path

import pytest
import typer

from headrace.cli.failure import Failure
from headrace.cli.target import DEV_KEY, endpoints_of, find_broker


def write_endpoints(directory: Path, **endpoints: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "endpoints.json").write_text(json.dumps(endpoints))
    return directory


def test_a_data_directory_names_its_broker(tmp_path: Path) -> None:
    write_endpoints(tmp_path, blipmq="tcp://127.0.0.1:5555", http="http://[::1]:9100")
    target = find_broker(data_dir=tmp_path)
    assert target.address("blipmq") == ("127.0.0.1", 5555)
    assert target.address("http") == ("::1", 9100)
    assert target.key == DEV_KEY
    assert target.source == str(tmp_path / "endpoints.json")


def test_without_options_the_default_directory_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_endpoints(tmp_path / "headrace-data", blipmq="tcp://127.0.0.1:1")
    assert find_broker().address("blipmq") == ("127.0.0.1", 1)


def test_a_directory_nobody_served_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(Failure) as failed:
        find_broker(data_dir=tmp_path / "nowhere")
    assert "nowhere" in failed.value.problem
    assert "headrace serve" in failed.value.advice


def test_an_endpoint_wins_over_everything(tmp_path: Path) -> None:
    write_endpoints(tmp_path, blipmq="tcp://127.0.0.1:5555")
    target = find_broker(data_dir=tmp_path, endpoint="tcp://broker.example:7000", key="k")
    assert target.address("blipmq") == ("broker.example", 7000)
    assert target.key == "k"


@pytest.mark.parametrize("url", ["localhost", "ftp://x:1", "tcp://host", "tcp://host:port", "http://:80"])
def test_an_endpoint_must_be_an_address(url: str) -> None:
    with pytest.raises(typer.BadParameter, match="host:port"):
        find_broker(endpoint=url)


def test_a_missing_listener_is_named_with_those_there_are() -> None:
    target = find_broker(endpoint="tcp://127.0.0.1:5555")
    with pytest.raises(Failure) as failed:
        target.address("http")
    assert "http listener" in failed.value.problem
    assert "tcp://127.0.0.1:5555" in failed.value.problem


def test_a_configuration_leads_to_its_data_directory(tmp_path: Path) -> None:
    data = write_endpoints(tmp_path / "data", blipmq="tcp://127.0.0.1:6001")
    config = tmp_path / "headrace.toml"
    config.write_text(f'data_dir = "{data}"\n')
    assert find_broker(config=config).address("blipmq") == ("127.0.0.1", 6001)


def test_a_configuration_nobody_served_yet_gives_its_addresses(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(f'data_dir = "{tmp_path / "data"}"\n[listen]\nblipmq = "127.0.0.1:6002"\nhttp = ""\ngrpc = ""\n')
    target = find_broker(config=config)
    assert target.endpoints == {
        "blipmq": "tcp://127.0.0.1:6002",
        "sspq": "tcp://127.0.0.1:8888",
        "fujin": "quic://127.0.0.1:4848",
        "flight": "grpc://127.0.0.1:8815",
    }
    assert target.source == str(config)


def test_a_wrong_configuration_names_the_key(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[listen]\nblipmk = "127.0.0.1:6002"\n')
    with pytest.raises(Failure, match=r"listen\.blipmk.*did you mean listen\.blipmq"):
        find_broker(config=config)


def test_a_damaged_endpoints_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text("{")
    with pytest.raises(Failure, match=r"endpoints\.json makes no sense"):
        endpoints_of(tmp_path)


def test_keys_never_show_in_a_repr() -> None:
    assert "secret" not in repr(find_broker(endpoint="tcp://127.0.0.1:1", key="secret"))
