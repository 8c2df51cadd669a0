"""Public traces in their published columns, by the commands of docs/reference/simulator.md.

Real are the first line of Philly, the first three of Helios, both of Acme, the first of Alibaba 2020 and all of Alibaba
2023 and 2026: the examples in their descriptions, or lines of the file. The others are made up, in the same columns, to
have what the descriptions mention: jobs that never ran, attempts without an end, parts of a GPU.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from espalier_lab.simulator.columns import Selection
from espalier_lab.simulator.traces import FIELDS, TABLES, TraceReading
from small_simulations import figures, refusal, simulated

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "simulator.md"
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,1,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
1425514,uzqls,vcpDC,0,1,1,COMPLETED,2020-06-09 18:41:28,None,None,5,0
"""
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778469,u5907,1,8,128,Other,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,21544.0
"""  # noqa: E501
ALIBABA_2020 = """\
4f057009a5d481acec67b088,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC
0bc0ee1d0ea5ebb3e08a0ae1,worker,3.0,Terminated,1739200.0,1739800.0,600.0,29.296875,100.0,P100
0bc0ee1d0ea5ebb3e08a0ae2,ps,1.0,Failed,1739300.0,1739800.0,600.0,29.296875,,
0bc0ee1d0ea5ebb3e08a0ae3,worker,1.0,Running,1739400.0,,600.0,29.296875,100.0,T4
"""
ALIBABA_2023 = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0017,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437497
openb-pod-0048,8000,30517,0,0,,BE,Running,9992086,10013821,9992086
openb-pod-0061,11908,47104,1,1000,,BE,Pending,10001278,10001403,
openb-pod-0063,12000,24576,1,1000,,LS,Running,10001854,10043044,10002793
"""
ALIBABA_2026 = """\
job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
239255,13,A10,20,1,1,0,2764799,HP
437260,57,A100-SXM4-80GB,15,1,16,9589663,41060,Spot
437261,57,A100-SXM4-80GB,15,1,94,9589663,71718,Spot
"""
SACCT = """\
JobID|Submit|Start|End|Elapsed|State|AllocTRES
41|2026-01-05T10:00:00|2026-01-05T10:00:30|2026-01-06T11:00:30|1-01:00:00|COMPLETED|billing=16,cpu=16,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1
41.batch|2026-01-05T10:00:30|2026-01-05T10:00:30|2026-01-06T11:00:30|1-01:00:00|COMPLETED|cpu=16,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1
42|2026-01-05T10:01:00|None|2026-01-05T10:02:00|00:00:00|CANCELLED by 1000|
43|2026-01-05T10:01:10|2026-01-05T10:02:00|2026-01-05T10:12:00|00:10:00|TIMEOUT|billing=4,cpu=4,gres/gpu:v100=1,mem=8G,node=1
44|2026-01-05T10:01:20|2026-01-05T10:02:00|2026-01-05T10:12:00|00:10:00|COMPLETED|billing=4,cpu=4,mem=8G,node=1
"""
SWF = """\
; Version: 2.2
; Computer: one of the Parallel Workloads Archive; processors count as GPUs
  1   0  10   600  4 -1 -1  4 900 -1 1 3 1 -1 1 1 -1 -1
  2  60   0    -1  1 -1 -1  1 900 -1 5 3 1 -1 1 1 -1 -1
  3  90  20   300  2 -1 -1  2 900 -1 1 3 1 -1 1 1 -1 -1
"""


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    servers = [{"ip": f"m{place}", "gpus": [f"gpu{gpu}" for gpu in range(count)]} for place, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": servers}


def philly(jobid: str, submitted: str | None, *attempts: dict[str, Any], status: str = "Pass") -> dict[str, Any]:
    more = {"status": status, "vc": "ee9e8c", "user": "ce2f4c", "jobid": f"application_{jobid}"}
    return {**more, "attempts": list(attempts), "submitted_time": submitted}


PHILLY = [
    philly(
        "1506638472019_14199",
        "2017-10-07 01:11:39",
        attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8),
        attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12", 8),
    ),
    philly("2", "2017-10-07 01:11:59", status="Killed"),
    philly("3", "2017-10-07 01:12:09", attempt("2017-10-07 01:12:09", None, 4), status="Failed"),
    philly("4", "2017-10-07 01:12:39", attempt("2017-10-07 01:13:00", "2017-10-07 01:14:00", 8, 4), status="Killed"),
    philly("5", "None", attempt("2017-10-07 01:13:00", "2017-10-07 01:14:00", 1)),
]


NOTHING = "have no GPUs, or ended at once: they are left out"
NEVER = "did not start, or did not end: they are left out"


