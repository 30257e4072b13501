"""`headrace keys new|hash`: API keys, and the entries of the configuration that let them in."""

import json
import sys
from typing import Annotated

import typer

from headrace.cli.failure import Failure
from headrace.cli.output import Output, escaped
from headrace.cli.target import AsJson

app = typer.Typer(no_args_is_help=True, help="API keys: make one, or hash one you have.")

Globs = Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Only to topics like this; may be repeated.")]
FromGlobs = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Only from topics like this; may be repeated.")
]
Metrics = Annotated[
    bool, typer.Option("--metrics", help="May read the metrics, which tell of all topics; alone, nothing but them.")
]
Name = Annotated[str, typer.Option(help="Who it is for; subscriptions belong to this name, even with a new key.")]


@app.command()
def new(
    name: Name = "", publish: Globs = None, subscribe: FromGlobs = None, metrics: Metrics = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make a key. It is printed once; the configuration keeps only its hash."""
    from headrace.auth import new_key

    key, hashed = new_key()
    entry = entry_for(hashed, name, publish, subscribe, metrics=metrics)
    Output(as_json=as_json).document(
        {"key": key, "entry": entry},
        [
            f"[bold]key[/] (shown once, keep it secret)\n  [green]{escaped(key)}[/]\n",
            "[bold]entry for the configuration[/] (kill -HUP the broker to take it over)",
            f"  [auth]\n  {escaped(toml_line(entry))}".replace("[auth]", r"\[auth]"),
        ],
    )


@app.command("hash")
def hash_command(
    name: Name = "", publish: Globs = None, subscribe: FromGlobs = None, metrics: Metrics = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Hash a key read from standard input, for the configuration."""
    from headrace.auth import KEY_SIZE_MIN, KEY_SIZE_SAFE, hash_key

    key = typer.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not key:
        raise Failure("no key on standard input", "For example: `headrace keys hash < keyfile`.")
    output = Output(as_json=as_json)
    if len(key) < KEY_SIZE_SAFE:
        how = "can be found out by trying" if len(key) < KEY_SIZE_MIN else "may be guessed"
        output.note(f"a key of {len(key)} characters {how}; `headrace keys new` makes one that nobody can guess")
    entry = entry_for(hash_key(key), name, publish, subscribe, metrics=metrics)
    output.document({"entry": entry}, [escaped(toml_line(entry))])


def entry_for(
    hashed: str, name: str, publish: list[str] | None, subscribe: list[str] | None, *, metrics: bool = False
) -> dict[str, str | list[str] | bool]:
    """What `auth.api_keys` needs to know of a key."""
    entry: dict[str, str | list[str] | bool] = {"hash": hashed}
    if name:
        entry["name"] = name
    if publish or subscribe:
        entry["publish"] = publish or []
        entry["subscribe"] = subscribe or []
    if metrics:
        entry["metrics"] = True
    return entry


def toml_line(entry: dict[str, str | list[str] | bool]) -> str:
    """The entry as TOML; JSON's strings and lists are TOML's too."""
    pairs = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items())
    return f"api_keys = [{{ {pairs} }}]"
