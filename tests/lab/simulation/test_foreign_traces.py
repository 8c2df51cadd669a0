"""Traces as strangers write them: each gives the right jobs, or an error with file, line, field and remedy."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from espalier_lab.simulator.gavel import Throughputs, read_gavel
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.traces import TraceReading, read_csv, read_pollux
from small_simulations import figures, refusal, simulated

PLAIN = "timestamp,duration,num_gpus\n0,600,2\n90,60.5,1\n"


@pytest.mark.parametrize(
    "content",
    [
        PLAIN.encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.encode("utf-8-sig"),
        PLAIN.replace("\n", "\n\n  \n,,\n").encode(),
        gzip.compress(PLAIN.encode(), mtime=0),
        b"Timestamp, Duration, Num_GPUs\n0, 600, 2\n90, 60.5, 1\n",
        b"num_gpus;timestamp;duration\n2;0;600\n1;90;60.5\n",
        b"job_id\tgpu_num\tstate\tsubmit_time\tduration\n1\t2\tCOMPLETED\t0\t600\n2\t1\tFAILED\t90\t60.5\n",
        b"timestamp,duration,num_gpus\n90,60.5,1\n0,600,2\n5,0,1\n5,10,0\n",
        b"timestamp,duration,num_gpus\n2020-04-01 00:00:00,600,2\n2020-04-01T02:01:30+02:00,60.5,1\n",
        b"timestamp,duration,num_gpus\n2020-04-01,600,2\n2020-04-01T00:01:30Z,60.5,1\n",
        b"timestamp,duration,num_gpus,more\n1e9,6e2,2.0,x\n1000000090,60.5,1\n",
    ],
)
def test_all_ways_to_write_a_table_give_the_same_jobs(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    path.write_bytes(content)
    found = sorted((job.submitted_at, job.requested) for job in read_csv(path, TraceReading()))
    assert found == [(0.0, 2), (90.0, 1)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "t.csv:1: has no header; it must name timestamp, duration, num_gpus"),
        (b"timestamp,duration,num_gpus,Num_GPUs\n0,9,1,2\n", "t.csv:1: num_gpus: two columns have this name"),
        (
            b"timestamp,duration,num_gpus\n0,9,0\n5,0,1\n",
            "t.csv: none of its 2 jobs has GPUs and takes 0.001 s or more",
        ),
        (b"timestamp,num_gpus\n0,1\n", "t.csv:1: duration: no such column; say which it is with --columns"),
        (b"0,600,2\n", "with --columns timestamp=COLUMN. There are 0, 600 and 2"),
        (b"timestamp,duration,num_gpus\nnan,9,1\n", "t.csv:2: timestamp: is 'nan'; it must be seconds"),
        (b"timestamp,duration,num_gpus\n-inf,9,1\n", "t.csv:2: timestamp: is '-inf'; it must be seconds"),
        (b"timestamp,duration,num_gpus\nyesterday,9,1\n", "timestamp: is 'yesterday'; it must be seconds, or a date"),
        (b"timestamp,duration,num_gpus\n0,abc,1\n", "t.csv:2: duration: is 'abc'; it must be a number of at least 0"),
        (b"timestamp,duration,num_gpus\n0,-1,1\n", "t.csv:2: duration: is '-1'; it must be a number of at least 0"),
        (b"timestamp,duration,num_gpus\n0,nan,1\n", "t.csv:2: duration: is 'nan'; it must be a number of at least 0"),
        (b"timestamp,duration,num_gpus\n0,,1\n", "t.csv:2: duration: is missing"),
        (b"timestamp,duration,num_gpus\n0,9\n", "takes 0.001 s or more; 1 of 1 jobs have no GPUs"),
        (
            b"timestamp,duration,num_gpus\n0,9,-1\n",
            "num_gpus: is '-1'; it must be a number of at least 0; --skip bad leaves out unusable",
        ),
        (
            b"timestamp,duration,num_gpus\n0,1e300,1\n",
            "t.csv:2: duration: is '1e300'; it must be a number of at least 0",
        ),
        (b"timestamp,duration,num_gpus\n0,9,1\n2017-10-09,9,1\n", "t.csv:3: timestamp: is '2017-10-09', 1.50751e+09 s"),
        (
            b"submit_time,duration,gpu_num\n1.6e9,9,1\n1600000000000,9,1\n",
            "t.csv:3: submit_time: is '1600000000000'; as seconds",
        ),
        (b"timestamp,duration,num_gpus\n1600000000000000,9,1\n", "divide milliseconds by 1e3, microseconds by 1e6"),
        (
            b"timestamp,duration,num_gpus\n-1600000000000000000,9,1\n",
            "t.csv:2: timestamp: is '-1600000000000000000'; as",
        ),
        (b"timestamp,duration,num_gpus\n20171009083000,9,1\n", "or a date as 2017-10-01 08:30:00"),
        (b"timestamp,duration,num_gpus\n0,3600000000000,1\n", "at most 1e+09; write all times in seconds: divide"),
        (b"submit_time,duration,gpu_num\n0,9,some\n", "t.csv:2: gpu_num: is 'some'; it must be a number"),
        (b"timestamp,duration,num_gpus\n\n0,9,99\n", "t.csv:3: num_gpus: job job-3: needs 99 GPUs; the cluster has 8"),
        (b"\xff\xfet\0", "t.csv: cannot be read: it is not UTF-8 text"),
        (gzip.compress(b"timestamp", mtime=0)[:-5], "t.csv: cannot be read: Compressed file ended"),
        (b"\x1f\x8bnonsense", "t.csv: cannot be read: "),
        (b'timestamp,duration,num_gpus\n0,9,"' + b"9" * 200_000 + b'"\n', "t.csv:2: cannot be read: field larger than"),
    ],
)
def test_what_cannot_be_used_is_named(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert complaint in refusal(path, "--cluster", "2x4")


def test_jobs_that_are_left_out_are_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("timestamp,duration,num_gpus\n0,600,1\n5,0,1\n9,60,0\n9,1e-320,1\n")
    done = simulated(path, "--cluster", "1x1", "--policy", "fifo", "--policy", "las", "--json")
    assert done.stderr.strip() == f"{path}: 3 of 4 jobs have no GPUs, or ended at once: they are left out"
    assert [run["jobs"] for run in json.loads(done.stdout)["runs"]] == [1, 1]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("a,0,resnet,1,128", "w.csv:2: application: is 'resnet'"),
        ("a,0,../bert,1,128", "w.csv:2: application: is '../bert'"),
        ("a,0,cifar10,1,9", "w.csv:2: batch_size: is 9; on 1 workers cifar10 was measured from 128 to 4096"),
        ("a,0,cifar10,0,128", "w.csv:2: num_replicas: is '0'"),
        ("a,0,cifar10,500,4096", "w.csv:2: num_replicas: is 500; cifar10 was measured on 128 workers at most"),
        ("a,0,cifar10,1,128\n\na,1,cifar10,1,128", "w.csv:4: name: two jobs have the name 'a'"),
    ],
)
def test_bad_workloads_of_pollux_are_named(line: str, complaint: str, pollux: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(f"name,time,application,num_replicas,batch_size\n{line}\n")
    options = ("--cluster", "16x4", "--format", "pollux", "--profiles", pollux / "traces")
    assert complaint in refusal(path, *options)


def test_pollux_workloads_take_the_same_liberties(pollux: Path, tmp_path: Path) -> None:
    original = pollux / "workloads" / "workload-1.csv"
    lines = original.read_text().splitlines()
    path = tmp_path / "w.csv.gz"
    path.write_bytes(gzip.compress("\r\n".join([lines[0].upper(), *reversed(lines[1:]), ""]).encode("utf-8-sig")))
    profiles = Profiles(pollux / "traces")
    ours, theirs = (
        {(job.name, job.submitted_at, job.requested) for job in read_pollux(each, profiles)}
        for each in (path, original)
    )
    assert ours == theirs


TYPE = "Transformer (batch size 128)"
TEN = [TYPE, "python3", ".", "-step", "1", "5000", "2", "1", "-1.000000", "60"]
SEVEN = [TYPE, "cd %s && python3", "-step", "1", "5000", "60.000000", "2"]
TWELVE = [*TEN[:7], "static", *TEN[7:9], "3164", TEN[9]]


@pytest.mark.parametrize("fields", [TEN, SEVEN, TWELVE])
@pytest.mark.parametrize("wrap", [str.encode, lambda text: gzip.compress(text.replace("\n", "\r\n").encode())])
def test_all_layouts_of_gavel_give_the_same_jobs(fields: list[str], wrap: object, gavel: Path, tmp_path: Path) -> None:
    path = tmp_path / "theirs.trace"
    earlier = ["0" if field.startswith("60") else field for field in fields]
    assert callable(wrap)
    path.write_bytes(wrap("\n".join(["\t".join(fields), "", "\t".join(earlier), ""])))
    jobs = read_gavel(path, Throughputs(gavel))
    assert [(job.submitted_at, job.kind, job.remaining_steps, job.priority) for job in jobs] == [
        (60.0, (TYPE, 2), 5000, 0),
        (0.0, (TYPE, 2), 5000, 0),
    ]


@pytest.mark.parametrize(
    ("fields", "place", "value", "complaint"),
    [
        (TWELVE, 6, "3", "t.trace:1: job type: is 'Transformer (batch size 128)'; with 3 GPUs it is not in"),
        (TWELVE, 6, "3", "it was measured with 1, 2, 4"),
        (TWELVE, 5, "1" + "0" * 18, "t.trace:1: steps: is 1000000000000000000; at "),
        (TWELVE, 11, "1600000000000", "arrival: is '1600000000000'; it must be a number of at least 0, and at most"),
        (TWELVE, 7, "accordion", "mode: is 'accordion'; jobs that change their batch size are not simulated"),
        (TWELVE, 6, "4", "GPUs: job job-0: needs 4 GPUs of one type on which it was measured; the cluster has 3 v100"),
        (TEN, 0, "Unheard of", "t.trace:1: job type: is 'Unheard of'; with 2 GPUs it is not in"),
        (TEN, 5, "-1", "t.trace:1: steps: is '-1'; it must be a number of at least 0"),
        (TEN, 5, "0", "t.trace: has no jobs"),  # one without steps is left out
        (TEN, 6, "1.5", "t.trace:1: GPUs: is '1.5'; it must be a whole number"),
        (TEN, 7, "0.5", "t.trace:1: weight: is '0.5'; it must be a whole number"),
        (TEN, 9, "soon", "t.trace:1: arrival: is 'soon'; it must be a number"),
        (TEN, 9, "-1", "t.trace:1: arrival: is '-1'; it must be a number of at least 0"),
        (TEN, 9, "0\tmore", "t.trace:1: has 11 fields; a line of Gavel has 10"),
    ],
)
def test_bad_lines_of_gavel_are_named(
    fields: list[str], place: int, value: str, complaint: str, gavel: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.trace"
    path.write_text("\t".join([*fields[:place], value, *fields[place + 1 :]]) + "\n")
    assert complaint in refusal(path, "--cluster", "3:3:3", "--format", "gavel", "--profiles", gavel)


def test_the_lines_of_gavel_may_have_any_order_and_any_cluster(gavel: Path, tmp_path: Path) -> None:
    lines = (gavel / "max_min_fairness.trace").read_text().splitlines()
    path = tmp_path / "t.trace"
    path.write_text("\n".join(sorted(lines, reverse=True)))
    for cluster in ("36:36:36", "0:9:48"):
        options = ("--cluster", cluster, "--format", "gavel", "--profiles", gavel, "--policy", "fifo")
        assert figures(path, *options)["runs"][0]["jobs"] == 96
