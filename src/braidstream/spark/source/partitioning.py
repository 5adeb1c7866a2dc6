"""The partitions of a query: large ranges are split, as the user's options ask, and small ones share a task.

grouping.py decides which of them share one.
"""

from collections.abc import Sequence

from braidstream.spark.options import SourceOptions
from braidstream.spark.source.grouping import grouped, tasks_for
from braidstream.spark.source.slices import Range, Slice, split
from braidstream.spark.source.survey import Surveyor


def partitioned(surveyor: Surveyor, options: SourceOptions, parts: Sequence[Range]) -> list[Slice]:
    """The partitions that read these ranges."""
    made, most = _split_large(surveyor, options, parts), options.max_per_partition
    weights = [each.weight for each in made]
    tasks = tasks_for(sum(weights), options.min_partitions, most)
    where = surveyor.url, surveyor.region
    return [Slice(each, *where) for each in grouped(made, weights, tasks, most)]


def _split_large(surveyor: Surveyor, options: SourceOptions, parts: Sequence[Range]) -> list[Range]:
    """Ranges split for minPartitions, in proportion to their sizes, and for maxEntriesPerPartition."""
    weights, most = [max(1, part.weight) for part in parts], options.max_per_partition
    spare = max(0, (options.min_partitions or 0) - len(parts))
    wanted = [1 + round(spare * weight / sum(weights)) for weight in weights]
    if most is not None:
        wanted = [max(pieces, -(-weight // most)) for pieces, weight in zip(wanted, weights, strict=True)]
    return [
        each for part, pieces in zip(parts, wanted, strict=True) for each in _split(surveyor, part, pieces)
    ]


def _split(surveyor: Surveyor, part: Range, pieces: int) -> list[Range]:
    if pieces == 1:
        return [part]
    return surveyor.try_servers(lambda server: server.run(split(part, pieces), part.strand.key))
