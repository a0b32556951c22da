#!/usr/bin/env python3
"""submit on a real HTCondor pool: the example, several nodes, exit code 85, hostile arguments, and a killed submission.

Usage: condor_test.py BUILD_FOLDER   (as root; see tests/clusters/condor_fixture.py)
"""

import json
import os
import pathlib
import random
import re
import signal
import sys
import time
import traceback

TESTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS / "clusters")]
import hostile_text  # noqa: E402
import stages  # noqa: E402
from condor_fixture import CHECKOUT, CondorPool  # noqa: E402

WAIT_SECONDS = 300
NO_ANSWER = 75  # a daemon on a busy machine may be late: then submit says so, and is asked again


class Workplace:
    """alice's: settings, scripts, and the submit program."""

    def __init__(self, pool, build_folder):
        self.pool = pool
        self.bin = build_folder / "bin"
        self.expected = {ranks: stages.spawned(self.bin, ranks) for ranks in (2, 4)}  # on this machine, not in the pool
        self.environment = pool.provide_libraries(self.bin / "submit")

    def submit(self, *arguments, codes=(0, NO_ANSWER), environment=None):
        result = self.pool.run(self.bin / "submit", *arguments, environment=self.environment | (environment or {}))
        if result.returncode not in codes:
            raise AssertionError(f"submit {' '.join(map(str, arguments))[:500]}: exit code {result.returncode}, expected "
                                 f"{codes}\n{result.stdout}{result.stderr}")
        return result

    def jobs(self, out_dir, codes=(0, NO_ANSWER)):
        return json.loads(self.submit("status", "--json", "--out-dir", out_dir, codes=codes).stdout)["jobs"]

    def wait(self, out_dir, state, job=0, seconds=WAIT_SECONDS):
        """The job, once it is in that state. One that ends in another fails at once."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.jobs(out_dir)[job]
            if found["state"] == state:
                return found
            over = found["state"] in ("done", "failed", "cancelled", "lost", "refused", "held")
            if over or time.monotonic() > deadline:
                folder = self.pool.path(found["folder"])
                logs = "\n".join(f"---- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                                 for path in sorted(folder.glob("job.*")))
                raise AssertionError(f"job {job} is {found['state']} ({found['reason']}), expected {state}\n{logs}")
            time.sleep(0.5)

    def write(self, name, text, executable=False):
        path = self.pool.home / name
        inside = self.pool.path(path)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_text(text)
        inside.chmod(0o755 if executable else 0o644)
        self.pool.run("chown", "-R", "alice", self.pool.home, user="root")
        return path

    def read(self, job, name):
        return self.pool.path(job["folder"]).joinpath(name).read_text()

    def settings(self, name, program, more=""):
        return self.write(f"{name}.yaml", f"script_path: {program}\nout_dir: out-{name}\n{more}"), self.pool.home / f"out-{name}"


def summary(text):
    """The last line of a stage, less its speed."""
    found = re.findall(r"^(moved .*?) \| step ", text, re.MULTILINE)
    assert len(found) == 1, f"expected one last line, got {found} in\n{text[-2000:]}"
    return found[0]


def test_example(place):
    """condor/settings.yaml as it is."""
    place.submit("--settings-file", CHECKOUT / "condor/settings.yaml", "--", "5", "1", "--dataset", "digits", "--nprocs", "2")
    job = place.wait(CHECKOUT / "out/condor", "done")
    assert "CPU1] Epoch 4" in place.read(job, "job.out"), place.read(job, "job.out")
    assert "accuracy" in summary(place.read(job, "job.out"))
    said = place.read(job, "job.err").splitlines()
    # On a busy machine a rank may be slower than the other, and is then named.
    assert all(line.endswith("they wait for it") for line in said), said
    files = {path.name for path in place.pool.path(job["folder"]).iterdir()}
    assert {"snapshot.safetensors", "metrics.jsonl", "job.log"} <= files, files
    assert place.pool.path(CHECKOUT / "out/condor/submission_file.sub").exists()
    tail = place.submit("logs", "0", "--settings-file", CHECKOUT / "condor/settings.yaml", "--lines", "1").stdout
    assert "moved" in tail, tail
    return summary(place.read(job, "job.out"))


def test_two_nodes(place):
    """Parallel universe: the ranks find each other, and train to the same bits as two processes of one node."""
    arguments = ["--", *stages.WORKLOAD]
    settings, out_dir = place.settings("parallel", place.bin / "04_ddp_launcher")
    place.submit("--settings-file", settings, "--nodes", "2", *arguments)
    together = place.wait(out_dir, "done")
    settings, spawned_dir = place.settings("spawned", place.bin / "03_ddp_spawn", "local: {condor: {num_cpus: 2}}\n")
    place.submit("--settings-file", settings, *arguments, "--nprocs", "2")
    spawned = place.wait(spawned_dir, "done")
    first, second = place.read(together, "job.out.0"), place.read(together, "job.out.1")
    assert "[CPU0] Epoch 3" in first and "[CPU1] Epoch 3" in second, first + second
    assert summary(first) == summary(place.read(spawned, "job.out")), (first, place.read(spawned, "job.out"))
    assert stages.last_line(first)[1] == place.expected[2][1], (first, place.expected)
    files = place.submit("logs", "--out-dir", out_dir).stdout
    assert files.count("job.out.") == 2, files


def test_four_nodes(place):
    settings, out_dir = place.settings("four", place.bin / "05_multinode")
    place.submit("--settings-file", settings, "--nodes", "4", "--", *stages.WORKLOAD)
    text = place.read(place.wait(out_dir, "done"), "job.out.0")
    moved, _ = stages.last_line(text)
    assert stages.agrees(moved, place.expected[4][0]), (text, place.expected)


def ranks_of(program):
    """Process ids by number in the parallel universe."""
    ranks = {}
    for process in pathlib.Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "exe").endswith(str(program)):
                environment = dict(item.split("=", 1) for item in (process / "environ").read_text().split("\0") if "=" in item)
                ranks[int(environment["_CONDOR_PROCNO"])] = int(process.name)
        except OSError:
            continue  # it ended meanwhile
    return ranks


def test_stopped_in_the_middle(place):
    """One rank on one node is asked to stop: all leave with 85, HTCondor starts them again, and they end on the unbroken run's bits."""
    epochs = "200"  # its output comes in blocks of some 60
    training = [epochs, epochs, "--layers", "64,64,10", "--dataset-size", "1024", "--global-batch", "64", "--optimizer", "adam"]
    expected = stages.spawned(place.bin, 2, workload=training)
    settings, out_dir = place.settings("stopped", place.bin / "05_multinode")
    place.submit("--settings-file", settings, "--nodes", "2", "--", *training)
    job = place.jobs(out_dir)[0]
    output = place.pool.path(job["folder"]) / "job.out.0"
    deadline = time.monotonic() + WAIT_SECONDS
    while not output.exists() or "Epoch 2 " not in output.read_text():
        assert time.monotonic() < deadline, f"{output} has no second epoch"
        time.sleep(0.01)
    first_start = output.read_text()
    os.kill(ranks_of(place.bin / "05_multinode")[1], signal.SIGUSR1)
    assert f"Epoch {int(epochs) - 1} " not in first_start, "it was over before it was to stop"
    done = place.wait(out_dir, "done")
    assert done["exit_code"] == 0 and done["id"] == job["id"] and done["attempt"] == 1, done
    starts = place.pool.run("condor_history", job["id"], "-af", "NumJobStarts").stdout.split()
    assert starts[0] == "2", starts
    text = place.read(done, "job.out.0")
    assert stages.last_line(text) == expected, (text[-1000:], expected)
    again = re.findall(r"^\[CPU0\] Epoch (\d+) ", text, re.MULTILINE)
    # HTCondor begins the output anew: the second start went on where the first one stopped.
    assert 2 < int(again[0]) < int(epochs), again[:3]
    assert [int(epoch) for epoch in again] == list(range(int(again[0]), int(epochs))), again


