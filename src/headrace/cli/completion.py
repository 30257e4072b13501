"""Completion of topic names from a running broker; silent and quick when there is none."""

import http.client
import os

import typer

from headrace.cli.target import DEV_KEY, find_broker
from headrace.model.errors import HeadraceError

TIMEOUT_S = 0.5


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """The topics, beginning with what was typed, of the broker that the options typed so far name."""
    from headrace.cli.api import ApiClient

    typed = context.params
    key = typed.get("key") or os.environ.get("HEADRACE_KEY", DEV_KEY)
    try:
        places = (typed.get("data_dir"), typed.get("config"), typed.get("endpoint"))
        target = find_broker(*places, key, typed.get("ca"), typed.get("cert"))
        with ApiClient(target, timeout_s=TIMEOUT_S) as api:
            found = api.get("/api/topics", {"prefix": incomplete})["topics"]
    except (HeadraceError, OSError, http.client.HTTPException, ValueError, KeyError):
        return []
    return [item["topic"] for item in found if item["topic"].startswith(incomplete)]
