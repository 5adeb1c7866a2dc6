"""What makes the clients of redis-py's Sentinels ours; shared by the two Sentinels."""

from typing import Any, ClassVar

from braidstream.clients.shared import opened


class SentinelClients:
    """To be put before redis-py's Sentinel."""

    client_class: ClassVar[Any]

    def master_for(
        self,
        service_name: str,
        redis_class: Any = None,
        *args: Any,
        idempotent: bool = False,
        producer: str | bytes | None = None,
        **kwargs: Any,
    ) -> Any:
        session = opened(idempotent, producer)
        kind = redis_class or self.client_class
        client = super().master_for(service_name, kind, *args, **kwargs)  # type: ignore[misc]
        if idempotent:
            client.session = session
        return client

    def slave_for(self, service_name: str, redis_class: Any = None, *args: Any, **kwargs: Any) -> Any:
        kind = redis_class or self.client_class
        return super().slave_for(service_name, kind, *args, **kwargs)  # type: ignore[misc]