@pytest.mark.parametrize(
    ("name", "text", "keep", "jobs", "notes"),
    [
        ("Helios", HELIOS, (), [(0, 1, 36848), (26, 4, 249), (27, 1, 675233)], [f"1 of 4 jobs {NOTHING}"]),
        (
            "Helios",
            HELIOS,
            ("--keep", "State=completed,FAIL*"),
            [(0, 1, 36848), (26, 4, 249)],
            ["1 of 4 jobs are not among those to --keep: they are left out", f"1 of 4 jobs {NOTHING}"],
        ),
        ("Acme", ACME, (), [(0, 8, 117), (336, 8, 2693)], []),
        (
            "Alibaba 2020",
            ALIBABA_2020,
            (),
            [(0, 1, 38), (38, 3, 600)],
            [
                f"1 of 4 jobs {NOTHING}",
                f"1 of 4 jobs {NEVER}",
                "1 of 4 jobs ask for a part of a GPU: they get whole ones",
            ],
        ),
        (
            "Alibaba 2023",
            ALIBABA_2023,
            (),
            [(0, 8, 10769854 - 9437497), (10001854 - 9437497, 1, 10043044 - 10002793)],
            [f"1 of 4 jobs {NOTHING}", f"1 of 4 jobs {NEVER}"],
        ),
        (
            "Alibaba 2026",
            ALIBABA_2026,
            (),
            [(0, 16, 41060), (0, 94, 71718)],
            ["1 of 3 jobs are not among those to --keep: they are left out"],
        ),
        (
            "Slurm",
            SACCT,
            (),
            [(0, 2, 90_000), (70, 1, 600)],
            ["1 of 5 jobs are steps of another: they are left out", f"2 of 5 jobs {NOTHING}"],
        ),
        (
            "[Standard Workload Format]",
            SWF,
            (),
            [(0, 4, 600), (90, 2, 300)],
            [
                "1 of 3 jobs cannot be used, the first: "
                "{path}:4: #4: is '-1'; it must be a number of at least 0: they are left out"
            ],
        ),
        (
            "Philly",
            json.dumps(PHILLY),
            (),
            [(0, 8, 74 + 2 * 86_400 + 5 * 3600 + 39 * 60 + 42), (60, 12, 60)],
            [f"3 of 5 jobs {NEVER}"],
        ),
        (
            "Philly",
            json.dumps(PHILLY),
            ("--keep", "status=Pass"),
            [(0, 8, 74 + 2 * 86_400 + 5 * 3600 + 39 * 60 + 42)],
            ["3 of 5 jobs are not among those to --keep: they are left out", f"1 of 5 jobs {NEVER}"],
        ),
    ],
)
def test_traces_are_read_as_published_by_the_commands_of_the_page(
    name: str, text: str, keep: tuple[str, ...], jobs: list[tuple[float, int, float]], notes: list[str], tmp_path: Path
) -> None:
    (row,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name}") and "espalier" in line)
    file, *options = [*shlex.split(re.findall("`espalier simulate ([^`]+)`", row)[0]), *keep]
    path = tmp_path / file
    path.write_text(text)
    given = dict(zip(options[::2], options[1::2], strict=True))
    kept = [given["--keep"]] if "--keep" in given else []
    selection = Selection.of(given.get("--columns", ""), kept, FIELDS.names)
    told: list[str] = []
    reading = TraceReading(selection=selection, skip="--skip" in given, tell=told.append)
    found = TABLES[given.get("--format", "csv")](path, reading)
    assert [(job.submitted_at, job.requested, job.seconds_alone()) for job in found] == jobs
    assert told == [f"{path}: {note.format(path=path)}" for note in notes]
    done = simulated(path, *options, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["runs"][0]["jobs"] == len(jobs)
    assert done.stderr.strip().splitlines() == told


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ("{", "is not JSON, as cluster_job_log of Philly is: "),
        ({"a": 1}, "is not a list of jobs"),
        ([], "has no jobs"),
        ([1], "log:job 1: attempts: is not as in cluster_job_log"),
        ([{"jobid": "a", "submitted_time": "2017-10-07 01:11:39"}], "log:a: attempts: is not as in cluster_job_log"),
        (
            [philly("6", "2017-10-07 01:11:39", attempt("2017-10-07 02:00:00", "2017-10-07 01:00:00", 1))],
            "log:application_6: end_time: is '2017-10-07 01:00:00', -3600 s after the start",
        ),
        ([philly("7", "noon", attempt("2017-10-07 01:00:00", "2017-10-07 02:00:00", 1))], "submitted_time: is 'noon'"),
    ],
)
def test_what_is_not_as_in_philly_is_named(found: object, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    assert complaint in refusal(path, "--format", "philly", "--cluster", "1x8")
    assert "is JSON, not a table; if it is cluster_job_log of Philly, add --format philly" in refusal(
        path, "--cluster", "1x8"
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--columns", "gpus=num_gpu"), "--columns gpus=num_gpu: gpus is not a field of a trace; choose from"),
        (("--columns", "timestamp"), "--columns: 'timestamp' must be NAME=VALUE"),
        (("--columns", "num_gpus=num_gpu*nodes"), "t:1: nodes: no such column; --columns takes columns of the file"),
        (
            ("--columns", "timestamp=creation_time/1000"),
            "t:1: scheduled_time: is not scaled, but timestamp=creation_time/1000 is: name start, too",
        ),
        (("--columns", "end=deleted"), "t:1: deleted: no such column"),
        (("--columns", "num_gpus=#12"), "t:1: timestamp: no such column; say which it is with --columns timestamp="),
        (("--columns", "num_gpus=pod_phase*1"), "t:2: pod_phase*1: is 'Succeeded'; it must be a number"),
        (("--columns", "start=name"), "t:2: name: is 'openb-pod-0017'; it must be seconds"),
        (("--keep", "state=COMPLETED"), "t:1: state: no such column"),
        (
            ("--keep", "pod_phase=Done"),
            "t: --keep leaves no line: pod_phase is never Done: it is Pending, Running or Succeeded",
        ),
        (("--format", "philly", "--columns", "start=a"), "--columns: does not go with --format philly, only with csv"),
        (("--format", "audit", "--skip", "bad"), "--skip bad: does not go with --format audit, only with csv and"),
        (("--format", "audit", "--keep", "a=b"), "--keep: does not go with --format audit"),
    ],
)
def test_options_that_do_not_fit_a_trace_are_named(options: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(ALIBABA_2023)
    assert complaint in refusal(path, "--cluster", "1x8", *options)


def test_lines_that_cannot_be_used_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(
        "timestamp,duration,num_gpus\n1600000000,60,1\n1600000060,,1\n0,60,1\n1600000060,60,x\n1600000060,9\n"
    )
    done = simulated(path, "--cluster", "1x1", "--skip", "bad", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.strip() == (
        f"{path}: 1 of 5 jobs have no GPUs, or ended at once: they are left out\n"
        f"{path}: 3 of 5 jobs cannot be used, the first: {path}:3: duration: is missing: they are left out"
    )
    assert json.loads(done.stdout)["runs"][0]["jobs"] == 1
    path.write_text("timestamp,duration,num_gpus\n0,x,1\n")
    assert "1 of 1 jobs cannot be used, the first: " in refusal(path, "--cluster", "1x1", "--skip", "bad")


def test_jobs_larger_than_the_cluster_are_counted_and_can_be_skipped(gavel: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("timestamp,duration,num_gpus\n0,60,9\n1,60,1\n2,60,64\n3,60,8\n")
    for driver in ("rounds", "plan"):
        assert (
            f"{path}:2: num_gpus: job job-2: needs 9 GPUs; the cluster has 8, too few also for 1 other of up to 64: "
            "name a larger --cluster, or leave out such jobs with --skip larger"
        ) in refusal(path, "--cluster", "1x8", "--driver", driver)
    done = simulated(path, "--cluster", "1x8", "--skip", "larger", "--policy", "fifo", "--policy", "optimus", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.strip() == f"{path}: 2 of 4 jobs need more GPUs than the cluster has: they are left out"
    assert [run["jobs"] for run in json.loads(done.stdout)["runs"]] == [2, 2]
    assert f"{path}: all of its 4 jobs need more GPUs than the cluster has" in refusal(
        path, "--cluster", "1x1", "--skip", "larger", "--skip", "bad", "--columns", "num_gpus=8"
    )
    trace = gavel / "max_min_fairness.trace"
    (found,) = figures(trace, "--format", "gavel", "--cluster", "1:1:1", "--policy", "fifo", "--skip", "larger")["runs"]
    assert 0 < found["jobs"] < 96


def test_the_sample_trace_needs_no_options() -> None:
    path = Path(__file__).parents[3] / "examples" / "traces" / "sample.csv"
    options = ["--policy", "fifo", "--policy", "las", "--keep", "state=COMPLETED"]
    fifo, las = figures(path, "--cluster", "4x8", *options)["runs"]
    assert 90 < fifo["jobs"] == las["jobs"] < 120
    assert las["averageJctSeconds"] < fifo["averageJctSeconds"]
