"""Write orders in all regions: python produce.py COUNT URL...

Each order has the time at which it was made, spread over three hours. The n-th order goes to the n-th region,
and so on in turn. Orders have message IDs: sent again within some seconds, they are not added twice.
"""

import csv
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import braidstream

BEGAN = datetime(2026, 11, 16, 9, tzinfo=UTC)
SPAN = timedelta(hours=3)
PLACE = Path(__file__).parent


def orders(count: int) -> list[dict[str, str]]:
    with (PLACE / "customers.csv").open(encoding="utf-8") as file:
        customers = [row["customer"] for row in csv.DictReader(file)]
    return [
        {
            "order": str(number),
            "customer": customers[number * 7 % len(customers)],
            "amount": f"{number * 37 % 1000}.50",
            "at": (BEGAN + SPAN * (number / count) ** 0.6).isoformat(),  # ever more of them
        }
        for number in range(count)
    ]


def main(count: int, urls: list[str]) -> None:
    for place, url in enumerate(urls):
        mine = orders(count)[place :: len(urls)]
        with braidstream.from_url(url) as region, region.pipeline(transaction=False) as pipe:
            for order in mine:
                pipe.xadd("orders", order, idmp=("shop", order["order"]))
            pipe.execute()
        print(f"{len(mine)} orders written in region {place + 1}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
