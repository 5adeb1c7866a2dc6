"""docs/guides/spark.md runs as it is printed."""

import re
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.regions import become, client_of
from tests.support.servers import Engine

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "spark.md"


def test_the_guide_runs_as_printed(spark: SparkSession, engine: Engine, tmp_path: Path) -> None:
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        for n, amount in enumerate(("5", "15", "25")):
            client.xadd("orders", {"order": n, "amount": amount}, id=f"{1_700_000_000_000 + n}-5")
        client.execute_command("XINFO", "STREAM", "orders")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    code = "\n".join(blocks)
    exec(
        compile(code, str(GUIDE), "exec"),
        {"spark": spark, "URL": engine.url, "CHECKPOINT": str(tmp_path / "c")},
    )
