"""kill -9 of either daemon in mid-answer, and corrupted weights on disk."""
import os
import shutil
import signal
import time

import harness

ANSWER = 300  # tokens: long enough to be interrupted


class CrashTest(harness.TestCase):
    def test_tokens_are_equal_after_weightd_restart(self):
        rounds = 50 if harness.FULL else 5
        continued = 0
        for i in range(rounds):
            row = self.greedy[i % len(self.greedy)]
            arguments = self.greedy_run(row, "--ignore-eos", "--quiet", n=ANSWER)
            if i < len(self.greedy):
                row["long"] = self.ok(*arguments)
            run = self.start(*arguments)
            run.read(1 + len(row["long"].encode()) * (i + 1) // (rounds + 2))
            self.kill_daemon("weightd")
            code, out, err = run.finish()
            if code == 0:
                continued += 1
                self.assertEqual(out, row["long"])
            else:
                self.assertTrue(row["long"].startswith(out.rstrip("\n")), "a wrong token")
                self.assertIn("UNAVAILABLE", err)
        print(f"{continued} of {rounds} answers continued")
        self.assertGreaterEqual(continued, 0.95 * rounds)

    def test_lost_weightd_ends_answer_unavailable(self):
        row = self.greedy[0]
        arguments = self.greedy_run(row, "--ignore-eos", "--quiet", "--no-restart", "--speculate", "off", n=ANSWER)
        whole = self.ok(*arguments)
        run = self.start(*arguments)
        run.read(20)
        self.kill_daemon("weightd")
        began = time.monotonic()
        code, out, err = run.finish()
        print(f"ended {time.monotonic() - began:.1f} s after the kill")
        self.assertEqual(code, 1, self.logs())
        self.assertIn("UNAVAILABLE", err)
        self.assertTrue(whole.startswith(out.rstrip("\n")), "a wrong token")

    def test_next_inferd_finds_the_weights_in_memory(self):
        cold = self.ok_json(*self.greedy_run(self.greedy[0], "--kv", "f32", "--keep", "10m", "--preload", "off"))
        self.assertGreater(cold["experts"]["bytes_ssd"], 0)
        first = self.kill_daemon("inferd")
        self.wait_for(lambda: self.processes("inferd") not in ([], [first]), "the next inferd")
        warm = self.ok_json(*self.greedy_run(self.greedy[0]))
        self.assertEqual(warm["token_ids"], self.greedy[0]["greedy_ids"])
        self.assertEqual(warm["experts"]["bytes_ssd"], 0)
        print(
            f"time to first token: {cold['timings']['prompt_seconds']:.4f} s cold, "
            f"{warm['timings']['prompt_seconds']:.4f} s with the weights in memory"
        )
        os.kill(self.only_process("sluice"), signal.SIGTERM)

    def test_killed_inferd_ends_answer_unavailable(self):
        # An answer that repeats itself would end before the kill with drafts.
        run = self.start(*self.greedy_run(self.greedy[0], "--ignore-eos", "--quiet", "--speculate", "off", n=ANSWER))
        run.read(20)
        self.kill_daemon("inferd")
        code, _, err = run.finish()
        self.assertEqual(code, 1)
        self.assertIn("UNAVAILABLE", err)


class DamageTest(harness.TestCase):
    def damaged(self, change, file="experts.bin"):
        """Returns a copy of the pack with `change` applied to the bytes of a file."""
        pack = os.path.join(self.work, "damaged.pack")
        shutil.rmtree(pack, ignore_errors=True)
        shutil.copytree(self.pack, pack)
        path = os.path.join(pack, file)
        with open(path, "rb") as stream:
            data = bytearray(stream.read())
        data = change(data)
        with open(path, "wb") as stream:
            stream.write(data)
        return pack

    def refused(self, pack, *words):
        """Checks that no token is generated, and that the message names the error."""
        code, out, err = self.sluice(
            "run", "--pack", pack, "--prompt", "The city", "-n", 8, "--temperature", 0, "--quiet"
        )
        self.assertEqual((code, out.strip()), (1, ""), err)
        for word in ("DATA_LOSS", *words):
            self.assertIn(word, err)
        code, _, err = self.sluice("verify", pack)
        self.assertEqual(code, 1)
        self.assertIn("DATA_LOSS", err)

    def test_flipped_expert_bit_is_data_loss(self):
        def flip(data):
            for at in range(0, len(data), 65536):
                data[at + 100] ^= 4
            return data

        self.refused(self.damaged(flip), "extent", "layer 0")

    def test_flipped_dense_bit_is_data_loss(self):
        def flip(data):
            data[len(data) // 2] ^= 1
            return data

        self.refused(self.damaged(flip, "dense.bin"), "extent")

    def test_swapped_blocks_are_data_loss(self):
        def swap(data):
            half = len(data) // 8192 * 4096
            return data[half:] + data[:half]

        self.refused(self.damaged(swap), "extent")

    def test_truncated_pack_is_data_loss(self):
        self.refused(self.damaged(lambda data: data[: len(data) // 2]), "experts.bin")

    def test_damaged_manifest_is_data_loss(self):
        def flip(data):
            data[len(data) // 2] ^= 1
            return data

        self.refused(self.damaged(flip, "manifest.json"), "manifest.json")


if __name__ == "__main__":
    harness.main()
