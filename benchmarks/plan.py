"""Measures the time of `plan`: `.venv/bin/python benchmarks/plan.py [--jobs 1000] [--nodes 5000] [--json]`.

The snapshot is the worst case of a tick. Every node has 8 GPUs, running jobs hold base and extra workers, as many jobs
wait as run, and pods of others are pending, so the plan contains free GPUs, reclaims and refusals. The jobs have three
priorities and hold equal shares, so a sixth of all lent GPUs is moved in this tick. In the last case all jobs have the
same priority, and nothing is moved.

With constraints, jobs request CPU, memory and a place among the pods of a node. A tenth of them require one of four
zones, and a tenth of the nodes have CPUs for half of their GPUs only. With racks, nodes carry the
labels of one of four zones and of a rack of 16 nodes.

The rows after these have a tenth of the GPUs free, and a thousand different constraints: each job requests another
amount of CPU, tolerates another taint, or rules out another node by its host name.

The last rows are the cluster of `make bench-operator`: pods of others hold all GPUs that the base workers of 1,000 jobs
do not need, 20,000 pods without GPUs run there too, and 0 or 150 GPUs have just come free.

No snapshot is planned twice, because a plan uses again what the last ones knew of nodes (`cluster/node_index.py`). Each
differs from the one before it by one event. `podMs`: a pod has come or gone, and a second has passed; most events are
like this. `nodeMs`: besides, the labels of a node have changed, so nothing of the nodes can be used again. Both are
medians, and `maxMs` is the most of all.

Times are CPU time of the process, so others on the machine hardly count. Garbage is collected as rarely as in the
operator.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterable

from harness.printed import environment, rendered
from load.snapshots import after_nodes, after_pods, snapshots

from espalier_operator.model import Snapshot
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy


def milliseconds(each: Iterable[Snapshot]) -> tuple[list[float], int]:
    """Return the CPU time of a plan by each snapshot but the first, and how many actions the last plan had."""
    times, actions = list[float](), 0
    gc.collect()
    for snapshot in each:
        begin = time.process_time()
        planned = plan(snapshot, FairPolicy(), snapshot.taken_at)
        times.append((time.process_time() - begin) * 1000)
        actions = len(planned.actions)
    return times[1:], actions


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 100 * old)
    for case, has_constraints, has_racks, snapshot in snapshots(options.jobs, options.nodes):
        pods, actions = milliseconds(after_pods(snapshot, options.repeats + 1))
        nodes, _ = milliseconds(after_nodes(snapshot, options.repeats + 1))
        rows.append(
            {
                "case": case,
                "constraints": has_constraints,
                "racks": has_racks,
                "jobs": options.jobs,
                "nodes": options.nodes,
                "workers": len(snapshot.workers),
                "actions": actions,
                "podMs": round(statistics.median(pods), 1),
                "nodeMs": round(statistics.median(nodes), 1),
                "maxMs": round(max(*pods, *nodes), 1),
            }
        )
    if options.json:
        print(json.dumps({"rows": rows, "environment": environment()}))
        return
    title = f"CPU time of plan() after a pod and after a node has changed, medians of {options.repeats} snapshots each"
    print(rendered(title, list(rows[0]), [list(map(str, row.values())) for row in rows]))
    print(environment())


if __name__ == "__main__":
    main()