def test_run_again(place):
    """Exit code 85 starts a job again, in both universes, until it ends otherwise."""
    program = place.write("again", """#!/bin/sh
n=$(cat runs$_CONDOR_PROCNO 2>/dev/null || echo 0); n=$((n + 1)); echo $n >runs$_CONDOR_PROCNO
echo "start $n"; echo $DDP_JOB_ID >>ids$_CONDOR_PROCNO
[ $n -ge 3 ] || { sleep 1; exit 85; }
exit ${1:-0}
""", executable=True)
    for nodes in (1, 2):
        settings, out_dir = place.settings(f"again{nodes}", program)
        # One after the other: HTCondor 23's schedd may crash in DedicatedScheduler::computeSchedule() when a parallel job is
        # queued again while another waits.
        place.submit("--settings-file", settings, "--nodes", str(nodes))
        done = place.wait(out_dir, "done", job=0)
        place.submit("--settings-file", settings, "--nodes", str(nodes), "--", "4")
        failed = place.wait(out_dir, "failed", job=1)
        assert failed["exit_code"] == 4, failed
        for job in (done, failed):
            assert place.read(job, "runs" if nodes == 1 else "runs0") == "3\n", job
            if nodes == 2:
                # The same for all processes of a start, another for each start: they meet under that name.
                ids = place.read(job, "ids0").split()
                assert len(set(ids)) == 3 and place.read(job, "ids1").split() == ids, ids
        # The same job again, where it was: its folder still has the counter.
        place.submit("resubmit", "--failed", "--out-dir", out_dir)
        again = place.wait(out_dir, "failed", job=1)
        assert again["attempt"] == 2 and again["id"] != failed["id"], again
        assert place.read(again, "runs" if nodes == 1 else "runs0") == "4\n", again
        assert place.read(again, "job.2.out" if nodes == 1 else "job.2.out.0") == "start 4\n"


