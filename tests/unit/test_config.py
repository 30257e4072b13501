"""Reading a configuration: three sources, one winner, and errors that say what to change."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.settings import BrokerSettings, RetryPolicy, TopicSettings
from headrace.config import (
    Address,
    CertificateEntry,
    Config,
    ConfigError,
    KeyEntry,
    TopicSection,
    dev,
    environment_name,
    known_keys,
    load,
    parse_address,
)
from headrace.log.settings import LogSettings, SyncMode, SyncPolicy
from headrace.model.batch import Protocol

ROOT = Path(__file__).resolve().parents[2]

FULL = """
data_dir = "/var/lib/headrace"
[listen]
blipmq = "0.0.0.0:5555"
sspq = ""
http = "[::1]:0"
[log]
sync = "interval_ms:5"
[auth]
api_keys = ["plain", {name = "billing", key = "secret", publish = ["orders.*"]}]
[topics."orders.new"]
ttl_s = 15
max_attempts = 9
[fujin]
dialect = "reference"
"""

FLAT = """
bind_addr: 0.0.0.0
port: 7000
metrics_port: 7001
wal_path: /var/lib/blipmq/blipmq.wal
fsync_policy: "every_n:64"
max_retries: 5
retry_backoff_ms: 250
allowed_api_keys: [one, two]
enable_tokio_console: false
"""


def write(tmp_path: Path, text: str, name: str = "headrace.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def failure(tmp_path: Path, text: str, name: str = "headrace.toml") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text, name))
    return caught.value


def test_nothing_at_all_gives_the_defaults() -> None:
    config = load(None, {}, {})
    assert config == Config()
    assert config.listen.blipmq == Address("127.0.0.1", 5555)
    assert config.auth.api_keys == ()


def test_a_toml_file_sets_every_kind_of_value(tmp_path: Path) -> None:
    config = load(write(tmp_path, FULL))
    assert config.data_dir == "/var/lib/headrace"
    assert config.listen.sspq is None
    assert config.listen.http == Address("::1", 0)
    assert config.log.sync == "interval_ms:5"
    assert config.topics["orders.new"].ttl_s == 15
    assert config.topics["orders.new"].backoff_ms is None
    assert config.auth.api_keys == ("plain", KeyEntry(name="billing", key="secret", publish=("orders.*",)))
    assert "sspq" not in config.listen.addresses()


def test_yaml_says_the_same_as_toml(tmp_path: Path) -> None:
    text = """
data_dir: /var/lib/headrace
listen: {blipmq: "0.0.0.0:5555", sspq: "", http: "[::1]:0"}
log: {sync: "interval_ms:5"}
auth:
  api_keys:
    - plain
    - {name: billing, key: secret, publish: ["orders.*"]}
topics:
  orders.new: {ttl_s: 15, max_attempts: 9}
