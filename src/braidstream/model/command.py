"""A native command: its words, as the engine gets them."""

Command = tuple[bytes | str | int, ...]
