"""`headrace demo`: a shop's orders through four doors, kill -9 in the middle of it, and the books afterwards."""

import typer


def demo() -> None:
    """See it work: orders through four doors, kill -9, restart, tables, and everything counted. A minute or two."""
    from headrace.cli.demo.story import tell

    raise typer.Exit(0 if tell() else 1)
