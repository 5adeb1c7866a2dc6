"""Pub/sub beside streams: the stream stores messages, the channel sends them to clients that are online."""

import os

import braidstream as redis

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
STREAM, CHANNEL = "example:chat", "example:chat:now"


def main() -> None:
    with redis.from_url(URL, decode_responses=True) as client, client.pubsub() as online:
        client.delete(STREAM)
        online.subscribe(CHANNEL)
        online.get_message(timeout=5)  # the confirmation
        for text in ("hello", "anybody here?"):
            entry = client.xadd(STREAM, {"text": text})
            client.publish(CHANNEL, f"{entry} {text}")
        for _ in range(2):
            message = online.get_message(timeout=5)
            assert message is not None
            print("received:", message["data"].split(" ", 1)[1])
        print("stored:", [fields["text"] for _, fields in client.xrange(STREAM)])


if __name__ == "__main__":
    main()
