"""Grafana's dashboard and Prometheus' alerts ask for metrics and labels that are printed, and can be imported."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import gpupool
import pytest
import yaml
from gpupool import prometheus

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs/grafana/gpupool-dashboard.json").read_text())
RULES = ROOT / "docs/grafana/gpupool-rules.yml"
ALERTS = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
# Each query, and what its series are called by.
QUERIES = [(target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]
QUERIES += [(rule["expr"], json.dumps(rule["annotations"])) for rule in ALERTS]
# Prometheus adds these to what it scrapes.
SCRAPED = {"instance", "job"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def printed():
    """Return what is printed of a process that uses all there is: the values of each label, by metric."""
    stream = gpupool.Stream()
    pool = gpupool.MemPool(limit=64 * MIB)
    with gpupool.use_mem_pool(pool):
        kept = [gpupool.empty(MIB, stream), gpupool.empty_pinned(MIB)]
    gpupool.set_pinned_limit(64 * MIB)
    gpupool.simulated.warm(1)
    found = {}
    for name, labels in re.findall(r"^(gpupool_\w+)(?:\{(.*)\})? \S+$", prometheus.text(streams=1), re.MULTILINE):
        by_label = found.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            by_label.setdefault(label, set()).add(value)
    gpupool.set_pinned_limit(None)
    assert len(kept) == 2
    del kept
    gpupool.simulated.trim()
    return found


def labels_in(expression, printed):
    """Return the labels that the metrics of an expression have, and fail for a metric that is not printed."""
    names = re.findall(r"\bgpupool_\w+", expression)
    assert names, expression
    assert [name for name in names if name not in printed] == [], expression
    return SCRAPED.union(*(printed[name] for name in names))


@pytest.mark.parametrize(("expression", "legend"), QUERIES, ids=range(len(QUERIES)))
def test_a_query_is_of_what_is_printed(expression, legend, printed):
    labels = labels_in(expression, printed)
    for name, matchers in re.findall(r"(gpupool_\w+)\{([^}]*)\}", expression):
        for label, operator, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
            assert label in {*printed[name], *SCRAPED}, expression
            if value == f"${label}":
                assert operator == "=~", "several may be chosen"
            else:
                assert set(value.split("|")) <= printed[name][label], expression
    kept = set(labels)
    for word, listed in re.findall(r"\b(by|without|ignoring|on) \(([^)]*)\)", expression):
        named = set(listed.split(", "))
        assert named <= labels, expression
        if word in ("by", "without"):
            kept &= named if word == "by" else labels - named
    # Outside of what is grouped nothing is left of other labels.
    if not re.search(r"\b(?:sum|count|max|min) (?:by|without)\b", expression):
        kept = set() if re.search(r"\b(?:sum|count|max|min)\(", expression) else labels
    assert set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", legend)) <= kept, (expression, legend)


def test_every_variable_is_of_what_is_printed(printed):
    assert list(VARIABLES) == ["datasource", "instance", "device"]
    for name in ("instance", "device"):
        found = re.fullmatch(r"label_values\((gpupool_\w+)(?:\{.*\})?, (\w+)\)", VARIABLES[name]["query"]["query"])
        assert found[2] == name
        assert name in {*printed[found[1]], *SCRAPED}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([panel["targets"] for panel in PANELS])))
    assert used == {*VARIABLES, "__range", "__rate_interval"}


def test_the_dashboard_has_what_an_import_needs():
    # https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
    assert DASHBOARD["id"] is None
    assert (DASHBOARD["uid"], DASHBOARD["title"]) == ("gpupool", "gpupool")
    assert DASHBOARD["schemaVersion"] >= 36
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in {"row", "stat", "timeseries"}
        assert panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    for panel in PANELS:
        assert panel["description"].endswith(".")
        source = {"type": "prometheus", "uid": "${datasource}"}
        assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [source] * (
            len(panel["targets"]) + 1
        )
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_what_matters_has_a_panel():
    asked = {name for expression, _ in QUERIES for name in re.findall(r"gpupool_\w+", expression)}
    # Details that few look at, and what only some processes have.
    left_out = {
        *("gpupool_info", "gpupool_device_memory_attached_bytes", "gpupool_framework_memory_reserved_bytes"),
        *("gpupool_pool_memory_peak_live_bytes", "gpupool_pool_memory_peak_reserved_bytes", "gpupool_pool_live_blocks"),
        *("gpupool_pool_waiting_blocks", "gpupool_stream_memory_bytes", "gpupool_handles_peak_in_use"),
        *("gpupool_handles_created_total", "gpupool_handles_destroyed_total", "gpupool_handle_memory_peak_bytes"),
        *("gpupool_handle_hand_overs_total", "gpupool_handle_create_seconds_total"),
    }
    pinned = {name for name in prometheus.METRICS if name.startswith("gpupool_pinned_")}
    assert set(prometheus.METRICS) - asked - pinned == left_out


def test_alerts_say_what_is_wrong():
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+m", rule.get("for", "0m"))
    told = "".join(panel["description"] for panel in PANELS)
    assert set(re.findall(r"\bGpupool\w+", told)) <= {rule["alert"] for rule in ALERTS}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, Prometheus' own")
def test_alerts_begin_when_they_should():
    for what in (["check", "rules", RULES], ["test", "rules", ROOT / "tests/data/alerts.yml"]):
        done = subprocess.run(["promtool", *what], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
