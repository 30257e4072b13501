"""What each protocol can carry: everything else is refused as wrong usage, broker or not."""

import pytest
import typer

from headrace.cli.doors import PROTOCOLS
from headrace.cli.rules import RULES, check_options, headers_of
from tests.unit.cli.doubles import Shell

GIVEN = {
    "--qos": ("1",), "--retries": ("0",), "--header": ("a=b",), "--service": ("shop.Orders",), "--action": ("Placed",),
    "--id": ("one",), "--subscription": ("7",), "--keep": (), "--dead": (), "--nack": (), "--auto-commit": (),
    "--push": (), "--pull": (),
}  # fmt: skip
OF_PUBLISH = ("--qos", "--retries", "--header", "--service", "--action", "--id")
OF_CONSUME = ("--qos", *(option for option in RULES if option not in OF_PUBLISH))


def command_for(option: str, protocol: str) -> tuple[str, ...]:
    command = ("publish", "sspq", "hi") if option in OF_PUBLISH else ("consume", "sspq", "-n", "1")
    return (*command, "--protocol", protocol, option, *GIVEN[option])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("option", RULES)
def test_an_option_is_refused_where_the_protocol_cannot_carry_it(shell: Shell, protocol: str, option: str) -> None:
    rule = RULES[option]
    scheme = {"fujin": "quic", "grpcq": "grpc"}.get(protocol, "tcp")
    code = shell(*command_for(option, protocol), "--endpoint", f"{scheme}://127.0.0.1:1")
    told = " ".join(shell.err.replace("│", " ").split())
    if protocol in rule.protocols:
        assert code == 1
        assert "no broker answers" in told
    else:
        assert code == 2
        assert option in told
        assert f"only {' and '.join(rule.protocols)} know" in told
        assert f"{protocol} does not" in told


def test_every_rule_is_about_an_option_that_exists() -> None:
    assert set(GIVEN) == set(RULES)
    assert all(set(rule.protocols) < set(PROTOCOLS) for rule in RULES.values())


@pytest.mark.parametrize("absent", [None, False, []])
def test_an_option_that_was_not_given_is_never_refused(absent: object) -> None:
    for protocol in PROTOCOLS:
        check_options(protocol, dict.fromkeys(RULES, absent))


def test_zero_retries_count_as_given() -> None:
    with pytest.raises(typer.BadParameter):
        check_options("blipmq", {"--retries": 0})


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", "orders", "one", "two", "-p", "grpcq", "--id", "x"),
        ("publish", "orders", "one", "-p", "fujin", "--header", "no-value"),
        ("publish", "orders", "one", "-p", "fujin", "--header", "=value"),
        ("publish", "orders", "one", "-p", "sspq", "--retries", "256"),
        ("consume", "orders", "-p", "sspq", "--no-ack"),
        ("consume", "orders", "-p", "sspq", "--no-ack", "-n", "2"),
        ("consume", "orders", "-p", "grpcq", "--no-ack", "--nack"),
        ("consume", "orders", "-p", "fujin", "--nack", "--auto-commit"),
        ("consume", "orders", "-p", "fujin", "--auto-commit", "--push", "-n", "3"),
    ],
    ids=" ".join,
)
def test_contradictions_are_wrong_usage_even_without_a_broker(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell(*arguments, "--data-dir", "no-such-directory") == 2
    assert not shell.out


@pytest.mark.parametrize("command", ["publish", "consume"])
def test_sspq_reaches_its_one_queue_only(shell: Shell, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (command, "orders", *(("hi",) if command == "publish" else ("-n", "1")), "-p", "sspq")
    assert shell(*arguments, "--endpoint", "tcp://127.0.0.1:1") == 2
    assert "'sspq'" in shell.err
    monkeypatch.setenv("HEADRACE_SSPQ__TOPIC", "orders")
    assert shell(*arguments, "--endpoint", "tcp://127.0.0.1:1") == 1


def test_headers_keep_their_order_and_their_equals_signs() -> None:
    assert headers_of(["a=1", "b=", "a=x=y"]) == [("a", "1"), ("b", ""), ("a", "x=y")]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("command", [("publish", "sspq", "hi"), ("consume", "sspq", "-n", "1")])
@pytest.mark.parametrize("key", ["", "bad"])
def test_a_key_that_nobody_looks_at_is_said_to_be_unused(
    shell: Shell, protocol: str, command: tuple[str, ...], key: str
) -> None:
    scheme = {"fujin": "quic", "grpcq": "grpc"}.get(protocol, "tcp")
    given = ("--key", key) if key else ()
    shell(*command, "--protocol", protocol, "--endpoint", f"{scheme}://127.0.0.1:1", *given)
    assert ("has no keys" in shell.err) is (bool(key) and protocol in ("sspq", "fujin"))
