"""Where a process listens: HOST:PORT, or a Unix socket; and from where its clients come."""

from dataclasses import dataclass
from ipaddress import ip_address, ip_network


@dataclass(frozen=True, slots=True)
class Listen:
    """HOST:PORT, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    path: str | None = None

    @staticmethod
    def parse(text: str) -> "Listen":
        """HOST:PORT, PORT on loopback, or unix:/path."""
        if text.startswith("unix:"):
            return Listen(path=text.removeprefix("unix:").replace("///", "/", 1))
        host, colon, port = (text if ":" in text else f"127.0.0.1:{text}").rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is no address to listen on. Write HOST:PORT, PORT or unix:/path.")
        return Listen(host.strip("[]"), int(port))

    @staticmethod
    def parse_http(text: str) -> "Listen":
        """For probes: HOST:PORT, or PORT on loopback. No Unix socket: Prometheus cannot scrape one."""
        if text.startswith("unix:"):
            raise ValueError(f"{text!r} is no address for HTTP. Write HOST:PORT, or PORT for loopback.")
        return Listen.parse(text if ":" in text.lstrip(":") else text.lstrip(":"))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def plain_address(host: str) -> str:
    """`::ffff:10.0.0.1` is 10.0.0.1."""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    return str(getattr(found, "ipv4_mapped", None) or found)


def network_of(host: str) -> str:
    """Where a client comes from: its IPv4 address, or its network of IPv6, which has many addresses."""
    address = plain_address(host).partition("%")[0]
    return str(ip_network(f"{address}/64", strict=False)) if ":" in address else address