def test_hostile_arguments(place):
    """What the whole way from submit to the program's argv does to them: nothing."""
    program = place.write("show", '#!/bin/sh\nprintf "%s\\0" "$@" >argv$_CONDOR_PROCNO\n', executable=True)
    rng = random.Random(5)
    texts = [hostile_text.hostile(rng) for _ in range(1500)]
    texts = [text for text in texts if hostile_text.is_carried(text) and hostile_text.condor_can(text)][:600]
    assert len(texts) == 600
    wanted = [text.decode() for text in texts]
    for nodes in (1, 2):
        settings, out_dir = place.settings(f"hostile{nodes}", program)
        place.submit("--settings-file", settings, "--nodes", str(nodes), "--", *wanted)
        job = place.wait(out_dir, "done")
        for name in ["argv"] if nodes == 1 else ["argv0", "argv1"]:
            got = place.read(job, name).split("\0")[:-1]
            assert got == wanted, [(a, b) for a, b in zip(got, wanted) if a != b][:5] or (len(got), len(wanted))


def test_hostile_folder(place):
    """The program and out_dir too."""
    folder = "$(HOME) it's \"#;é&`x`$X {a,b} \\n"
    program = place.write(f"{folder}/show", "#!/bin/sh\npwd >where\n", executable=True)
    settings = place.write("hostile.yaml", f"script_path: {json.dumps(str(program))}\n"
                           f"out_dir: {json.dumps(str(place.pool.home / folder / 'out'))}\n")
    place.submit("--settings-file", settings)
    job = place.wait(place.pool.home / folder / "out", "done")
    assert place.read(job, "where") == f"{place.pool.home}/{folder}/out/jobs/0-show\n", place.read(job, "where")


def test_transfer(place):
    """Without a shared file system: files go there and come back."""
    data = place.write("data.txt", "payload\n")
    program = place.write("copy", "#!/bin/sh\npwd\ncat data.txt >result.txt\n", executable=True)
    settings, out_dir = place.settings("transfer", program, f"local: {{condor: {{transfer_files: [{data}]}}}}\n")
    place.submit("--settings-file", settings)
    job = place.wait(out_dir, "done")
    assert place.read(job, "result.txt") == "payload\n"
    assert "/execute/" in place.read(job, "job.out"), place.read(job, "job.out")


def test_held_and_cancelled(place):
    program = place.write("broken", "#!/no/such/interpreter\n", executable=True)
    settings, out_dir = place.settings("held", program)
    place.submit("--settings-file", settings)
    held = place.wait(out_dir, "held")
    assert "Failed to execute" in held["reason"], held
    sleeper = place.write("sleeper", "#!/bin/sh\nsleep 1000\n", executable=True)
    settings, _ = place.settings("held", sleeper)
    place.submit("--settings-file", settings)
    running = place.wait(out_dir, "running", job=1)
    place.submit("cancel", "--all", "--out-dir", out_dir)
    assert [job["state"] for job in place.jobs(out_dir)] == ["cancelled", "cancelled"]
    queue = place.pool.run("condor_q", held["id"], running["id"], "-af", "ClusterId", "JobStatus").stdout
    assert re.fullmatch(r"(\d+ 3\n)*", queue), queue  # gone, or on the way


