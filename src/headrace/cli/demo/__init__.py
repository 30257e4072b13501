"""`headrace demo`: a broker, traffic, kill -9 in the middle of it, and the books afterwards."""

import typer


def demo() -> None:
    """See it work: publish, consume, kill -9, restart, and count that nothing was lost. Takes about 20 s."""
    from headrace.cli.demo.story import tell

    raise typer.Exit(0 if tell() else 1)
