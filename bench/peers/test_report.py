#!/usr/bin/env python3
"""The runner's own checks, without any system to measure: figures from fio's documents, ratios, tables, the command line.

Run by `make test`; by hand: bench/peers/test_report.py. `recorded.json` and `recorded-files.json` are results with figures that are
easy to check in one's head; they were never measured.
"""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "load"))
import bed  # noqa: E402
import blocks  # noqa: E402
import files  # noqa: E402
import load  # noqa: E402
import mounted  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
from system import System  # noqa: E402

EVERY = [peer for comparison in run.COMPARISONS.values() for peer in comparison.PEERS]
RECORDED, RECORDED_FILES = (json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in ("recorded.json", "recorded-files.json"))


def runner(*arguments):
    """What the runner says and returns."""
    return subprocess.run([sys.executable, str(FOLDER / "run.py"), *arguments], text=True, capture_output=True, check=False)


class Ratios(unittest.TestCase):
    """Ratios are of pairs, and medians of ratios."""

    def test_the_median_of_ratios_is_not_the_ratio_of_medians(self):
        compared = report.compare(RECORDED["peers"][0]["workloads"]["randread-4k-32"])
        # Rounds of 100/200, 300/100 and 200/400: ratios of 0.5, 3 and 0.5. The medians are 200 and 200.
        self.assertEqual(compared["ratio"], {"median": 0.5, "lowest": 0.5, "highest": 3.0})
        self.assertEqual((compared["weft"]["iops"], compared["peer"]["iops"]), (200, 200))

    def test_what_is_not_known_is_left_out_of_medians(self):
        rounds = copy.deepcopy(RECORDED["peers"][0]["workloads"]["randread-4k-32"])
        rounds[1]["peer"]["iops_per_core"] = None
        self.assertEqual(report.compare(rounds)["ratio_per_core"], 0.5)
        for one in rounds:
            one["peer"]["iops_per_core"] = None
        self.assertIsNone(report.compare(rounds)["ratio_per_core"])

    def test_ratios_of_file_systems_are_of_what_is_done_per_second(self):
        compared = report.compare(RECORDED_FILES["peers"][0]["workloads"]["create-8"], "per_second")
        # Rounds of 1000/500, 3000/1000 and 2000/4000, on two processors and on one.
        self.assertEqual(compared["ratio"], {"median": 2.0, "lowest": 0.5, "highest": 3.0})
        self.assertEqual(compared["ratio_per_core"], 1.0)
        self.assertEqual((compared["weft"]["per_second"], compared["peer"]["per_second"]), (2000, 1000))
        self.assertIsNone(compared["weft"]["mb_per_s"])


class Tables(unittest.TestCase):
    """What the tables say, and that they say what is missing."""

    def test_text_has_every_peer_every_ratio_and_what_was_not_equal(self):
        text = report.text(RECORDED)
        self.assertRegex(text, r"randread-4k-32 +200 +200 +0\.50 +0\.50 +3\.00")
        self.assertIn("absent: not installed: apt-get install --no-install-recommends absent-server absent-client", text)
        self.assertIn("broken: failed, and is in no table: its daemon ended with 1", text)
        self.assertIn("- It keeps one copy.", text)
        self.assertIn("2 cores of A processor, 4 GiB, Linux 6.1, TCP cubic, 2026-01-01T00:00:00Z", text)
        self.assertNotIn("NOT TO BE QUOTED", text)

    def test_markdown_tables_have_as_many_cells_in_every_row(self):
        rows = [line for line in report.markdown(RECORDED).splitlines() if line.startswith("|")]
        self.assertEqual(len(rows), 2 + len(RECORDED["run"]["workloads"]))
        self.assertEqual({row.count("|") for row in rows}, {4})
        self.assertEqual(rows[2], "| randread-4k-32 | 200 | 0.50 |")
        # A workload that the peer did not come to.
        self.assertEqual(rows[3], "| seqwrite-1m-4 | - | - |")

    def test_text_of_file_systems_has_their_figures(self):
        text = report.text(RECORDED_FILES)
        self.assertRegex(text, r"workload +weft per s +peer per s +ratio +lowest +highest +weft MB/s +peer MB/s +weft p50 us +peer p50 us +weft cores"
                               r" +peer cores +ratio/core\n")
        self.assertRegex(text, r"create-8 +2,000 +1,000 +2\.00 +0\.50 +3\.00 +- +- +100 +300 +2\.00 +1\.00 +1\.00\n")
        self.assertRegex(text, r"unpack +600 +1,200 +0\.50 +0\.25 +0\.50 +3 +6 +- +- +2\.00 +1\.00 +0\.25\n")
        self.assertIn("Weft's requests, calls or files per second over the peer's", text)
        self.assertIn("one mount of each system", text)
        self.assertIn("- It keeps no checksums.", text)

    def test_markdown_of_file_systems(self):
        rows = [line for line in report.markdown(RECORDED_FILES).splitlines() if line.startswith("|")]
        self.assertEqual(rows, ["| workload | Weft, per s | mounted |", "| --- | ---: | ---: |", "| create-8 | 2,000 | 2.00 |",
                                "| unpack | 600 | 0.50 |", "| randread-4k-32 | - | - |"])

    def test_results_that_do_not_say_what_they_compare_are_of_volumes(self):
        self.assertNotIn("as", RECORDED["run"])
        self.assertEqual(report.text(dict(RECORDED, run=dict(RECORDED["run"], **{"as": "blocks"}))), report.text(RECORDED))

    def test_short_few_and_interrupted_runs_are_not_to_be_quoted(self):
        for change in ({"seconds": 1}, {"rounds": 1}, {"interrupted": True}):
            result = copy.deepcopy(RECORDED)
            result["run"].update(change)
            for told in (report.text(result), report.markdown(result)):
                self.assertIn("NOT TO BE QUOTED", told, change)

    def test_a_result_without_any_peer_can_be_told(self):
        result = dict(RECORDED, peers=[RECORDED["peers"][1]])
        self.assertIn("not installed", report.text(result))
        self.assertIn("not installed", report.markdown(result))