def test_sweep(place):
    """One cluster, a few at a time; hostile values arrive; those whose turn has not come are neither lost nor run twice."""
    program = place.write("point", '#!/bin/sh\nprintf "%s\\0" "$@" >argv\necho "$DDP_JOB_ID" >>ids\nsleep 1\n', executable=True)
    rng = random.Random(6)
    texts = [hostile_text.hostile(rng) for _ in range(300)]
    values = sorted({text.decode() for text in texts if text and hostile_text.is_carried(text) and hostile_text.condor_can(text)})[:9]
    axis = ",".join(value.replace("\\", "\\\\").replace(",", "\\,") for value in values)
    settings, out_dir = place.settings("sweep", program)
    place.submit("--settings-file", settings, "--sweep-limit", "3", "--sweep", f"key={axis}")
    for number, value in enumerate(values):
        job = place.wait(out_dir, "done", job=number)
        assert place.read(job, "argv").split("\0")[:-1] == ["--key", value], (place.read(job, "argv"), value)
        assert place.read(job, "ids") == f"{job['id']}\n", (place.read(job, "ids"), job)
    jobs = place.jobs(out_dir)
    assert len({job["id"].split(".")[0] for job in jobs}) == 1 and jobs[8]["id"].endswith(".8"), jobs
    assert place.submit("resubmit", "--failed", "--out-dir", out_dir).stdout == "nothing to resubmit\n"

    sleeper = place.write("sleeper", "#!/bin/sh\nsleep 1000\n", executable=True)
    settings, out_dir = place.settings("sleepers", sleeper)
    place.submit("--settings-file", settings, "--sweep-limit", "2", "--sweep", "x=1,2,3,4")
    place.wait(out_dir, "running", job=1)
    place.submit("cancel", "0", "--out-dir", out_dir)
    place.wait(out_dir, "running", job=2)
    assert [job["state"] for job in place.jobs(out_dir)] == ["cancelled", "running", "running", "pending"], place.jobs(out_dir)
    place.submit("cancel", "--all", "--out-dir", out_dir)
    assert {job["state"] for job in place.jobs(out_dir)} == {"cancelled"}
    cluster = place.jobs(out_dir)[0]["id"].split(".")[0]
    queue = place.pool.run("condor_q", cluster, "-af", "JobStatus").stdout
    assert re.fullmatch(r"(3\n)*", queue), queue  # gone, or on the way, and the fourth never comes


def test_killed_submission(place):
    """submit is killed when HTCondor has the job and it has not written that down."""
    program = place.write("quick", "#!/bin/sh\n", executable=True)
    settings, out_dir = place.settings("killed", program)
    place.write("stubs/condor_submit", '#!/bin/sh\n/usr/bin/condor_submit "$@"\nkill -9 $PPID\n', executable=True)
    path = {"PATH": f"{place.pool.home}/stubs:/usr/bin:/bin"}
    place.submit("--settings-file", settings, codes=(-9, 137), environment=path)
    listed = json.loads(place.submit("list", "--json", "--out-dir", out_dir).stdout)["jobs"]
    assert [(job["state"], job["id"]) for job in listed] == [("maybe-submitted", None)], listed
    place.submit("resubmit", "--failed", "--out-dir", out_dir)
    job = place.wait(out_dir, "done")
    assert job["attempt"] == 1, job
    history = place.pool.run("condor_history", "-constraint", f'Cmd == "{program}"', "-af", "ClusterId").stdout.split()
    assert history == [job["id"]], (history, job)


def test_pool_is_down(place):
    """Last: the queue cannot be asked, the job's log can be read."""
    program = place.write("slow", "#!/bin/sh\nsleep 1000\n", executable=True)
    settings, out_dir = place.settings("down", program)
    place.submit("--settings-file", settings)
    place.wait(out_dir, "running")
    place.pool.run("condor_off", "-fast", "-schedd", user="root")
    deadline = time.monotonic() + 60
    while place.pool.run("condor_q").returncode == 0 and time.monotonic() < deadline:
        time.sleep(0.5)
    result = place.submit("status", "--out-dir", out_dir, codes=(NO_ANSWER,))
    assert "as they were last seen" in result.stderr, result.stderr
    settings, out_dir = place.settings("refused", program)
    place.submit("--settings-file", settings, codes=(NO_ANSWER,))
    assert place.jobs(out_dir, codes=(NO_ANSWER,))[0]["state"] == "maybe-submitted"


def main():
    build_folder = pathlib.Path(sys.argv[1]).resolve()
    pool = CondorPool(build_folder)
    place = Workplace(pool, build_folder)
    tests = [test_example, test_two_nodes, test_four_nodes, test_stopped_in_the_middle, test_run_again, test_hostile_arguments, test_hostile_folder, test_transfer,
             test_held_and_cancelled, test_sweep, test_killed_submission, test_pool_is_down]
    wanted = sys.argv[2:]
    failed = 0
    for test in tests:
        if wanted and test.__name__ not in wanted:
            continue
        start = time.monotonic()
        try:
            test(place)
            print(f"ok      {test.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception:  # noqa: BLE001 - every test is to be run
            failed += 1
            print(f"FAILED  {test.__name__}\n{traceback.format_exc()}", flush=True)
    if failed:
        print(pool.logs())
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
