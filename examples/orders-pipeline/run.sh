#!/bin/sh
# The whole pipeline from nothing, in a folder of its own: sh run.sh [ORDERS] [FOLDER]
# It starts two regions on this machine, and stops them at the end.
set -eu
orders=${1:-20000}
folder=${2:-$(mktemp -d)}
mkdir -p "$folder"
place=$(cd "$(dirname "$0")" && pwd)
export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$(command -v python)}"

echo "== two regions, in $folder"
braid up --regions 2 --port 0 --json --dir "$folder/regions" > "$folder/up.json" 2> "$folder/up.log" &
up=$!
trap 'kill $up 2>/dev/null; wait $up 2>/dev/null || true' EXIT INT TERM
until [ -s "$folder/up.json" ]; do
    kill -0 $up 2>/dev/null || { cat "$folder/up.log"; exit 1; }
    sleep 0.2
done
urls=$(python -c 'import json, sys; print(*[each["url"] for each in json.load(sys.stdin)["regions"]])' < "$folder/up.json")
set -- $urls

echo "== $orders orders"
python "$place/produce.py" "$orders" "$1" "$2"

echo "== revenue and alerts, by Spark, from region 1"
python "$place/pipeline.py" "$folder/checkpoints" "$1" "$2" 2> "$folder/spark.log" || { tail -20 "$folder/spark.log"; exit 1; }

echo "== the same again, in region 2: nothing is written twice"
python "$place/pipeline.py" "$folder/checkpoints" "$2" "$1" 2>> "$folder/spark.log" || { tail -20 "$folder/spark.log"; exit 1; }
python "$place/show.py" "$1" "$2"

echo "== every order as a row of a Delta table"
braid spark archive --url "$1" --streams orders --lake "$folder/lake" --json 2>> "$folder/spark.log" > "$folder/archive.json" || { tail -20 "$folder/spark.log"; exit 1; }

echo "== revenue by country, by DuckDB"
python "$place/report.py" "$folder/lake" "$folder/revenue.png"
echo "picture: $folder/revenue.png"
