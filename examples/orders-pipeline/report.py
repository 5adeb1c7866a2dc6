"""Ask the table of orders with DuckDB, and draw the answer: python report.py LAKE PICTURE

The table is a Delta table that `braid spark archive` writes. This program knows nothing of Redis.
"""

import sys
from pathlib import Path

import duckdb
import matplotlib
from deltalake import DeltaTable

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

QUERY = """
WITH orders AS (
    SELECT map_from_entries(list_transform(fields, lambda f: (f.name, decode(f.value)))) AS field
    FROM archived
)
SELECT
    country,
    time_bucket(INTERVAL 10 MINUTE, field['at']::TIMESTAMPTZ) AS begins,
    sum(field['amount']::DOUBLE) AS amount
FROM orders JOIN customers ON customers.customer = field['customer']
GROUP BY ALL ORDER BY ALL
"""


def main(lake: str, picture: str) -> None:
    with duckdb.connect() as session:
        session.execute("SET TimeZone = 'UTC'")
        session.register("archived", DeltaTable(f"{lake}/orders").to_pyarrow_dataset())
        session.register("customers", session.read_csv(str(Path(__file__).parent / "customers.csv")))
        rows = session.sql(QUERY).fetchall()
    countries = sorted({country for country, _, _ in rows})
    figure, axes = pyplot.subplots(figsize=(9, 4))
    below = dict.fromkeys(sorted({begins for _, begins, _ in rows}), 0.0)
    for country in countries:
        amounts = {begins: amount for name, begins, amount in rows if name == country}
        heights = [amounts.get(begins, 0.0) for begins in below]
        labels = [begins.strftime("%H:%M") for begins in below]
        axes.bar(labels, heights, bottom=list(below.values()), label=country)
        below = {begins: low + amounts.get(begins, 0.0) for begins, low in below.items()}
    axes.set_ylabel("revenue")
    axes.tick_params(axis="x", rotation=60)
    axes.legend(ncols=len(countries), loc="upper center", bbox_to_anchor=(0.5, 1.15), frameon=False)
    figure.tight_layout()
    figure.savefig(picture)
    for country in countries:
        print(f"{country:16} {sum_of(rows, country):12,.2f}")


def sum_of(rows: list[tuple[str, object, float]], country: str) -> float:
    return sum(amount for name, _, amount in rows if name == country)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