fujin: {dialect: reference}
"""
    assert load(write(tmp_path, text, "headrace.yaml")) == load(write(tmp_path, FULL))


def test_an_empty_yaml_file_is_no_configuration(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing\n", "headrace.yml")) == Config()


@pytest.mark.parametrize("name", ["blipmq.yaml", "blipmq.toml"])
def test_the_flat_file_of_the_original_daemon_is_understood(tmp_path: Path, name: str) -> None:
    text = FLAT if name.endswith("yaml") else FLAT.replace(": ", " = ").replace("= 0.0.0.0", '= "0.0.0.0"')
    text = text.replace("= /var/lib/blipmq/blipmq.wal", '= "/var/lib/blipmq/blipmq.wal"')
    text = text.replace("= [one, two]", '= ["one", "two"]')
    config = load(write(tmp_path, text, name))
    assert config.listen.blipmq == Address("0.0.0.0", 7000)
    assert config.listen.http == Address("127.0.0.1", 7001)
    assert config.data_dir == "/var/lib/blipmq/blipmq"
    assert config.log.sync == "every_n:64"
    assert (config.retry.max_attempts, config.retry.backoff_ms) == (5, 250)
    assert config.auth.api_keys == ("one", "two")


def test_only_a_configuration_in_the_originals_style_keeps_its_literal_timer(tmp_path: Path) -> None:
    assert Config().retry.ack_wait_ms == load(write(tmp_path, FULL)).retry.ack_wait_ms == 30_000
    assert load(write(tmp_path, FLAT, "blipmq.yaml")).retry.ack_wait_ms == 0
    assert load(None, {"BLIPMQ_PORT": "7000"}).retry.ack_wait_ms == 0
    assert load(write(tmp_path, "port = 7000\n[retry]\nack_wait_ms = 9")).retry.ack_wait_ms == 9
    environ = {"HEADRACE_RETRY__ACK_WAIT_MS": "8"}
    assert load(write(tmp_path, FLAT, "blipmq.yaml"), environ).retry.ack_wait_ms == 8


ORIGINAL_ENVIRONMENT: dict[str, tuple[str, Callable[[Config], object], object]] = {
    "BIND_ADDR": ("::1", lambda c: str(c.listen.blipmq), "[::1]:7000"),
    "PORT": ("6000", lambda c: str(c.listen.blipmq), "0.0.0.0:6000"),
    "METRICS_ADDR": ("0.0.0.0", lambda c: str(c.listen.http), "0.0.0.0:7001"),
    "METRICS_PORT": ("6001", lambda c: str(c.listen.http), "127.0.0.1:6001"),
    "WAL_PATH": ("/elsewhere/b.wal", lambda c: c.data_dir, "/elsewhere/b"),
    "FSYNC_POLICY": ("interval_ms:20", lambda c: c.log.sync, "interval_ms:20"),
    "MAX_RETRIES": ("9", lambda c: c.retry.max_attempts, 9),
    "RETRY_BACKOFF_MS": ("7", lambda c: c.retry.backoff_ms, 7),
    "ALLOWED_API_KEYS": ("a, b", lambda c: c.auth.api_keys, ("a", "b")),
    "TLS_CERT_PATH": ("c.pem", lambda c: c.tls.cert, "c.pem"),
    "ENABLE_TOKIO_CONSOLE": ("on", lambda c: c.listen.sspq, Address("127.0.0.1", 8888)),
}


@pytest.mark.parametrize("prefix", ["", "BLIPMQ_"])
@pytest.mark.parametrize("name", ORIGINAL_ENVIRONMENT)
def test_the_originals_environment_goes_before_its_file(tmp_path: Path, name: str, prefix: str) -> None:
    text, read, expected = ORIGINAL_ENVIRONMENT[name]
    path = write(tmp_path, FLAT + "tls_key_path: k.pem\ntls_cert_path: other.pem\n", "blipmq.yaml")
    plain, changed = load(path), load(path, {prefix + name: text})
    assert read(changed) == expected
    assert name == "ENABLE_TOKIO_CONSOLE" or read(plain) != expected
    both = {"BLIPMQ_" + name: text, name: "nonsense"}
    assert load(path, both) == changed


def test_ours_goes_before_the_originals_environment(tmp_path: Path) -> None:
    environ = {"BLIPMQ_FSYNC_POLICY": "none", "HEADRACE_LOG__SYNC": "every_n:2"}
    assert load(write(tmp_path, FLAT, "blipmq.yaml"), environ).log.sync == "every_n:2"


def test_the_originals_environment_may_name_the_file_or_be_all_there_is(tmp_path: Path) -> None:
    path = write(tmp_path, FLAT, "blipmq.yaml")
    assert load(None, {"BLIPMQ_CONFIG": str(path)}) == load(path)
    assert load(write(tmp_path, FULL), {"BLIPMQ_CONFIG": str(path)}) == load(write(tmp_path, FULL))
    assert load(None, {"BLIPMQ_PORT": "7000"}).listen.blipmq == Address("127.0.0.1", 7000)
    assert load(None, {"PORT": "7000", "CONFIG": str(path)}) == Config()


def test_the_originals_environment_says_so_where_it_sets_nothing_or_nonsense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"BLIPMQ_PORT: sets nothing.*our own name"):
        load(write(tmp_path, FULL), {"BLIPMQ_PORT": "7000"})
    for name, text in (("PORT", "many"), ("BLIPMQ_MAX_RETRIES", "0"), ("FSYNC_POLICY", "often")):
        with pytest.raises(ConfigError, match=f"environment variable {name}"):
            load(write(tmp_path, FLAT, "blipmq.yaml"), {name: text})


def test_a_flat_key_beside_ours_for_the_same_setting_is_refused(tmp_path: Path) -> None:
    error = failure(tmp_path, 'fsync_policy = "always"\n[log]\nsync = "none"\n')
    assert error.key == "fsync_policy"
    assert "log.sync" in str(error)


def test_a_bad_flat_value_is_reported_under_the_name_the_user_wrote(tmp_path: Path) -> None:
    assert "max_retries" in str(failure(tmp_path, "max_retries = 0"))
    assert failure(tmp_path, 'port = "x"').key == "port"


def test_the_environment_wins_over_the_file_and_flags_over_both(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    environ = {
        "HEADRACE_DATA_DIR": "/env",
        "HEADRACE_LOG__SYNC": "none",
        "HEADRACE_RETRY__MAX_ATTEMPTS": "7",
        "HEADRACE_SSPQ__DEAD_LETTER": "false",
        "HEADRACE_AUTH__API_KEYS": "a, b",
        "HEADRACE_TOPICS__orders.new__TTL_S": "3",
        "HEADRACE_KEY": "a client's own business",
        "PATH": "/bin",
    }
    config = load(path, environ, {"data_dir": "/flag", "listen.blipmq": "127.0.0.1:0"})
    assert config.data_dir == "/flag"
    assert config.listen.blipmq == Address("127.0.0.1", 0)
    assert config.log.sync == "none"
    assert config.retry.max_attempts == 7
    assert config.sspq.dead_letter is False
    assert config.auth.api_keys == ("a", "b")
    assert config.topics["orders.new"].ttl_s == 3
    assert config.topics["orders.new"].max_attempts == 9


def test_a_list_in_the_environment_may_be_json() -> None:
    environ = {"HEADRACE_AUTH__API_KEYS": '[{"name": "x", "key": "k"}]'}
    assert load(None, environ).auth.api_keys == (KeyEntry(name="x", key="k"),)


def test_routes_are_pairs_of_texts_in_a_file_and_in_the_environment(tmp_path: Path) -> None:
    routes = {"in": "orders", "back": "returns"}
    assert load(write(tmp_path, '[fujin.routes]\nin = "orders"\nback = "returns"')).fujin.routes == routes
    assert load(None, {"HEADRACE_FUJIN__ROUTES": "in=orders, back = returns"}).fujin.routes == routes
    with pytest.raises(ConfigError, match="name=text"):
        load(None, {"HEADRACE_FUJIN__ROUTES": "in=orders,returns"})


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ('[log]\nsnyc = "always"', "log.snyc", "did you mean log.sync?"),
        ("[lgo]\n", "lgo", "did you mean log?"),
        ("data_dri = 1", "data_dri", "did you mean data_dir?"),
        ('[topics."a.b"]\nttl = 1', 'topics."a.b".ttl', 'did you mean topics."a.b".ttl_s?'),
        ("[log]\nsegment_bytes = true", "log.segment_bytes", "expected int"),
        ("[log]\nsegment_bytes = 1", "log.segment_bytes", "4096"),
        ('[log]\nsync = "every_n:0"', "log.sync", "every_n needs a number"),
        ('[listen]\nhttp = "9100"', "listen.http", "host:port"),
        ('[listen]\nhttp = "h:99999"', "listen.http", "65535"),
        ('[listen]\nhttp = "::1:80"', "listen.http", "brackets"),
        ("[listen]\nhttp = 9100", "listen.http", "host:port"),
        ("[retry]\nmax_attempts = 0", "retry.max_attempts", ">= 1"),
        ("retry = 3", "retry", "expected a table"),
        ("[topics]\norders = 3", "topics.orders", "expected a table"),
        ('[fujin]\ndialect = "docment"', "fujin.dialect", "did you mean document?"),
        ("[fujin]\nroutes = { in = 3 }", "fujin.routes", "a text each"),
        ('[tls]\ncert = "a.pem"', "tls.key", "together"),
        ('[tls]\nclient_ca = "a.pem"', "tls.client_ca", "need cert"),
        ("[auth]\napi_keys = [1]", "auth.api_keys[0]", "a key, a hash or a table"),
        ('[auth]\napi_keys = [{name = "x"}]', "auth.api_keys[0].hash", "exactly one"),
        ('[auth]\napi_keys = [{nmae = "x"}]', "auth.api_keys[0].nmae", "did you mean auth.api_keys[0].name?"),
        ('[auth]\napi_keys = "k"', "auth.api_keys", "expected a list"),
        ('[auth]\ncertificates = "k"', "auth.certificates", "expected a list"),
        ("[auth]\ncertificates = [1]", "auth.certificates[0]", "expected a table"),
        ('[auth]\ncertificates = [""]', "auth.certificates[0].name", "length >= 1"),
        ("[[auth.certificates]]\npublish = []", "auth.certificates[0].name", "common name"),
        ('[auth]\ncertificates = [{name = "x", key = "k"}]', "auth.certificates[0].key", "unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_the_way_out(tmp_path: Path, text: str, key: str, hint: str) -> None:
    error = failure(tmp_path, text)
    assert error.key == key
    assert hint in str(error)
    assert str(error).startswith(str(tmp_path / "headrace.toml"))


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "= 1"), ("a.yaml", "a: [1"), ("a.yaml", "- 1"), ("a.toml", "\ufeffx")]
)
def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, name: str, text: str) -> None:
    assert str(failure(tmp_path, text, name)).startswith(str(tmp_path / name))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.toml")


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"HEADRACE_LOG__SNYC.*did you mean HEADRACE_LOG__SYNC"):
        load(None, {"HEADRACE_LOG__SNYC": "always"})
    with pytest.raises(ConfigError, match=r"environment variable HEADRACE_RETRY__BACKOFF_MS: retry.backoff_ms"):
        load(None, {"HEADRACE_RETRY__BACKOFF_MS": "soon"})


@given(st.sampled_from(known_keys()), st.data())
def test_a_variable_that_was_surely_meant_to_set_a_key_is_refused(key: tuple[str, ...], data: st.DataObject) -> None:
    right = environment_name(key)
    if "*" in right or "__" not in right:
        return
    wrong = right.replace("__", "_")
    if data.draw(st.booleans()):
        at = data.draw(st.integers(len("HEADRACE_"), len(wrong)))
        wrong = wrong[:at] + data.draw(st.sampled_from("AEXZ")) + wrong[at:]
    wrong = data.draw(st.sampled_from([wrong, wrong.lower()]))
    with pytest.raises(ConfigError, match=f"environment variable {wrong}: sets nothing; did you mean HEADRACE_"):
        load(None, {wrong: "x"})


def test_a_forgotten_underscore_is_named_with_the_right_name() -> None:
    for key in known_keys():
        right = environment_name(key)
        if "*" not in right and "__" in right:
            with pytest.raises(ConfigError, match=f"did you mean {right}\\?"):
                load(None, {right.replace("__", "_"): "x"})


@pytest.mark.parametrize(
    "name",
    [
        "HEADRACE_KEY", "HEADRACE_CA", "HEADRACE_CERT", "HEADRACE_PURE", "HEADRACE_FLIGHT", "HEADRACE_KILL_CYCLES",
        "HEADRACE_PORT", "HEADRACE_SERVICE_HOST", "HEADRACE_SERVICE_PORT_BLIPMQ", "HEADRACE_PORT_5555_TCP_ADDR",
        "HEADRACE_LISTEN_PORT", "HEADRACE_LOG_SERVICE_HOST", "HEADRACE_GRPC_PORT_50051_TCP", "HEADRACE_IMAGE_TAG",
    ],
)  # fmt: skip
def test_variables_that_are_no_settings_pass(name: str) -> None:
    assert load(None, {name: "anything"}) == Config()


def test_keys_appear_neither_in_errors_nor_in_representations(tmp_path: Path) -> None:
    error = failure(tmp_path, '[auth]\napi_keys = ["hunter2", {key = "hunter2", hash = "hunter2"}]')
    config = load(None, {"HEADRACE_AUTH__API_KEYS": '["hunter2", {"name": "n", "key": "hunter2"}]'})
    assert "hunter2" not in str(error) + repr(config) + repr(config.auth.api_keys[1])


def test_the_log_section_says_how_the_log_is_opened() -> None:
    assert Config().log_settings() == LogSettings()
    config = load(None, {"HEADRACE_LOG__SYNC": "every_n:9", "HEADRACE_LOG__RETENTION_HARD": "1"})
    assert config.log_settings() == LogSettings(sync=SyncPolicy(SyncMode.EVERY_N, 9), retention_hard=True)


def test_retry_broker_and_topic_sections_make_the_brokers_settings(tmp_path: Path) -> None:
    assert Config().broker_settings() == BrokerSettings(dedup_door_s={Protocol.GRPCQ: 600})
    settings = load(write(tmp_path, FULL), {"HEADRACE_RETRY__BACKOFF_MS": "7"}).broker_settings()
    assert settings.retry == RetryPolicy(backoff_ms=7)
    assert settings.topics == {"orders.new": TopicSettings(ttl_s=15, max_attempts=9)}


def test_dev_lets_this_machine_in_and_no_other() -> None:
    config = dev(Config(), "/tmp/x")
    assert config.data_dir == "/tmp/x"
    assert config.auth.api_keys == (KeyEntry(name="dev", key="dev-key"),)
    assert config.http.allow_unauthenticated
    with pytest.raises(ConfigError, match=r"listen\.http"):
        dev(load(None, {"HEADRACE_LISTEN__HTTP": "0.0.0.0:9100"}))


@given(st.sampled_from(known_keys()), st.integers(min_value=0), st.sampled_from("abcxyz_"))
def test_any_misspelt_key_is_an_error_that_names_it(key: tuple[str, ...], position: int, letter: str) -> None:
    leaf = key[-1]
    at = position % (len(leaf) + 1)
    wrong = (*key[:-1], leaf[:at] + letter + leaf[at:])
    if wrong in known_keys():
        return
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {".".join(wrong): "x"})
    assert caught.value.key.replace('"', "") == ".".join(wrong)
    assert "unknown key" in caught.value.detail


@given(
    st.sampled_from(known_keys()),
    st.one_of(st.dates(), st.binary(), st.lists(st.none(), min_size=1), st.none().map(lambda _: object())),
)
def test_a_value_of_an_impossible_type_is_an_error_that_names_its_key(key: tuple[str, ...], value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {".".join(key): value})
    named = caught.value.key.replace('"', "")
    assert named == ".".join(key) or named.startswith(".".join(key) + "[")
    assert caught.value.source == "command line"


@given(st.sampled_from(known_keys()), st.text())
def test_no_text_in_the_environment_raises_anything_but_a_config_error(key: tuple[str, ...], text: str) -> None:
    try:
        load(None, {environment_name(key): text})
    except ConfigError as error:
        assert key[0] == error.key.split(".")[0]  # noqa: PT017


@given(st.text())
def test_an_address_that_parses_prints_as_it_was_read(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert address is None or parse_address(str(address)) == address


def shown(value: object) -> str:
    """A default as the reference writes it."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value in ("", ()):
        return '`""`' if value == "" else "`[]`"
    return f"`{value}`"


