"""The `braid` command: one file per verb, `main.py` joins them."""

import sys


def main() -> None:
    """Its packages are an extra: a program that uses the client needs none of them."""
    try:
        from braidstream.cli.main import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "pydantic"):
            raise
        sys.exit(f"braid needs {error.name}, which is not installed. Run: pip install 'braidstream[cli]'")
    app()