class Figures(unittest.TestCase):
    """fio's documents, and the jobs."""

    SIDE = {"iops": 1000.04, "total_ios": 5000, "clat_ns": {"mean": 2500.0, "percentile": {"50.000000": 2000, "99.000000": 9000}}}

    def test_the_side_that_the_workload_uses_is_read(self):
        nothing = {"iops": 0, "total_ios": 0, "clat_ns": {"mean": 0}}
        for workload in load.WORKLOADS:
            sides = {"write": self.SIDE, "read": nothing} if workload.is_write else {"read": self.SIDE, "write": nothing}
            figures = load.figures({"jobs": [{"error": 0, **sides}]}, workload, 2.0)
            self.assertEqual((figures["iops"], figures["p50_us"], figures["p99_us"]), (1000.0, 2.0, 9.0))
            self.assertEqual(figures["mb_per_s"], round(1000.04 * workload.block_bytes / 1e6, 1))
            self.assertEqual(figures["iops_per_core"], 500.0)

    def test_errors_and_runs_without_a_request_are_failures(self):
        workload = load.WORKLOADS[0]
        for job in ({"error": 5, "read": self.SIDE}, {"error": 0, "read": dict(self.SIDE, total_ios=0)}):
            with self.assertRaises(load.LoadError):
                load.figures({"jobs": [job]}, workload, 1.0)

    def test_workloads_are_the_eight_of_the_data_path(self):
        self.assertEqual(len({w.name for w in load.WORKLOADS}), 8)
        for w in load.WORKLOADS:
            size = f"{w.block_bytes // load.MIB}m" if w.block_bytes >= load.MIB else f"{w.block_bytes // 1024}k"
            order = w.rw if w.rw.startswith("rand") else f"seq{w.rw}"
            self.assertEqual(w.name, f"{order}-{size}-{w.depth}")