def test_the_reference_in_the_docs_has_every_key_with_its_default() -> None:
    rows = [
        line.split(" | ") for line in (ROOT / "docs/operations.md").read_text().splitlines() if line.startswith("| `")
    ]
    documented = {row[0].strip("| `"): row[1].strip() for row in rows}
    for key in known_keys():
        name = ".".join(key)
        if key[0] == "topics":
            default = getattr(TopicSection(), key[2])
            general = "as `broker`" if key[2] == "dedup_s" else "as `retry`"
            assert documented[name] == (general if default is None else shown(default))
        else:
            section = getattr(Config(), key[0])
            assert documented[name] == shown(getattr(section, key[1]) if len(key) > 1 else section)


def test_the_example_in_toml_is_the_default_and_names_every_key() -> None:
    path = ROOT / "examples/headrace.toml"
    assert load(path) == Config()
    text = path.read_text()
    assert not [key for key in known_keys() if f"{key[-1]} = " not in text]


def test_the_example_in_yaml_can_be_used() -> None:
    config = load(ROOT / "examples/headrace.yaml")
    assert config.listen.addresses().keys() == {"blipmq", "http"}
    assert config.topics["orders.new"].max_attempts == 5
    entry = config.auth.api_keys[0]
    assert isinstance(entry, KeyEntry)
    assert len(entry.hash) == len("sha256:") + 32 + 1 + 64


@pytest.mark.parametrize("trying", [False, True])
@pytest.mark.parametrize(
    ("file", "environ"),
    [
        ('[auth]\ncertificates = ["a", {name = "b", publish = ["x"]}]', {}),
        ('[[auth.certificates]]\nname = "a"\n[[auth.certificates]]\nname = "b"\npublish = ["x"]', {}),
        ('[auth]\ncertificates = ["c"]', {"HEADRACE_AUTH__CERTIFICATES": '["a", {"name": "b", "publish": ["x"]}]'}),
    ],
)
def test_certificates_are_names_or_tables(tmp_path: Path, file: str, environ: dict[str, str], trying: bool) -> None:
    config = load(write(tmp_path, file), environ)
    if trying:
        config = dev(config)
    expected = (CertificateEntry(name="a"), CertificateEntry(name="b", publish=("x",)))
    assert config.auth.certificates == expected
    assert load(None, {"HEADRACE_AUTH__CERTIFICATES": "a, b c"}).auth.certificates[1].name == "b c"
