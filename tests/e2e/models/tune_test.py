"""sluice tune: moves memory between experts and the KV cache under load. SLUICE_STRESS=full: a hundred times."""
import json
import os
import random
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness

MIB = 1 << 20


class TuneTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.start_daemons = ("run", "--pack", self.pack, "--token-ids", "1,2", "-n", 1, "--keep", "5m", "--quiet")

    def tearDown(self):
        for supervisor in self.processes("sluice"):
            os.kill(supervisor, signal.SIGTERM)
        super().tearDown()

    def serve(self, *args):
        self.ok(*self.start_daemons, *args)

    def tune(self, *args):
        return json.loads(self.ok("tune", "--json", *args))

    def refused(self, *args):
        code, out, err = self.sluice("tune", *args)
        self.assertEqual((code, out), (1, ""), err)
        return err

    def test_random_tuning_changes_no_answer(self):
        self.serve()
        rows = self.greedy[:8]
        command = [self.greedy_run(row, "--json", n=24) for row in rows]
        ids = lambda row: json.loads(self.ok(*command[row]))["token_ids"]
        wanted = [ids(row) for row in range(8)]
        full = self.tune("--dram-budget", 40 * MIB)
        wrong, answers, ended = [], [0], threading.Event()

        def ask(row):
            while not ended.is_set():
                code, out, err = self.sluice(*command[row])
                answers[0] += 1
                if code != 0 or json.loads(out)["token_ids"] != wanted[row]:
                    wrong.append((row, code, out, err))
                    return

        clients = [threading.Thread(target=ask, args=(row,)) for row in range(8)]
        for client in clients:
            client.start()
        draw = random.Random(1)
        try:
            for _ in range(100 if harness.FULL else 12):
                dram = draw.randint(4 * MIB, 14 * MIB)
                kv = draw.randint(full["kv_bytes"] // 4, full["kv_bytes"])
                args = draw.choice([("--dram-budget", dram), ("--kv-budget", kv), ("--dram-budget", dram, "--kv-budget", kv)])
                tuned = self.tune(*args)
                if "--dram-budget" in args:
                    self.assertEqual(tuned["dram_budget"], dram)
                    self.assertLessEqual(tuned["segment_bytes"], dram)
                if "--kv-budget" in args:
                    self.assertLessEqual(tuned["kv_bytes"], kv)
                    self.assertGreater(tuned["kv_bytes"], kv - full["kv_bytes"] / full["kv_pages"] - 1)
        finally:
            ended.set()
            for client in clients:
                client.join()
        self.assertEqual(wrong, [])
        self.assertGreater(answers[0], 8)
        for name, process in (("weightd", 1), ("inferd", 1)):
            self.assertEqual(len(self.processes(name)), process, "nobody was started anew")

    def test_memory_is_given_back_to_the_machine(self):
        self.serve()
        for row in self.greedy[:4]:
            self.ok(*self.greedy_run(row, n=8))

        def shared():
            with open(f"/proc/{self.only_process('weightd')}/smaps_rollup") as file:
                lines = dict(line.split(":") for line in file if ":" in line)
            return int(lines["Rss"].split()[0]) * 1024

        before = shared()
        tuned = self.tune("--dram-budget", "4MiB")
        self.assertLessEqual(tuned["segment_bytes"], 4 * MIB)
        self.assertLess(shared(), before - 2 * MIB)
        for row in self.greedy[:2]:
            self.ok(*self.greedy_run(row, n=8))

    def test_impossible_tuning_is_refused_unchanged(self):
        self.serve("--context", 512)
        before = self.tune("--context", 512)
        self.assertIn("dense weights", self.refused("--dram-budget", "1MiB"))
        self.assertIn("free", self.refused("--dram-budget", "100TiB"))
        self.assertIn("one text of 512 tokens takes 16 pages", self.refused("--kv-budget", "10KiB"))
        self.assertIn("1 to 512 are possible", self.refused("--context", 513))
        # One of two changes is impossible: none is applied.
        self.refused("--dram-budget", "1MiB", "--kv-budget", before["kv_bytes"] // 2)
        self.refused("--dram-budget", "30MiB", "--kv-budget", "10KiB")
        self.assertEqual(self.tune("--context", 512), before)

    def test_shorter_context_applies_to_new_requests(self):
        self.serve("--context", 512)
        tuned = self.tune("--context", 64, "--kv-budget", 2 * MIB)
        self.assertEqual(tuned["context"], 64)
        row = self.greedy[0]
        long = ",".join(["5"] * 80)
        code, _, err = self.sluice("run", "--pack", self.pack, "--token-ids", long, "-n", 1)
        self.assertEqual(code, 1)
        self.assertIn("64", err)
        self.ok(*self.greedy_run(row, n=4))
        self.assertEqual(self.tune("--context", 512)["context"], 512)
        self.ok("run", "--pack", self.pack, "--token-ids", long, "-n", 1)

    def test_without_daemons_it_says_where_it_looked(self):
        self.assertIn("inferd-admin.sock", self.refused("--context", 64))


if __name__ == "__main__":
    harness.main()
