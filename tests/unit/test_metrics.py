"""The text that Prometheus scrapes, read back by its own parser."""

from prometheus_client.parser import text_string_to_metric_families

from braidstream.observability.metrics import Counts, Family, Histogram, render
from braidstream.operations.status import DaemonStatus
from braidstream.replication.daemon.reporting import families


def read(*families: Family) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    text = render(families, region="eu-west").decode()
    return {
        family.name: [(each.name, each.labels, each.value) for each in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_labels_may_hold_any_text() -> None:
    odd = 'a "quoted" \\ name\nwith a line break'
    found = read(Family.gauge("braid_link_up", "Up?\nOr \\ down.", {(odd,): 1.5}, ("peer",)))
    assert found == {"braid_link_up": [("braid_link_up", {"region": "eu-west", "peer": odd}, 1.5)]}


def test_a_metric_without_samples_is_left_out() -> None:
    assert render([Family.gauge("braid_x", "Nothing.", {}, ("peer",))], region="r") == b""


def test_a_histogram_counts_each_observation_in_its_bucket_and_all_above() -> None:
    histogram = Histogram()
    histogram.observe(0.0001)
    histogram.observe(0.003, times=16)
    histogram.observe(1000)
    found = read(Family.histogram("braid_seconds", "Latency.", {"append": histogram}, "way"))["braid_seconds"]
    buckets = {labels["le"]: value for name, labels, value in found if name.endswith("_bucket")}
    assert (buckets["0.0001"], buckets["0.0025"], buckets["0.005"]) == (1, 1, 17)
    assert (buckets["10.0"] if "10.0" in buckets else buckets["10"], buckets["+Inf"]) == (17, 18)
    [total] = [value for name, _, value in found if name == "braid_seconds_count"]
    [seconds] = [value for name, _, value in found if name == "braid_seconds_sum"]
    assert (total, round(seconds, 4)) == (18, 1000.0481)


def test_names_from_outside_cannot_make_new_samples_without_end() -> None:
    counts = Counts(most=3)
    for number in range(1000):
        counts.add(f"code-{number}")
    assert counts == {"code-0": 1, "code-1": 1, "code-2": 1, "other": 997}


def test_a_region_that_delivers_for_others_names_them_beside_itself() -> None:
    status = DaemonStatus(1, 1, "host", 1, "0", taken={"3": 2})
    found = read(*families(status, engine_up=True))["braid_taken_over_groups"]
    assert found == [("braid_taken_over_groups", {"region": "eu-west", "taken_from": "3"}, 2.0)]
