"""Show the streams that the pipeline wrote, in each region: python show.py URL..."""

import sys

import braidstream


def main(urls: list[str]) -> None:
    for number, url in enumerate(urls, 1):
        with braidstream.from_url(url, decode_responses=True) as region:
            sums = [(int(row["orders"]), float(row["amount"])) for _, row in region.xrange("revenue")]
            alerts = [int(row["order"]) for _, row in region.xrange("alerts")]
        print(
            f"region {number}: {len(sums)} sums of {sum(orders for orders, _ in sums)} orders, "
            f"{sum(amount for _, amount in sums):,.2f}; {len(alerts)} alerts of {len(set(alerts))} orders"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