class Mounted(unittest.TestCase):
    """What is asked of mounted file systems: here of an ordinary folder."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-mounted-")
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)

    def test_names_are_made_looked_at_and_removed(self):
        found = mounted.names([self.at / "names"], 3, 2, 10, lambda: 0.0)
        self.assertEqual(list(found), mounted.OPERATIONS)
        for figures in found.values():
            self.assertGreater(figures["per_second"], 0)
            self.assertLessEqual(figures["p50"], figures["p99"])
        self.assertEqual(sorted(path.name for path in self.at.rglob("*")), ["0", "1", "names"])

    def test_processes_that_fail_are_noticed(self):
        (self.at / "0").write_text("where a folder has to be", encoding="utf-8")
        with self.assertRaisesRegex(load.LoadError, "FileExistsError"):
            mounted.names([self.at], 2, 1, 10)

    def test_an_archive_is_unpacked_and_removed(self):
        with mounted.archive(3) as (path, size_bytes):
            self.assertEqual(size_bytes, 0 + 7 + 14)
            seconds, cores = mounted.unpack(path, self.at / "unpacked")
        self.assertGreater(seconds, 0)
        self.assertGreaterEqual(cores, 0)
        self.assertEqual((list(self.at.iterdir()), path.exists()), ([], False))

    def test_every_workload_has_one_name_and_the_figures_that_are_told(self):
        for comparison in run.COMPARISONS.values():
            names = [name for one in comparison.RUNS for name in one.names]
            self.assertEqual(len(names), len(set(names)))
        of_jobs = [name for one in files.RUNS if isinstance(one, files.Direct) for name in one.names]
        self.assertEqual(of_jobs, ["randread-4k-32", "randwrite-4k-32", "seqread-1m-8", "seqwrite-1m-8"])
        told = files.figures(100.04, 2.0, p50_us=5)
        self.assertEqual(told, {"per_second": 100.0, "mb_per_s": None, "p50_us": 5, "p99_us": None, "cores": 2.0, "per_second_per_core": 50.0})
        self.assertEqual(set(told), set(RECORDED_FILES["peers"][0]["workloads"]["unpack"][0]["weft"]))


class Peers(unittest.TestCase):
    """What every peer has to say of itself."""

    def test_every_peer_is_complete(self):
        for comparison in run.COMPARISONS.values():
            names = [peer.name for peer in comparison.PEERS]
            self.assertEqual(len(names), len(set(names)))
        for peer in EVERY:
            self.assertTrue(issubclass(peer, System))
            self.assertTrue(peer.title and peer.packages and peer.programs and peer.unequal and peer.copies in (1, 2), peer.name)
            for sentence in peer.unequal:
                self.assertTrue(sentence.endswith("."), sentence)
            if peer.copies == 1:
                self.assertIn("1 copy", peer.title)

    def test_set_up_knows_every_package(self):
        line = re.search(r"peer_packages='([^']*)'", (FOLDER / "../../scripts/setup.sh").read_text(encoding="utf-8"))
        self.assertEqual(set(line[1].split()), {package for peer in EVERY for package in peer.packages})

    def test_the_document_names_every_peer(self):
        document = (FOLDER / "../../docs/benchmark.md").read_text(encoding="utf-8")
        parts = document.split("\n## The peers as file systems\n")
        for comparison, part in zip((blocks, files), parts):
            for peer in comparison.PEERS:
                self.assertIn(f"| `{peer.name}` |", part)
        for name in (name for one in files.RUNS for name in one.names):
            self.assertIn(f"`{name}`", parts[1])

    def test_what_is_not_installed_is_noticed(self):
        class Absent(System):
            """No machine has this."""
            programs = ["no-such-program-anywhere"]
            needed_files = ["/no/such/file-*"]
        self.assertEqual(Absent.missing(), ["no-such-program-anywhere", "/no/such/file-*"])


class Places(unittest.TestCase):
    """Processes of a system, here outside of any bed."""

    def test_processes_are_found_and_ended_also_if_they_hide_their_mark(self):
        with tempfile.TemporaryDirectory(prefix="weft-place-") as media, unittest.mock.patch.object(bed, "MEDIA", pathlib.Path(media)):
            place = bed.Place("tried")
            # One that leaves its parent, and one of a daemon that shows no environment.
            place.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 &"])
            place.daemon(["env", "-i", "sh", "-c", "sleep 60 & wait"])
            place.await_that("three processes", lambda: len(place._pids()) == 3)
            self.assertGreaterEqual(place.cpu_s(), 0)
            pids = place._pids()
            place.stop()
            self.assertEqual((place._pids(pids), list(pathlib.Path(media).iterdir())), (set(), []))


class CommandLine(unittest.TestCase):
    """The runner as people call it."""

    def test_recorded_results_are_told(self):
        path = str(FOLDER / "recorded.json")
        done = runner("--from", path)
        self.assertEqual((done.returncode, done.stdout), (1, report.text(RECORDED)), "a peer failed in it")
        self.assertEqual(runner("--from", path, "--markdown").stdout, report.markdown(RECORDED))
        done = runner("--from", str(FOLDER / "recorded-files.json"))
        self.assertEqual((done.returncode, done.stdout), (0, report.text(RECORDED_FILES)), "no peer failed in it")

    def test_results_of_another_version_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "later.json")
            pathlib.Path(path).write_text(json.dumps(dict(RECORDED, schema_version=2)), encoding="utf-8")
            done = runner("--from", path)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("schema_version 2, expected 1", done.stderr)

    def test_usage(self):
        for bad in (["--peer", "nothing"], ["--only", "nothing"], ["--seconds", "0"], ["--rounds", "0"], ["--as", "objects"],
                    ["--peer", "cephfs"], ["--as", "files", "--peer", "qemu-mirror"], ["--only", "create"]):
            self.assertEqual(runner(*bad).returncode, 2, bad)
        for kind, comparison in run.COMPARISONS.items():
            listed = runner("--list", "--as", kind).stdout.splitlines()
            self.assertEqual([line.split()[0] for line in listed], [peer.name for peer in comparison.PEERS])

    def test_a_bed_dies_with_its_caller(self):
        command = bed.namespaced(["true"])
        self.assertIn("--kill-child=KILL", command)
        self.assertEqual(command[:3], ["setpriv", "--pdeathsig", "KILL"])


if __name__ == "__main__":
    unittest.main()
