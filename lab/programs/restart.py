#!/usr/bin/python3
"""Measures how soon a model answers again after inferd was killed while weightd still holds the weights.

usage: restart.py --pack PACK [--bin build/release] [--runs N] [--tokens 16]

Starts both daemons, requests one token for a short prompt over HTTP, then kills inferd and restarts it, N times. Times count
from the start of the process: until /health reports that it serves, and until the first token of a prompt that is sent right
then. Prints the times of each run, the medians, and the bytes of the model. Exit status 1 if an answer differs from the first.
"""
import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def ask(path, method, target, body=None):
    """Returns status and text, or None while nobody listens."""
    connection = Connection(path)
    try:
        connection.request(method, target, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except OSError:
        return None
    finally:
        connection.close()


def start(options, folder):
    http_path = os.path.join(folder, "http.sock")
    with open(os.path.join(folder, "inferd.log"), "a") as log:
        return http_path, subprocess.Popen(
            [os.path.join(options.bin, "bin/inferd"), "--pack", options.pack, "--weightd", folder + "/w.sock", "--listen",
             f"unix:{folder}/i.sock", "--admin", f"unix:{folder}/a.sock", "--http", f"unix:{http_path}", "--context",
             "1024"],
            stdout=log, stderr=log)  # fmt: skip


def run_once(options, folder, body):
    """Returns the seconds until inferd serves and until the first token, and the answer; then kills inferd."""
    began = time.monotonic()
    path, inferd = start(options, folder)
    try:
        while (said := ask(path, "GET", "/health")) is None or said[0] != 200:
            if inferd.poll() is not None:
                sys.exit(f"restart: inferd ended with {inferd.returncode}: see {folder}/inferd.log")
            time.sleep(0.002)
        serving = time.monotonic() - began
        status, text = ask(path, "POST", "/v1/completions", body)
        if status != 200:
            sys.exit(f"restart: {status} {text.decode()}")
        return serving, time.monotonic() - began, json.loads(text)["choices"][0]
    finally:
        inferd.send_signal(signal.SIGKILL)
        inferd.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=16, help="of the prompt")
    options = parser.parse_args()
    body = json.dumps({"prompt": list(range(3, 3 + options.tokens)), "max_tokens": 1, "temperature": 0,
                       "logprobs": 1})  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "weightd.log"), "w") as log:
            weightd = subprocess.Popen([os.path.join(options.bin, "bin/weightd"), "--socket", folder + "/w.sock", "--pack",
                                        options.pack], stdout=log, stderr=log)  # fmt: skip
        try:
            while not os.path.exists(folder + "/w.sock"):
                time.sleep(0.01)
            *cold, answer = run_once(options, folder, body)
            print(f"first start: serving {cold[0]:.2f} s, first token {cold[1]:.2f} s", flush=True)
            runs = []
            for _ in range(options.runs):
                *times, again = run_once(options, folder, body)
                if again != answer:
                    sys.exit(f"restart: {again} is not {answer}")
                runs.append(times)
                print(f"restart: serving {times[0]:.2f} s, first token {times[1]:.2f} s", flush=True)
        finally:
            weightd.terminate()
            weightd.wait()
    size = sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(options.pack) for name in names)
    serving, token = (statistics.median(values) for values in zip(*runs))
    print(f"{size / 2**30:.1f} GiB: serving {serving:.2f} s, first token {token:.2f} s (medians of {len(runs)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
