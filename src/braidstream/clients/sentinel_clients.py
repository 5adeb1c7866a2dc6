"""Makes redis-py's Sentinels return our clients, which leave a demoted primary at once; shared by both."""

from typing import Any, ClassVar

from braidstream.clients.shared import new_session


class SentinelClients:
    """A base class to list before redis-py's Sentinel."""

    client_class: ClassVar[Any]
    pool_class: ClassVar[Any]

    def master_for(
        self,
        service_name: str,
        redis_class: Any = None,
        *args: Any,
        idempotent: bool = False,
        producer: str | bytes | None = None,
        **kwargs: Any,
    ) -> Any:
        session = new_session(idempotent, producer)
        kind = redis_class or self.client_class
        if not args:
            kwargs.setdefault("connection_pool_class", self.pool_class)
        client = super().master_for(service_name, kind, *args, **kwargs)  # type: ignore[misc]
        if idempotent:
            client.session = session
        return client

    def slave_for(self, service_name: str, redis_class: Any = None, *args: Any, **kwargs: Any) -> Any:
        kind = redis_class or self.client_class
        return super().slave_for(service_name, kind, *args, **kwargs)  # type: ignore[misc]
